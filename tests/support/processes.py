"""What a process and its children hold: memory, descriptors, memfds, threads."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import psutil

MIB = 1024 * 1024

POOL_GROWTH = 4
"""How many threads gRPC's pool may keep beyond those that it had: fewer than there are clients."""


def rss_anon_bytes(pid: int) -> int:
    """Return a process's anonymous resident memory, from /proc/PID/status."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no RssAnon")


def pss_bytes(pid: int) -> int:
    """Return a process's proportional set size, from /proc/PID/smaps_rollup."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no Pss")


def family_pss_bytes(pids: list[int]) -> int:
    """Return what some processes have in memory, each page counted once.

    They stand still meanwhile: a page that passed from one process to another between two readings
    would be counted twice.
    """
    with standing_still(pids):
        return sum(pss_bytes(pid) for pid in pids)


@contextlib.contextmanager
def standing_still(pids: list[int]) -> Iterator[None]:
    """Stop processes for the length of a `with` block."""
    processes = [psutil.Process(pid) for pid in pids]
    try:
        for process in processes:
            process.suspend()
        for process in processes:
            while process.status() != psutil.STATUS_STOPPED:
                time.sleep(0.0005)
        yield
    finally:
        for process in processes:
            process.resume()


def family(pid: int) -> list[int]:
    """Return a process and all its descendants."""
    process = psutil.Process(pid)
    return [pid, *(child.pid for child in process.children(recursive=True))]


def descriptors(pid: int) -> list[str]:
    """Return what a process's descriptors refer to."""
    found = []
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found.append(str(entry.readlink()))
    return found


def arena_count(pid: int) -> int:
    """Return how many arenas a process has open or mapped."""
    maps = Path(f"/proc/{pid}/maps").read_text().count("memfd:opferry-arena")
    return maps + sum("memfd:opferry-arena" in target for target in descriptors(pid))


def thread_count(pid: int) -> int:
    """Return the number of a process's threads."""
    return psutil.Process(pid).num_threads()


def eventually(condition: Callable[[], bool], within_s: float = 10.0) -> bool:
    """Return whether a condition comes true within some seconds."""
    end_s = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > end_s:
            return False
        time.sleep(0.02)
    return True


class Threads(NamedTuple):
    """How many threads a process has."""

    own: int
    """All but the others."""
    pool: int
    """Those of gRPC's own pool."""

    @classmethod
    def of(cls, pid: int) -> Threads:
        """Count a process's threads."""
        names = []
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                names.append((task / "comm").read_text().strip())
        pool = names.count("event_engine")
        return cls(len(names) - pool, pool)


def threads_return(pid: int, before: Threads) -> bool:
    """Return whether a process comes back to the threads that it had.

    gRPC adds one to its pool when none of them answers for a moment, as on a busy machine; it ends
    when it has had nothing to do for 20 s, and was seen to live on for longer.
    """

    def returned() -> bool:
        now = Threads.of(pid)
        return now.own <= before.own and now.pool <= before.pool + POOL_GROWTH

    return eventually(returned, 45)


class Peaks:
    """The peaks of named measurements, filled while `sampling` runs."""

    def __init__(self) -> None:
        self.values: dict[str, int] = {}


@contextlib.contextmanager
def sampling(period_s: float = 0.02, **measurements: Callable[[], int]) -> Iterator[Peaks]:
    """Sample measurements in a thread for the length of a `with` block."""
    peaks, stop = Peaks(), threading.Event()

    def sample() -> None:
        while not stop.is_set():
            for name, measure in measurements.items():
                with contextlib.suppress(psutil.Error, FileNotFoundError, ProcessLookupError):
                    peaks.values[name] = max(peaks.values.get(name, 0), measure())
            stop.wait(period_s)

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield peaks
    finally:
        stop.set()
        thread.join()
