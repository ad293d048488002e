"""JUnit XML: its structure as build servers check it, and what stands in it."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree as Xml

import pytest

from opferry.reports import ReportError, read_run, write_junit
from tests.support.run_records import case_record, every_verdict, write_run

ATTRIBUTES = {
    "testsuites": {"name", "tests", "failures", "errors", "skipped", "time"},
    "testsuite": {
        *("name", "tests", "failures", "errors", "skipped", "time", "timestamp", "hostname"),
    },
    "properties": set(),
    "property": {"name", "value"},
    "testcase": {"classname", "name", "time"},
    "failure": {"type", "message"},
    "error": {"type", "message"},
    "skipped": {"message"},
}
"""What each element has, and has to have, in the schema that Jenkins and others share."""

CHILDREN = {
    "testsuites": {"testsuite"},
    "testsuite": {"properties", "testcase"},
    "properties": {"property"},
    "testcase": {"failure", "error", "skipped"},
}
"""What may stand in each element."""


def suite_of(tmp_path: Path, path: Path) -> Xml.Element:
    """Write the XML of a record and return its testsuite, whose structure is checked."""
    target = tmp_path / "junit.xml"
    write_junit(target, read_run(path))
    root = Xml.parse(target).getroot()  # noqa: S314 - our own file
    assert root.tag == "testsuites"
    for element in root.iter():
        assert set(element.attrib) == ATTRIBUTES[element.tag]
        assert {child.tag for child in element} <= CHILDREN.get(element.tag, set())
    (suite,) = root
    assert [child.tag for child in suite][:1] == ["properties"]
    cases = suite.findall("testcase")
    assert int(suite.attrib["tests"]) == len(cases)
    for plural, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        assert int(suite.attrib[plural]) == len(suite.findall(f"testcase/{tag}"))
    return suite


def test_every_verdict(tmp_path: Path) -> None:
    """A FAIL is a failure; what was refused or not run is an error; DISABLED is skipped."""
    suite = suite_of(tmp_path, write_run(tmp_path / "run.jsonl", every_verdict()))
    outcomes = {
        case.attrib["name"]: [child.tag for child in case] for case in suite.findall("testcase")
    }
    assert outcomes == {
        "bsnd_fp32_passes": [],
        "bsnd_fp32_wrong_last_head": ["failure"],
        "tnd_fp16_refused": ["error"],
        "tnd_fp16_not_run": ["error"],
        "tnd_fp16_disabled": ["skipped"],
        "tnd_fp16_nan": ["failure"],
    }
    case = suite.find("testcase")
    assert case is not None
    assert case.attrib["classname"] == "apply_rotary_pos_emb_grad.BSND.float32"
    # host_to_device, three runs of the kernel, device_to_host
    assert float(case.attrib["time"]) == pytest.approx(0.002437, abs=1e-6)
    assert suite.attrib["timestamp"] == "2026-03-01T09:30:00"


def test_a_failure_tells_what_is_wrong_and_how_to_repeat_it(tmp_path: Path) -> None:
    """Reason, worst elements and the command that runs the row alone."""
    suite = suite_of(tmp_path, write_run(tmp_path / "run.jsonl", every_verdict()))
    failure = suite.find("testcase/failure")
    assert failure is not None
    assert failure.attrib["type"] == "FAIL"
    assert failure.attrib["message"].startswith("grad_query: ")
    text = failure.text or ""
    assert "dq (grad_query) FAIL: " in text
    assert " ULP" in text
    assert "got nan, golden " in text
    command = "opferry validate -i cases/rotary.csv --seed 7 -t bsnd_fp32_wrong_last_head"
    assert text.endswith(command)


def test_what_ran_it_stands_in_the_properties(tmp_path: Path) -> None:
    """Standard, edition, seed, backend, chip, package and versions."""
    chip = {"real_device": True, "backend": "aclnn", "soc_name": "Ascend910_93"}
    chip |= {"operator_package": "mine", "package_digest": "cd" * 32, "cann_version": "8.2"}
    cases = every_verdict()
    cases[0]["figures"] |= chip
    suite = suite_of(tmp_path, write_run(tmp_path / "run.jsonl", cases))
    found = {item.attrib["name"]: item.attrib["value"] for item in suite.iter("property")}
    assert found["standard"] == "mixed"
    assert found["edition"] == "current"
    assert found["seed"] == "7"
    assert found["numpy (server)"] == "2.4.6"
    assert found["ran on"] == "the reference, not a device"
    assert {"Ascend910_93", "mine", "cd" * 32, "8.2"} <= set(found.values())


def test_rows_that_a_run_never_came_to_are_an_error(tmp_path: Path) -> None:
    """What was not run is no pass."""
    path = write_run(tmp_path / "run.jsonl", [case_record()], row_count=4)
    suite = suite_of(tmp_path, path)
    assert suite.attrib["errors"] == "1"
    error = suite.find("testcase/error")
    assert error is not None
    assert error.attrib["message"] == "the run ended before 3 of 4 rows"


def test_characters_that_xml_does_not_know(tmp_path: Path) -> None:
    """Control characters, lone surrogates and markup in names and reasons do no harm."""
    hostile = "a\x00b\x1b[31m\ud800\uffff<&>\"']]></failure>\n"
    path = write_run(tmp_path / "run.jsonl", [case_record(2, hostile, "FAIL", hostile)])
    suite = suite_of(tmp_path, path)
    failure = suite.find("testcase/failure")
    assert failure is not None
    kept = "a\\x00b\\x1b[31m\\ud800\\uffff<&>\"']]></failure>\n"
    assert suite.findall("testcase")[0].attrib["name"] == kept
    assert kept in (failure.text or "")


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    """One line names it."""
    run = read_run(write_run(tmp_path / "run.jsonl", [case_record()]))
    with pytest.raises(ReportError, match=r"none/junit\.xml: cannot be written: No such file"):
        write_junit(tmp_path / "none" / "junit.xml", run)
