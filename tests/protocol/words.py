"""Messages in words."""

from godwit.protocol.messages import Message


def describe(message: Message) -> str:
    """A message on one line; what is long or changes with the limits is left out."""
    return type(message).__name__
