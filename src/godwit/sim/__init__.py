"""A cluster in virtual time: the real scheduler and protocol, with modelled engines, links and servers."""
