"""A hook for fault tests alone: a worker that dies at one point of the protocol, or gets corrupt KV.

GODWIT_FAULT=`WORKER:exit_on=MESSAGE` makes the worker of that name end, without a word to anybody, when a
message of that type (a class of `godwit.protocol.messages`) has arrived and before it is acted upon, as if
by SIGKILL. `WORKER:corrupt=KvPart` turns a bit of each chunk of KV that reaches it.
"""

import os

from msgspec.structs import replace

from godwit.protocol.messages import KvPart, Message, PeerMessage

VARIABLE = "GODWIT_FAULT"
EXIT_STATUS = 77


_FAULT = os.environ.get(VARIABLE)


def corrupted_if_due(worker: str, message: PeerMessage | KvPart) -> PeerMessage | KvPart:
    """The message, with one bit turned where it is KV and the environment says so."""
    if isinstance(message, KvPart) and f"{worker}:corrupt=KvPart" == _FAULT:
        first, *rest = message.data
        return replace(message, data=memoryview(bytes([first ^ 1, *rest])))
    return message


def exit_if_due(worker: str, message: Message) -> None:
    """End this process at once where the environment says so."""
    if _FAULT is not None and f"{worker}:exit_on={type(message).__name__}" == _FAULT:
        os._exit(EXIT_STATUS)
