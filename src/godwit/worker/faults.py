"""A hook for fault tests alone: a worker that dies at one point of the protocol, as if by SIGKILL.

GODWIT_FAULT=`WORKER:exit_on=MESSAGE` makes the worker of that name end, without a word to anybody, when a
message of that type (a class of `godwit.protocol.messages`) has arrived and before it is acted upon.
"""

import os

from godwit.protocol.messages import Message

VARIABLE = "GODWIT_FAULT"
EXIT_STATUS = 77


_FAULT = os.environ.get(VARIABLE)


def exit_if_due(worker: str, message: Message) -> None:
    """End this process at once where the environment says so."""
    if _FAULT is not None and f"{worker}:exit_on={type(message).__name__}" == _FAULT:
        os._exit(EXIT_STATUS)
