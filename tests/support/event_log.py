"""The simulator's event log as intervals: which stream was busy when, and with what.

Times are the simulator's own (monotonic, of the moments at which tasks began and ended on their
streams), so nothing that a test's own process does shifts them.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

NEVER_NS = 2**63 - 1
"""The end of what has not ended."""


@dataclass(frozen=True)
class Interval:
    """One task of a stream, or one copy without a stream (stream 0)."""

    stream: int
    """The stream's number."""
    task: int
    """The task's number on its stream."""
    what: str
    """h2d, d2h, d2d, h2h, memset, kernel, event or wait."""
    bytes: int
    """The size of a copy."""
    begin_ns: int
    """When it began."""
    end_ns: int = NEVER_NS
    """When it ended; `NEVER_NS` while it runs."""
    status: int = 0
    """What it ended in."""
    content: float | None = None
    """For a kernel, the first element of gradQueryEmbed: it tells whose it is."""

    @property
    def ended(self) -> bool:
        """Whether it has ended."""
        return self.end_ns != NEVER_NS

    def overlaps(self, other: Interval) -> bool:
        """Return whether there was a moment at which both ran."""
        return self.begin_ns < other.end_ns and other.begin_ns < self.end_ns


def read(path: Path) -> list[Interval]:
    """Return the tasks of a log of one process, in the order in which they began.

    The log may be read while it is being written; a line that is not whole yet is left out.
    """
    if not path.exists():
        return []
    begun: dict[tuple[int, int, int], dict[str, int | float | None]] = {}
    found: list[Interval] = []
    text = path.read_text()
    for line in text[: text.rfind("\n") + 1].splitlines():
        record = json.loads(line)
        # a copy without a stream has no number: it is known by its thread
        key = (record["stream"], record["task"], record["thread"])
        if record["phase"] == "begin":
            begun[key] = record
            continue
        first = begun.pop(key)
        found.append(_interval(first, record["ns"], record["status"]))
    found += [_interval(record, NEVER_NS, 0) for record in begun.values()]
    return sorted(found, key=lambda interval: interval.begin_ns)


def by_stream(intervals: Iterable[Interval]) -> dict[int, list[Interval]]:
    """Return the intervals of each stream, in their order."""
    found: dict[int, list[Interval]] = defaultdict(list)
    for interval in intervals:
        found[interval.stream].append(interval)
    return dict(found)


def between(intervals: Iterable[Interval], begin_ns: int, end_ns: int) -> list[Interval]:
    """Return the intervals that lie wholly between two moments."""
    return [one for one in intervals if one.begin_ns >= begin_ns and one.end_ns <= end_ns]


def overlapping(one: Interval, intervals: Iterable[Interval]) -> list[Interval]:
    """Return those of other streams that ran while *one* did."""
    return [other for other in intervals if other.stream != one.stream and one.overlaps(other)]


def busy_share(intervals: Sequence[Interval], count: int, begin_ns: int, end_ns: int) -> float:
    """Return for what share of a span of time at least *count* streams were busy at once."""
    changes: list[tuple[int, int]] = []
    for interval in intervals:
        begin, end = max(interval.begin_ns, begin_ns), min(interval.end_ns, end_ns)
        if begin < end:
            changes += [(begin, 1), (end, -1)]
    busy_ns, running, since_ns = 0, 0, begin_ns
    for at_ns, change in sorted(changes):
        if running >= count:
            busy_ns += at_ns - since_ns
        running, since_ns = running + change, at_ns
    return busy_ns / (end_ns - begin_ns)


def _interval(first: dict[str, int | float | None], end_ns: int, status: int) -> Interval:
    content = first["content"]
    return Interval(
        stream=int(first["stream"] or 0),
        task=int(first["task"] or 0),
        what=str(first["what"]),
        bytes=int(first["bytes"] or 0),
        begin_ns=int(first["ns"] or 0),
        end_ns=end_ns,
        status=status,
        content=None if content is None else float(content),
    )
