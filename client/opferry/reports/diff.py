"""What changed from one run to another."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from opferry.reports.reading import RecordedCase, RecordedRun
from opferry.reports.summary import RanBy, facts, ran_by, shown

SLOWER = 1.2
"""The ratio of two kernel times from which on one is slower."""

FLOOR_US = 5.0
"""The least difference of two kernel times, in microseconds, that is told."""

ABOUT_TIME = ("begun", "resumed")
"""What always differs, and says nothing."""


class Difference(NamedTuple):
    """Something that the two runs do not have in common."""

    name: str
    before: str
    after: str


class Verdicts(NamedTuple):
    """The verdicts on a case in both runs; "" where it has none."""

    name: str
    before: str
    after: str
    reason: str = ""
    """Why it is no PASS in the second run, or was none in the first if the second has none."""


class ChangedBits(NamedTuple):
    """Outputs whose bits changed though inputs and verdict did not."""

    name: str
    status: str
    outputs: tuple[str, ...]
    """Their short names."""


class KernelTimes(NamedTuple):
    """The medians of a case's kernel times, in microseconds."""

    name: str
    before_us: float
    after_us: float

    @property
    def ratio(self) -> float:
        """The second over the first."""
        return self.after_us / self.before_us


@dataclass
class RunDifference:
    """What changed from one run to another. Cases are matched by name.

    A case that is DISABLED in a run is not in it. NOT RUN is no pass.
    """

    settings: list[Difference] = field(default_factory=list)
    """Case file, settings, server and operator packages that differ."""
    broken: list[Verdicts] = field(default_factory=list)
    """Passed before, and do not pass now."""
    missing: list[Verdicts] = field(default_factory=list)
    """Were there before, and are not there now."""
    fixed: list[Verdicts] = field(default_factory=list)
    """Did not pass before, and pass now."""
    still_failing: list[Verdicts] = field(default_factory=list)
    """Did not pass before, and do not pass now."""
    new: list[Verdicts] = field(default_factory=list)
    """Are there now, and were not there before."""
    changed_bits: list[ChangedBits] = field(default_factory=list)
    """Give other bits for the same inputs, at the same verdict."""
    other_inputs: list[str] = field(default_factory=list)
    """Had other input data, so that their bits say nothing."""
    slower: list[KernelTimes] = field(default_factory=list)
    """Take longer now, the worst first."""
    faster: list[KernelTimes] = field(default_factory=list)
    """Take less time now, the best first."""
    both_count: int = 0
    """The cases that are in both."""

    @property
    def is_worse(self) -> bool:
        """Whether a case broke or is missing."""
        return bool(self.broken or self.missing)


def compare_runs(
    before: RecordedRun,
    after: RecordedRun,
    *,
    slower: float = SLOWER,
    floor_us: float = FLOOR_US,
) -> RunDifference:
    """Return what changed from one run to another.

    Args:
        before: the first run.
        after: the second run.
        slower: the ratio of two kernel times from which on one is slower; more than 1. Kernel times
            of different machines say little about each other.
        floor_us: the least difference of kernel times that is told, in microseconds.
    """
    old, new = _Side(before), _Side(after)
    found = RunDifference(_differences(old.facts(), new.facts()))
    for name, first in old.cases.items():
        second = new.cases.get(name)
        if second is None:
            found.missing.append(Verdicts(name, first.status, "", first.reason))
            continue
        found.both_count += 1
        _note_verdicts(found, name, first, second)
        _note_bits(found, name, first, second)
        _note_times(found, KernelTimes(name, first.kernel_us, second.kernel_us), slower, floor_us)
    for name, second in new.cases.items():
        if name not in old.cases:
            found.new.append(Verdicts(name, "", second.status, second.reason))
    found.slower.sort(key=lambda times: -times.ratio)
    found.faster.sort(key=lambda times: times.ratio)
    return found


FINE = ("PASS", "EXECUTED")
"""The verdicts of cases at which nothing is wrong."""


class _Seen(NamedTuple):
    """As much of a case as is compared."""

    status: str
    reason: str
    inputs: Mapping[str, str]
    outputs: Mapping[str, tuple[str, str]]
    kernel_us: float


class _Side:
    """One of the two runs."""

    def __init__(self, run: RecordedRun) -> None:
        self.cases: dict[str, _Seen] = {}
        self._ran_by: set[RanBy] = set()
        self._run = run
        for recorded in run.cases():
            if recorded.status == "DISABLED":
                continue
            self.cases[recorded.case["name"]] = _seen(recorded)
            executed = ran_by(recorded.case["figures"])
            if executed is not None:
                self._ran_by.add(executed)

    def facts(self) -> dict[str, str]:
        """Return what the cases have in common and what executed them, in words."""
        found = {name: text for name, text in facts(self._run).items() if name not in ABOUT_TIME}
        for field_name in RanBy._fields:
            texts = {shown(getattr(item, field_name)) for item in self._ran_by} - {""}
            if texts:
                found[f"executed by: {field_name.replace('_', ' ')}"] = ", ".join(sorted(texts))
        return found


def _seen(recorded: RecordedCase) -> _Seen:
    case = recorded.case
    return _Seen(
        recorded.status,
        recorded.reason,
        {item["name"]: item["digest"] for item in case["inputs"] if item["digest"]},
        {
            item["short_name"]: (item["status"], item["digest"])
            for item in case["outputs"]
            if item["digest"]
        },
        recorded.measured("kernel_us") or 0.0,
    )


def _differences(before: Mapping[str, str], after: Mapping[str, str]) -> list[Difference]:
    return [
        Difference(name, before.get(name, ""), after.get(name, ""))
        for name in {**before, **after}
        if before.get(name, "") != after.get(name, "")
    ]


def _note_verdicts(found: RunDifference, name: str, first: _Seen, second: _Seen) -> None:
    passed, passes = first.status in FINE, second.status in FINE
    if passed and passes:
        return
    where = found.broken if passed else found.fixed if passes else found.still_failing
    where.append(Verdicts(name, first.status, second.status, second.reason or first.reason))


def _note_bits(found: RunDifference, name: str, first: _Seen, second: _Seen) -> None:
    common = first.inputs.keys() & second.inputs.keys()
    if any(first.inputs[item] != second.inputs[item] for item in common):
        found.other_inputs.append(name)
        return
    changed = tuple(
        output
        for output, (status, digest) in second.outputs.items()
        if output in first.outputs
        and first.outputs[output][0] == status
        and first.outputs[output][1] != digest
    )
    if changed and first.status == second.status:
        found.changed_bits.append(ChangedBits(name, second.status, changed))


def _note_times(found: RunDifference, times: KernelTimes, slower: float, floor_us: float) -> None:
    first, second = times.before_us, times.after_us
    if not first or not second or abs(second - first) < floor_us:
        return
    if second >= first * slower:
        found.slower.append(times)
    elif first >= second * slower:
        found.faster.append(times)
