"""A run as JUnit XML, which build servers understand.

One testsuite; one testcase for each row. FAIL is a failure, ERROR and NOT RUN are errors, DISABLED
is skipped. Rows that a run never came to are one error more: what was not run is no pass.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from xml.etree import ElementTree as Xml

from opferry.reports.problems import ReportError
from opferry.reports.reading import RecordedCase, RecordedRun
from opferry.reports.summary import facts, shown, summarise

OUTCOMES = {"FAIL": "failure", "ERROR": "error", "NOT RUN": "error", "DISABLED": "skipped"}
"""The element that tells a verdict; a PASS has none."""

WORST_COUNT = 5
"""The worst elements of an output that are told."""

_NOT_IN_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def write_junit(path: str | os.PathLike[str], run: RecordedRun) -> None:
    """Write a run as JUnit XML.

    Args:
        path: the file; an old one is replaced.
        run: what `read_run` returned.

    Raises:
        ReportError: if it cannot be written.
    """
    outer = Xml.Element("testsuites")
    suite = Xml.SubElement(outer, "testsuite")
    properties = Xml.SubElement(suite, "properties")
    for name, value in _properties(run).items():
        _add(properties, "property", name=name, value=value)
    counts = Counter({"tests": len(run), "failure": 0, "error": 0, "skipped": 0})
    seconds = 0.0
    for recorded in run.cases():
        time = _seconds(recorded)
        case = _add(
            suite,
            "testcase",
            classname=_class_name(recorded),
            name=recorded.case["name"],
            time=f"{time:.6f}",
        )
        seconds += time
        outcome = "error" if recorded.status not in ("PASS", "EXECUTED", *OUTCOMES) else ""
        outcome = OUTCOMES.get(recorded.status, outcome)
        if outcome:
            counts[outcome] += 1
            _tell(case, outcome, recorded.status, recorded.reason, _text(recorded))
    if run.missing_count:
        counts.update(["tests", "error"])
        case = _add(suite, "testcase", classname="opferry", name="rows without a record", time="0")
        text = f"the run ended before {run.missing_count} of {run.common['row_count']} rows"
        _tell(case, "error", "NOT RUN", text, text)
    totals = {
        "name": run.common["case_file"],
        "tests": str(counts["tests"]),
        "failures": str(counts["failure"]),
        "errors": str(counts["error"]),
        "skipped": str(counts["skipped"]),
        "time": f"{seconds:.6f}",
    }
    _set(outer, totals)
    # without a zone, as the schema has it
    _set(suite, {**totals, "timestamp": run.parts[0]["started"][:19]})
    _set(suite, {"hostname": run.common["target"]})
    Xml.indent(outer)
    try:
        Xml.ElementTree(outer).write(path, encoding="utf-8", xml_declaration=True)
    except OSError as error:
        raise ReportError(f"{os.fspath(path)}: cannot be written: {error.strerror}") from error


def xml_text(text: str) -> str:
    """Return a text as XML can hold it: other characters are written out as in Python."""
    return _NOT_IN_XML.sub(lambda found: ascii(found[0])[1:-1], text)


def _properties(run: RecordedRun) -> dict[str, str]:
    found = facts(run)
    for number, executed in enumerate(summarise(run.cases()).ran_by):
        end = f" {number + 1}" if number else ""
        for name, value in executed._asdict().items():
            if value != "":
                found[f"executed by{end}: {name.replace('_', ' ')}"] = shown(value)
    return found


def _class_name(recorded: RecordedCase) -> str:
    groups = recorded.case["groups"]
    words = (recorded.case["operator"], groups.get("layout"), groups.get("dtype"))
    # a dot begins another package for those who read it
    return ".".join(word.replace(".", "_") for word in words if word)


def _seconds(recorded: RecordedCase) -> float:
    """Return how long was worked on the case: all its steps and runs, waiting left out."""
    runs = recorded.measured("run_count") or 1.0
    steps = ("generate_us", "golden_us", "compare_us", "host_to_device_us", "device_to_host_us")
    work_us = sum(recorded.measured(name) or 0.0 for name in steps)
    return (work_us + runs * (recorded.measured("kernel_us") or 0.0)) / 1e6


def _text(recorded: RecordedCase) -> str:
    """Return what is told of a case that did not pass: reason, worst elements, how to repeat it."""
    lines = [recorded.reason] if recorded.reason else []
    for output in recorded.case["outputs"]:
        if output["status"] not in ("FAIL", "MISSING"):
            continue
        said = f": {output['reason']}" if output["reason"] else ""
        lines += ["", f"{output['short_name']} ({output['name']}) {output['status']}{said}"]
        for item in output["worst"][:WORST_COUNT]:
            lines.append(
                f"  {item['index']}: got {_exactly(item['actual'])}, "
                f"golden {_exactly(item['golden'])}, "
                f"error {shown(item['abs_error'])}, {_ulps(item['ulps'])}"
            )
    kernel = recorded.measured("kernel_us")
    if kernel is not None:
        lines += ["", f"kernel: {kernel:.1f} µs"]
    return "\n".join([*lines, "", "to run it alone:", f"  {recorded.command}"])


def _exactly(value: float | str) -> str:
    """Return a value with nine digits, which tell all of float32."""
    return f"{value:.9g}" if isinstance(value, float) else str(value)


def _ulps(count: int | None) -> str:
    return "no distance" if count is None else f"{count} ULP"


def _tell(case: Xml.Element, outcome: str, status: str, reason: str, text: str) -> None:
    if outcome == "skipped":
        _add(case, outcome, message=reason)
        return
    _add(case, outcome, type=status, message=reason).text = xml_text(text)


def _add(parent: Xml.Element, tag: str, **attributes: str) -> Xml.Element:
    element = Xml.SubElement(parent, tag)
    _set(element, attributes)
    return element


def _set(element: Xml.Element, attributes: dict[str, str]) -> None:
    for name, value in attributes.items():
        element.set(name, xml_text(value))
