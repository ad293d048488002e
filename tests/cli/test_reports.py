"""`opferry report` and `opferry diff`, as a user runs them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from xml.etree import ElementTree as Xml

import pytest
from click.testing import CliRunner

from opferry.cli.__main__ import main
from tests.cli.test_validate import opferry
from tests.support.run_records import case_record, every_verdict, write_run


@pytest.fixture
def record(tmp_path: Path) -> Path:
    """The record of a run with a case of each verdict."""
    return write_run(tmp_path / "run.jsonl", every_verdict())


def test_a_page_beside_the_record(record: Path) -> None:
    """Without options a page is written under the record's name, whatever the verdicts are."""
    pytest.importorskip("plotly", reason='the extra "report" is not installed')
    done = opferry("report", record)
    assert done.returncode == 0, done.stderr
    page = record.with_suffix(".html")
    assert done.stdout == f"{page}: 6 cases\n"
    assert "1 of 5 cases passed" in page.read_text()


def test_page_and_xml(record: Path, tmp_path: Path) -> None:
    """Both, where they are asked for."""
    pytest.importorskip("plotly", reason='the extra "report" is not installed')
    page, junit = tmp_path / "page.html", tmp_path / "junit.xml"
    done = opferry("report", record, "-o", page, "--junit", junit)
    assert done.returncode == 0, done.stderr
    assert Xml.parse(junit).getroot().attrib["tests"] == "6"  # noqa: S314 - our own file
    assert page.read_text().startswith("<!doctype html>")
    assert not record.with_suffix(".html").exists()


def test_xml_alone_needs_no_extra(record: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A build server can do without the page; who wants it without the extra is told."""
    monkeypatch.setitem(sys.modules, "jinja2", None)
    junit = record.with_name("junit.xml")
    done = CliRunner().invoke(main, ["report", str(record), "--junit", str(junit)])
    assert done.exit_code == 0
    assert {path.name for path in record.parent.iterdir()} == {"run.jsonl", "junit.xml"}
    done = CliRunner().invoke(main, ["report", str(record)])
    assert done.exit_code == 2
    wanted = "error: the page needs the extra \"report\": pip install '.[report]' in a checkout\n"
    assert done.stderr == wanted


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "cannot be read: No such file or directory"),
        ("", "is empty"),
        ("testcase_name,api_name\n", "line 1: is not JSON: "),
        ('{"kind": "run", "format": "opferry-results-9"}\n', "line 1: has the format"),
    ],
)
def test_wrong_files_are_refused_in_one_line(tmp_path: Path, text: str | None, said: str) -> None:
    """By both commands, with exit status 2 and nothing written."""
    wrong, right = tmp_path / "wrong.jsonl", write_run(tmp_path / "right.jsonl", [case_record()])
    if text is not None:
        wrong.write_text(text)
    for words in (["report", wrong], ["diff", right, wrong], ["diff", wrong, right]):
        done = opferry(*words)
        assert done.returncode == 2
        assert done.stderr.startswith(f"error: {wrong}")
        assert said in done.stderr
        assert len(done.stderr.splitlines()) == 1
        assert done.stdout == ""
    assert not list(tmp_path.glob("*.html"))


@pytest.mark.parametrize("option", ["-o", "--junit"])
def test_the_record_is_not_overwritten(record: Path, option: str) -> None:
    """A report under the record's own name is refused."""
    before = record.read_bytes()
    done = opferry("report", record, option, record)
    assert done.returncode == 2
    assert "is the record; give the report another name" in done.stderr
    assert record.read_bytes() == before


def test_a_folder_that_is_not_there(record: Path, tmp_path: Path) -> None:
    """One line, exit status 2."""
    done = opferry("report", record, "--junit", tmp_path / "none" / "junit.xml")
    assert done.returncode == 2
    assert done.stderr.endswith("junit.xml: cannot be written: No such file or directory\n")


def test_diff_of_a_run_with_itself(record: Path) -> None:
    """Nothing broke: exit status 0."""
    done = opferry("diff", record, record)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("5 cases in both; 4 still failing\n")


def test_diff_tells_what_broke(record: Path, tmp_path: Path) -> None:
    """First what the runs do not have in common, then the cases; exit status 1."""
    changed = every_verdict()[:-1]
    changed[0]["figures"] |= {"precision_status": "FAIL", "reason": "wrong [red]everywhere[/]"}
    changed[1]["figures"]["kernel_us"] = 8000.0
    other = write_run(tmp_path / "other.jsonl", changed, settings__seed=8)
    done = opferry("diff", record, other)
    assert done.returncode == 1, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == f"{record} to {other}"
    places = [done.stdout.index(word) for word in ("seed", "broken", "missing", "still", "slower")]
    assert places == sorted(places)
    assert "wrong [red]everywhere[/]" in done.stdout
    assert "9.85 x" in done.stdout
    assert "4 cases in both; 1 broken, 1 missing, 3 still failing, 1 slower" in lines
    assert opferry("diff", record, other, "--slower", "20").stdout.count("slower") == 0


def test_diff_as_json(record: Path, tmp_path: Path) -> None:
    """All that is known, by name."""
    cases = every_verdict()
    cases[0]["outputs"][0]["digest"] = "0" * 16
    other = write_run(tmp_path / "other.jsonl", cases)
    done = opferry("diff", record, other, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["changed_bits"] == [
        {"name": "bsnd_fp32_passes", "status": "PASS", "outputs": ["dq"]}
    ]
    assert found["is_worse"] is False
    assert found["both_count"] == 5
    assert [item["name"] for item in found["still_failing"]] == [
        *("bsnd_fp32_wrong_last_head", "tnd_fp16_refused", "tnd_fp16_not_run", "tnd_fp16_nan"),
    ]


def test_diff_lists_all_that_broke_and_some_of_the_rest(tmp_path: Path) -> None:
    """A long list of what did not get worse is cut, and says so."""
    before = [case_record(row, f"case_{row}", "FAIL" if row < 42 else "PASS") for row in range(82)]
    after = [case_record(row, f"case_{row}", "FAIL") for row in range(82)]
    first = write_run(tmp_path / "a.jsonl", before)
    done = opferry("diff", first, write_run(tmp_path / "b.jsonl", after))
    assert done.returncode == 1
    assert done.stdout.count("broken") == 40 + 1
    assert "and 22 more; --json lists all" in done.stdout


@pytest.mark.parametrize("words", [["--slower", "1"], ["--slower", "x"]])
def test_diff_refuses_a_senseless_ratio(record: Path, words: list[str]) -> None:
    """A ratio is more than 1."""
    done = opferry("diff", record, record, *words)
    assert done.returncode == 2
    assert "--slower" in done.stderr
