"""What the page shows, as values for its template and as JSON for its scripts."""

from __future__ import annotations

import base64
import json
import shlex
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from math import isfinite
from pathlib import PurePath
from typing import Any, NamedTuple

from opferry.reports.reading import RecordedCase, RecordedRun
from opferry.reports.summary import (
    STATUSES,
    RanBy,
    Standard,
    facts,
    summarise,
    threshold_shown,
)

CHUNK_BYTES = 256 * 1024
"""How much of the cases' records is unpacked at once, about; a broken kernel's may be 200 MB."""

COLUMNS = ("row", "name", "quoted", "part", "status", "error", "output", "kernel", "reason")
"""The values of a case in the table, in their order; the groups follow."""


class Bar(NamedTuple):
    """One value of a group, and its cases."""

    value: str
    total: int
    counts: tuple[tuple[str, int], ...]
    """By verdict; none that is 0."""


FINE = frozenset(("PASS", "EXECUTED"))
"""The verdicts of cases at which nothing is wrong."""


class Page:
    """What the template asks for; cases are read anew each time, so that one is held at a time."""

    def __init__(self, run: RecordedRun) -> None:
        """Count the run's cases.

        Args:
            run: the run.
        """
        self.run = run
        self.name = PurePath(run.common["case_file"]).name or run.path.name
        self.facts = facts(run)
        self.command = shlex.join(run.common.get("command") or run.common["reproduce"])
        self._summary = summarise(run.cases())
        self._rows: list[list[Any]] = []
        self._starts: list[int] = []

    @property
    def counts(self) -> list[tuple[str, int]]:
        """The cases by verdict, in the verdicts' order."""
        return _in_order(self._summary.counts)

    @property
    def passed(self) -> bool:
        """Whether every case that is enabled has passed, and there is one."""
        statuses = set(self._summary.counts) - {"DISABLED"}
        return bool(statuses) and statuses <= FINE and not self.run.missing_count

    @property
    def headline(self) -> str:
        """The verdict on the run."""
        total = len(self.run) + self.run.missing_count - self._summary.counts["DISABLED"]
        passing = self._summary.counts["PASS"]
        if self._summary.counts["EXECUTED"] == total > 0:
            return f"{total:,} cases were executed, and nothing was compared"
        if self.passed and passing == total:
            return f"All {total:,} cases passed" if total > 1 else "The case passed"
        if not total:
            return "No case was enabled, and none has passed"
        return f"{passing:,} of {total:,} cases passed"

    @property
    def natures(self) -> list[tuple[str, str, int]]:
        """What executed cases: in words, on what device, and how many."""
        found: Counter[tuple[str, str]] = Counter()
        for executed, count in self._summary.ran_by.items():
            words = (executed.backend, executed.soc_name, executed.cann_version)
            found[executed.nature, ", ".join(filter(None, words))] += count
        return [(*key, count) for key, count in found.most_common()]

    @property
    def real(self) -> bool:
        """Whether real devices alone executed the cases."""
        return self._summary.real_devices is True

    @property
    def remarks(self) -> list[str]:
        """What a reader must know before he trusts the figures."""
        said = []
        if self.run.missing_count:
            said.append(
                f"{self.run.missing_count:,} of {self.run.common['row_count']:,} rows have no "
                "record: the run ended before them, and this is no pass"
            )
        if len(self.run.parts) > 1:
            said.append(f"the run was resumed: it has {len(self.run.parts)} parts")
        if self.run.is_torn:
            said.append("a line of the record breaks off: the run was killed at a case")
        if any(executed.known_answer == "FAILED" for executed in self._summary.ran_by):
            said.append("the known answer of the operator package was wrong")
        return said

    @property
    def groups(self) -> dict[str, list[Bar]]:
        """The cases by the value of each group."""
        return {
            name: [
                Bar(value, sum(counts.values()), tuple(_in_order(counts)))
                for value, counts in sorted(values.items())
            ]
            for name, values in self._summary.groups.items()
        }

    @property
    def ran_by(self) -> list[tuple[RanBy, int]]:
        """What executed cases, and how many."""
        return self._summary.ran_by.most_common()

    @property
    def standards(self) -> list[tuple[Standard, str]]:
        """What judged outputs, each with its thresholds in words."""
        return [
            (item, ", ".join(f"{name} {threshold_shown(limit)}" for name, limit in item.thresholds))
            for item, _ in self._summary.standards.most_common()
        ]

    def chunks(self) -> Iterator[str]:
        """Yield the cases' records, some at a time; `index` is complete when all are made.

        Each is one JSON object a line, deflated, in Base64.
        """
        self._rows, self._starts = [], []
        lines: list[str] = []
        size = 0
        for recorded in self.run.cases():
            if not lines:
                self._starts.append(len(self._rows))
            self._rows.append(self._row(recorded))
            lines.append(json.dumps(recorded.case, separators=(",", ":")))
            size += len(lines[-1])
            if size >= CHUNK_BYTES:
                yield _deflated(lines)
                lines, size = [], 0
        if lines:
            yield _deflated(lines)

    def index(self) -> str:
        """Return JSON with what the table shows of the cases, and the first case of each chunk."""
        index = {
            "columns": COLUMNS,
            "groups": list(self._summary.groups),
            "commands": [shlex.join(part["reproduce"]) for part in self.run.parts],
            "starts": self._starts,
            "rows": self._rows,
        }
        # no end of an element and no comment may be in it
        return json.dumps(index, separators=(",", ":")).replace("<", "\\u003c")

    def _row(self, recorded: RecordedCase) -> list[Any]:
        case = recorded.case
        errors = [
            (number, output["short_name"])
            for output in case["outputs"]
            if isfinite(number := float(output["figures"].get("max_abs_error", "nan")))
        ]
        error, output = max(errors, default=(None, ""), key=lambda item: item[0] or 0.0)
        groups = {**case["groups"], "standard": recorded.standard}
        return [
            case["row"],
            case["name"],
            shlex.quote(case["name"]),
            self.run.parts.index(recorded.run),
            recorded.status,
            error,
            output if error else "",
            recorded.measured("kernel_us"),
            "" if recorded.status in FINE else recorded.reason,
            *(groups.get(name, "") for name in self._summary.groups),
        ]


def _in_order(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    known = [(status, counts[status]) for status in STATUSES if counts.get(status)]
    return known + [item for item in counts.items() if item[0] not in STATUSES]


def _deflated(lines: list[str]) -> str:
    return base64.b64encode(zlib.compress("\n".join(lines).encode())).decode()
