"""What the cases of a run have in common, and how many have which verdict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import frexp
from typing import Any, NamedTuple

from opferry.reports.reading import RecordedCase, RecordedRun
from opferry.validation.outcome import CaseStatus

STATUSES = tuple(status.value for status in CaseStatus)
"""The verdicts, in their order."""

OF_ONE_OUTPUT = ("max_abs_error",)
"""Thresholds of `mixed` that follow from the output's own golden."""


class RanBy(NamedTuple):
    """What executed cases; empty words where there is nothing to say."""

    backend: str
    real_device: bool
    device: str
    soc_name: str
    cann_version: str
    operator_package: str
    package_digest: str
    known_answer: str
    library_file: str

    @property
    def nature(self) -> str:
        """What kind of machine it is, in words."""
        return nature(self.backend, self.real_device)


class Standard(NamedTuple):
    """The standard that judged outputs of one dtype, and its thresholds."""

    name: str
    dtype: str
    thresholds: tuple[tuple[str, Any], ...]


@dataclass
class Summary:
    """What a run amounts to."""

    counts: Counter[str] = field(default_factory=Counter)
    """The cases by verdict."""
    groups: dict[str, dict[str, Counter[str]]] = field(default_factory=dict)
    """The cases by verdict, for each value of each group; the last group is the standard."""
    ran_by: Counter[RanBy] = field(default_factory=Counter)
    """The cases by what executed them."""
    standards: Counter[Standard] = field(default_factory=Counter)
    """The outputs by what judged them."""

    @property
    def real_devices(self) -> bool | None:
        """Whether real devices alone ran the cases; None if nothing ran."""
        return all(item.real_device for item in self.ran_by) if self.ran_by else None


def nature(backend: str, real_device: bool) -> str:
    """Return in words whether a backend's results are those of a device."""
    if real_device:
        return "a real device"
    return "the reference, not a device" if backend == "cpu" else "simulated, not a device"


def ran_by(figures: Mapping[str, Any]) -> RanBy | None:
    """Return what executed a case, by its figures; None if nothing did."""
    if not figures.get("backend"):
        return None
    values: dict[str, Any] = {name: figures.get(name) or "" for name in RanBy._fields}
    return RanBy(**{**values, "real_device": figures.get("real_device") is True})


def summarise(cases: Iterable[RecordedCase]) -> Summary:
    """Count the cases of a run.

    Args:
        cases: what `RecordedRun.cases` yields.
    """
    found = Summary()
    by_standard: dict[str, Counter[str]] = {}
    for recorded in cases:
        case, status = recorded.case, recorded.status
        found.counts[status] += 1
        for group, value in case["groups"].items():
            found.groups.setdefault(group, {}).setdefault(value, Counter())[status] += 1
        standard = recorded.standard
        by_standard.setdefault(standard, Counter())[status] += 1
        executed = ran_by(case["figures"])
        if executed is not None:
            found.ran_by[executed] += 1
        for output in case["outputs"]:
            if output["thresholds"] or output["figures"]:
                thresholds = {
                    name: limit
                    for name, limit in output["thresholds"].items()
                    if not ("floor" in output["thresholds"] and name in OF_ONE_OUTPUT)
                }
                found.standards[Standard(standard, output["dtype"], (*thresholds.items(),))] += 1
    found.groups["standard"] = by_standard
    return found


def facts(run: RecordedRun) -> dict[str, str]:
    """Return what is known of a run beside its cases, in words, by name."""
    common = run.common
    server, settings = common["server"], common["settings"]
    backend = str(server.get("backend", ""))
    named = {
        "case file": common["case_file"],
        "case file SHA-256": common["case_file_sha256"],
        "rows chosen": common["row_count"],
        "begun": run.parts[0]["started"],
        "resumed": ", ".join(part["started"] for part in run.parts[1:]),
        "server": common["target"],
        "backend": backend,
        "ran on": nature(backend, server.get("real_device") is True) if backend else "",
        "reference kernel": server.get("reference_kernel"),
        "workers": ", ".join(
            " on ".join(str(worker.get(name, "")) for name in ("name", "device"))
            for worker in server.get("workers") or ()
        ),
        "opferry (client)": common["opferry_version"],
        "opferry (server)": server.get("opferry_version"),
        **{f"{name} (server)": text for name, text in (server.get("versions") or {}).items()},
        **{name.replace("_", " "): value for name, value in settings.items()},
    }
    return {name: shown(value) for name, value in named.items() if value not in ("", None)}


def shown(value: object) -> str:
    """Return a value of a record as a person reads it."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def threshold_shown(value: object) -> str:
    """Return a threshold as a person reads it: most are powers of two."""
    if isinstance(value, float) and 0 < value < 1:
        mantissa, exponent = frexp(value)
        if mantissa == 0.5:
            return f"2^{exponent - 1}"
    return shown(value)
