"""Messages to frames and back (msgpack)."""

from typing import cast

import msgspec

from godwit.errors import ProtocolError
from godwit.protocol.message import Message
from godwit.protocol.messages import FromHead, FromPeer, FromWorker, KvPart, Tokens

_KV_FRAME_BYTES = 256
_encoder = msgspec.msgpack.Encoder()
_from_worker: msgspec.msgpack.Decoder[FromWorker] = msgspec.msgpack.Decoder(FromWorker)
_from_head: msgspec.msgpack.Decoder[FromHead] = msgspec.msgpack.Decoder(FromHead)
_from_peer: msgspec.msgpack.Decoder[FromPeer] = msgspec.msgpack.Decoder(FromPeer)


def encode(message: Message) -> bytes:
    """One message as one frame."""
    if isinstance(message, KvPart):
        # The encoder's own buffer grows by halves; this one is right at once, so that a chunk takes a chunk.
        frame = bytearray(len(message.data) + _KV_FRAME_BYTES)
        _encoder.encode_into(message, frame)
        return cast(bytes, frame)  # whoever writes bytes writes these too
    return _encoder.encode(message)


def decode_from_worker(frame: bytes) -> FromWorker:
    """The message in a frame that a worker sent to the head; ProtocolError where it is none."""
    try:
        message = _from_worker.decode(frame)
    except msgspec.MsgspecError as error:
        raise ProtocolError(f"not a message from a worker: {error}") from error
    if type(message) is Tokens:
        for event in message.events:
            num = len(event.ids)
            if len(event.texts) != num or (event.alternatives and len(event.alternatives) != num):
                raise ProtocolError("not a message from a worker: as many texts as ids are needed")
    return message


def decode_from_head(frame: bytes) -> FromHead:
    """The message in a frame that the head sent to a worker; ProtocolError where it is none."""
    try:
        return _from_head.decode(frame)
    except msgspec.MsgspecError as error:
        raise ProtocolError(f"not a message from the head: {error}") from error


def decode_from_peer(frame: bytes) -> FromPeer:
    """The message in a frame that another worker sent; ProtocolError where it is none."""
    try:
        return _from_peer.decode(frame)
    except msgspec.MsgspecError as error:
        raise ProtocolError(f"not a message from a peer: {error}") from error
