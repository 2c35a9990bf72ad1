"""Running until something ends it."""

import asyncio

import pytest

from godwit.errors import InvariantBrokenError
from godwit.processes import run

FOREVER_S = 30.0


def _break() -> None:
    raise InvariantBrokenError("two owners")


async def _break_in_a_task() -> None:
    _break()


def test_a_broken_invariant_in_a_callback_ends_the_process() -> None:
    async def main() -> None:
        asyncio.get_running_loop().call_soon(_break)
        await asyncio.sleep(FOREVER_S)

    with pytest.raises(InvariantBrokenError, match="two owners"):
        run(main())


def test_a_broken_invariant_in_a_task_that_nobody_awaits_ends_the_process() -> None:
    tasks: set[asyncio.Task[None]] = set()

    async def main() -> None:
        task = asyncio.create_task(_break_in_a_task())
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        del task
        await asyncio.sleep(FOREVER_S)

    with pytest.raises(InvariantBrokenError, match="two owners"):
        run(main())


def test_any_other_error_in_a_callback_is_logged_only() -> None:
    def fail() -> None:
        raise ValueError("a client's connection")

    async def main() -> None:
        asyncio.get_running_loop().call_soon(fail)
        await asyncio.sleep(0.05)

    run(main())
