"""Godwit on the nodes of a Ray cluster: a worker on each, and a head that Ray restarts."""
