"""How doctor shows what it found: a table for people, JSON for programs."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from opferry_server.doctor.abi import Agreement, Comparison, counts, is_verified
from opferry_server.doctor.examination import Examination
from opferry_server.doctor.outcomes import Check, Outcome

_OUTCOME_WIDTH = max(len(outcome.value) for outcome in Outcome)
_NARROWEST = 40


def examination_text(examination: Examination, width: int | None) -> str:
    """Return the table of all checks and the verdict.

    Args:
        examination: what was found.
        width: characters of a line; None: lines as long as their text.
    """
    name_width = max(len(check.name) for check in examination.checks if len(check.name) < 32)
    lines, group = [], ""
    for check in examination.checks:
        if check.group != group:
            group = check.group
            lines += ["", group]
        lines += _check_lines(check, name_width, width)
    return "\n".join([*lines[1:], "", *_wrapped(verdict(examination), "", width), ""])


def verdict(examination: Examination) -> str:
    """Return in one sentence whether the backend starts."""
    failed = examination.failed
    if examination.has_nothing:
        return (
            "aclnn cannot start: this machine has neither an NPU's device nodes nor CANN. "
            "The backend cpu runs here: opferry-server"
        )
    if failed:
        what = f"{len(failed)} check{'s' if len(failed) > 1 else ''} failed"
        return f"aclnn will not start: {what}; begin with {failed[0].name}"
    where = "on a simulator, no device" if examination.simulated else "on this host"
    return f"aclnn will start {where}"


def examination_fields(examination: Examination) -> dict[str, Any]:
    """Return what --json prints."""
    checks = [asdict(check) | {"outcome": check.outcome.value} for check in examination.checks]
    return {
        "will_start": examination.will_start,
        "simulated": examination.simulated,
        "verdict": verdict(examination),
        "checks": checks,
    }


def comparison_text(comparisons: Sequence[Comparison], header_count: int) -> str:
    """Return the table of `doctor --abi` and its counts."""
    name_width = max(len(item.name) for item in comparisons)
    verb_width = max(len(agreement.value) for agreement in Agreement)
    lines, kind = [], ""
    for item in comparisons:
        if item.kind != kind:
            kind = item.kind
            lines += ["", {"status": "statuses"}.get(kind, f"{kind}s")]
        files = ", ".join(place.file for place in item.places)
        said = f"{item.agreement.value:{verb_width}}  {item.name:{name_width}}  {item.source:8}"
        lines.append(f"  {said}  {files}".rstrip())
        if item.agreement is Agreement.DIFFERS:
            lines += _difference_lines(item)
    lines += ["", f"{header_count} headers read"]
    for source, table in counts(comparisons).items():
        said = ", ".join(f"{count} {agreement}" for agreement, count in table.items())
        lines.append(f"  {source}: {said}")
    return "\n".join([*lines[1:], comparison_verdict(comparisons), ""])


def comparison_verdict(comparisons: Iterable[Comparison]) -> str:
    """Return in one sentence whether the headers have all that the backend relies on."""
    items = list(comparisons)
    if is_verified(items):
        return "all functions and constants that the backend uses agree with these headers"
    differ = [item.name for item in items if item.agreement is Agreement.DIFFERS]
    absent = [
        item.name for item in items if item.agreement is Agreement.NOT_FOUND and item.must_be_found
    ]
    parts = [f"{len(differ)} differ: {', '.join(differ)}"] if differ else []
    parts += [f"{len(absent)} were not found: {', '.join(absent)}"] if absent else []
    return "not verified; " + "; ".join(parts)


def comparison_fields(comparisons: Sequence[Comparison], header_count: int) -> dict[str, Any]:
    """Return what --abi --json prints."""
    return {
        "verified": is_verified(comparisons),
        "verdict": comparison_verdict(comparisons),
        "headers": header_count,
        "counts": counts(comparisons),
        "entries": [asdict(item) | {"agreement": item.agreement.value} for item in comparisons],
    }


def _check_lines(check: Check, name_width: int, width: int | None) -> list[str]:
    head = f"  {check.outcome.value:{_OUTCOME_WIDTH}}  {check.name:{name_width}}  "
    margin = " " * (2 + _OUTCOME_WIDTH + 2 + name_width + 2)
    lines = _wrapped(check.found, margin, width)
    if len(head) > len(margin):
        lines = [head.rstrip(), *lines]
    else:
        lines[0] = head + lines[0][len(margin) :]
    if check.remedy:
        remedy = _wrapped(f"remedy: {check.remedy}", margin, width)
        lines += remedy
    return lines


def _wrapped(text: str, margin: str, width: int | None) -> list[str]:
    if width is None or width - len(margin) < _NARROWEST:
        return [margin + text]
    return textwrap.wrap(
        text,
        width,
        initial_indent=margin,
        subsequent_indent=margin,
        break_long_words=False,
        break_on_hyphens=False,
    ) or [margin]


def _difference_lines(item: Comparison) -> list[str]:
    lines = [f"      ours:    {item.ours}"]
    for place in item.places:
        lines.append(f"      header:  {place.said or place.trouble}")
        lines.append(f"               {place.text}")
    return lines
