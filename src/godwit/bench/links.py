"""The link between the two workers of a benchmark: shaped by the kernel where permitted, else emulated."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol

from godwit.bench.netns import VethLinks, why_no_namespaces
from godwit.local import Site

WORKERS = ("w1", "w2")


class Links(Protocol):
    """A link whose rate can be set, and where head and workers run so that they use it.

    `are` names its kind in the report. A cluster that starts after `shape` has the new rate.
    """

    @property
    def are(self) -> str: ...

    @property
    def head_host(self) -> str: ...

    def sites(self) -> Mapping[str, Site]: ...

    def shape(self, mbit: float | None) -> None: ...

    async def transfer_mbit(self) -> float | None: ...


class PacedLinks:
    """Loopback, with each worker's messages to the other one paced at the sender."""

    are = "paced sender on loopback"
    head_host = "127.0.0.1"

    def __init__(self, workers: Sequence[str]) -> None:
        self._workers = tuple(workers)
        self._mbit: float | None = None

    def sites(self) -> Mapping[str, Site]:
        """All on this machine, at the rate of the latest `shape`."""
        bytes_per_s = None if self._mbit is None else self._mbit * 1e6 / 8
        return {name: Site({"emulated_bandwidth_bytes_per_s": bytes_per_s}) for name in self._workers}

    def shape(self, mbit: float | None) -> None:
        """The rate for clusters that start from now on."""
        self._mbit = mbit

    async def transfer_mbit(self) -> float | None:
        """Nothing but a worker's own messages is paced, so a plain transfer says nothing."""
        return None


@contextlib.contextmanager
def open_links(say: Callable[[str], None], *, paced: bool = False) -> Iterator[Links]:
    """Shaped links in namespaces, or (`paced`, or where they are not permitted, which `say` hears) emulated.

    Enter it before any thread or event loop starts.
    """
    why = "asked for" if paced else why_no_namespaces()
    if why is None:
        with VethLinks(WORKERS) as links:
            yield links
    else:
        say(f"links are emulated by a paced sender on loopback, without network namespaces: {why}")
        yield PacedLinks(WORKERS)
