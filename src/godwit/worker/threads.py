"""Blocking calls in threads, for coroutines that may be cancelled."""

import asyncio
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


async def in_thread(act: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """`asyncio.to_thread`, but a caller that is cancelled goes on only when the thread is done.

    So what the call uses, such as a file, may be closed after it in any case.
    """
    running = asyncio.ensure_future(asyncio.to_thread(act, *args, **kwargs))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running])
        raise
