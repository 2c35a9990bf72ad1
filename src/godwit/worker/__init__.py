"""The worker: instances of models, links to the head and to other workers."""
