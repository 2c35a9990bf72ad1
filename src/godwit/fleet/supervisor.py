"""What both kinds of Ray actors are: thin, each keeps one ordinary Godwit process running.

Ray runs an actor's constructor once in each of its lives and nothing else by itself. So the work is a
coroutine in a thread that the constructor starts; methods are for those who ask. (With a coroutine among its
methods a class would be one of Ray's asynchronous actors, whose methods share one loop.)
"""

import asyncio
import os
import threading
from collections.abc import Coroutine
from typing import Any

import structlog

from godwit.fleet import rays
from godwit.logs import configure_logs

STOP_S = 30.0
_log = structlog.get_logger(__name__)


class Supervisor:
    """Base of the actors; `work` is what one does, and when it ends, so does the actor."""

    def __init__(self, work: Coroutine[Any, Any, None]) -> None:
        configure_logs(os.environ.get("GODWIT_LOG", "info"))
        self._loop = asyncio.new_event_loop()
        self._is_stopping = False
        self._task = self._loop.create_task(work)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Have the work cancelled and cleaned up after; the actor stays, for the caller to end. Blocks."""
        self._is_stopping = True
        self._loop.call_soon_threadsafe(self._task.cancel)
        self._thread.join(STOP_S)

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._task)
        except asyncio.CancelledError:
            pass
        except BaseException:
            _log.exception("a bug ended this actor; where it is the head's, Ray starts it again")
            os._exit(1)
        if not self._is_stopping:
            rays.end_this_actor()
