"""The migration protocol, sans-IO: messages, ownership of requests, and the state machines of a move."""
