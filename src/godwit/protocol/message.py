"""What all messages are; messages.py and model_messages.py have them, wire.py encodes them."""

from msgspec import Struct


class Message(Struct, frozen=True, array_like=True, tag=True):
    """Base of all messages; on the wire an array that starts with the class's name."""
