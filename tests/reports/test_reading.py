"""Reading the record of a run: what counts, what is passed over, what is refused."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest

from opferry.reports import RecordError, read_run
from opferry.validation.records import FORMAT
from tests.support.run_records import case_record, every_verdict, run_record, write_record

RUN = run_record()
CASE = case_record()
OUTPUT = every_verdict()[0]["outputs"][0]
TORN = json.dumps(CASE).encode()[:-40]


def test_cases_come_in_row_order_and_the_last_record_of_a_row_counts(tmp_path: Path) -> None:
    """A run that repeats a row leaves two records of it; later rows may come first."""
    path = write_record(
        tmp_path / "run.jsonl",
        run_record(row_count=3),
        case_record(9, "last"),
        case_record(2, "first", "ERROR"),
        case_record(4, "middle", "FAIL"),
        case_record(2, "first", "PASS"),
    )
    run = read_run(path)
    found = [(item.case["row"], item.case["name"], item.status) for item in run.cases()]
    assert found == [(2, "first", "PASS"), (4, "middle", "FAIL"), (9, "last", "PASS")]
    assert (len(run), run.missing_count, run.is_torn) == (3, 0, False)


def test_what_real_comparisons_found_is_read_as_it_stands(tmp_path: Path) -> None:
    """NaN and infinity are words; nothing is lost between writer and reader."""
    cases = every_verdict()
    run = read_run(write_record(tmp_path / "run.jsonl", RUN, *cases))
    assert [item.case for item in run.cases()] == cases
    assert "nan" in {item["actual"] for item in cases[5]["outputs"][0]["worst"]}


def test_the_cases_of_a_resumed_run_belong_to_its_parts(tmp_path: Path) -> None:
    """Each case knows the command and the server of the part that ran it."""
    path = write_record(
        tmp_path / "run.jsonl",
        run_record(row_count=2),
        case_record(2, "one"),
        run_record(row_count=2, reproduce=["again"], target="other:1"),
        case_record(3, "two; rm"),
    )
    run = read_run(path)
    assert [item.run["target"] for item in run.cases()] == ["127.0.0.1:50051", "other:1"]
    assert [item.command for item in run.cases()][1] == "again -t 'two; rm'"
    assert run.common["target"] == "other:1"


@pytest.mark.parametrize("end", [TORN, TORN[:1], TORN + b"\xc3"])
def test_a_line_that_breaks_off_at_the_end_is_passed_over(tmp_path: Path, end: bytes) -> None:
    """A run that is killed while it writes leaves a part of a line, perhaps half a character."""
    run = read_run(write_record(tmp_path / "run.jsonl", run_record(row_count=2), CASE, end))
    assert (len(run), run.missing_count, run.is_torn) == (1, 1, True)


def test_a_line_that_breaks_off_before_a_resumption_is_passed_over(tmp_path: Path) -> None:
    """Who resumes such a run begins a new line."""
    resumed = (TORN + b"\n", RUN, case_record(3, "two"))
    run = read_run(write_record(tmp_path / "run.jsonl", RUN, CASE, *resumed))
    assert [item.case["name"] for item in run.cases()] == ["case", "two"]
    assert run.is_torn


def test_a_last_line_without_its_end_counts(tmp_path: Path) -> None:
    """What is JSON was written whole."""
    path = write_record(tmp_path / "run.jsonl", RUN, json.dumps(CASE).encode())
    run = read_run(path)
    assert (len(run), run.is_torn) == (1, False)


def test_unknown_keys_kinds_and_blank_lines_are_ignored(tmp_path: Path) -> None:
    """A later version may say more."""
    more = ({**RUN, "weather": "fine"}, {"kind": "remark"}, "", {"no kind": 1}, {**CASE, "x": 1})
    assert len(read_run(write_record(tmp_path / "run.jsonl", *more))) == 1


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([], "is empty"),
        (["", ""], "is empty"),
        ([CASE], f"line 1: is no record of a run, format {FORMAT}"),
        ([{"kind": "remark"}, RUN], "line 1: is no record of a run"),
        (["a,b\n1,2"], "line 1: is not JSON"),
        ([b"\x89PNG\r\n"], "line 1: is not JSON"),
        (["[1]"], "line 1: is no JSON object"),
        (["[" * 100_000], "line 1: is not JSON"),
        ([{**RUN, "format": "opferry-results-2"}], f"has the format opferry-results-2; {FORMAT}"),
        ([{"kind": "run"}], "has the format None"),
        ([{key: RUN[key] for key in RUN if key != "target"}], "line 1: has no target"),
        ([{**RUN, "reproduce": "opferry"}], "line 1: has opferry as reproduce"),
        ([RUN, TORN + b"\n", CASE], "line 2: is not JSON"),
        ([RUN, TORN + b"\n"], "line 2: is not JSON"),
        ([RUN, TORN + b"\n", TORN + b"\n", RUN], "line 2: is not JSON"),
        ([RUN, '{"kind": "case", "row": NaN}', CASE], "line 2: is not JSON: NaN is no number"),
        ([RUN, {"kind": "case", "row": 2}], "line 2: has no name"),
        ([RUN, {**CASE, "row": "2"}], "line 2: has 2 as row"),
        ([RUN, {**CASE, "figures": {}}], "line 2: has no precision_status"),
        ([RUN, {**CASE, "outputs": [{"name": "dq"}]}], "line 2: has no short_name"),
        ([RUN, {**CASE, "groups": {"dtype": 4}}], "line 2: has {'dtype': 4} as groups"),
        ([RUN, {**CASE, "outputs": [{**OUTPUT, "figures": {"share": "x"}}]}], "has x as share"),
        ([RUN, {**CASE, "inputs": [7]}], "line 2: has 7 where an object belongs"),
    ],
)
def test_what_is_refused(tmp_path: Path, lines: list[object], said: str) -> None:
    """One line names the file and its line."""
    path = write_record(tmp_path / "run.jsonl", *lines)
    with pytest.raises(RecordError) as caught:
        read_run(path)
    assert said in str(caught.value)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)
    assert str(copy.copy(caught.value)) == str(caught.value)


@pytest.mark.parametrize("name", ["absent.jsonl", "."])
def test_what_is_no_file_is_refused(tmp_path: Path, name: str) -> None:
    """A file that is not there, and a folder."""
    with pytest.raises(RecordError, match="cannot be read: "):
        read_run(tmp_path / name)
