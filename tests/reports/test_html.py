"""The page as text: what stands in it, that it loads nothing, and that text stays text."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import sys
import zlib
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from opferry.reports import ReportError, read_run, write_html
from opferry.validation.records import CaseRecord
from tests.support.run_records import case_record, every_verdict, write_run

pytest.importorskip("jinja2", reason='the extra "report" is not installed')
pytest.importorskip("plotly", reason='the extra "report" is not installed')

LOADING = {"src", "href", "srcset", "action", "data", "poster", "background", "formaction"}
"""The attributes by which a page loads something."""

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>{{ 7*7 }}\x00\ud800'\"&"


class Reader(HTMLParser):
    """Takes a page apart."""

    def __init__(self) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data: str) -> None:
        if self.cdata_elem == "script":
            self.scripts[-1] += data
        else:
            self.text += data


def read(path: Path) -> Reader:
    reader = Reader()
    reader.feed(path.read_text("utf-8"))
    return reader


def written(tmp_path: Path, cases: list[CaseRecord], **changes: Any) -> Reader:
    """Return the page of a run, taken apart."""
    page = tmp_path / "run.html"
    write_html(page, read_run(write_run(tmp_path / "run.jsonl", cases, **changes)))
    return read(page)


def records_in(page: Reader) -> list[Any]:
    """Return the cases' records as the page's own script unpacks them."""
    chunks = [base64.b64decode(line) for line in page.scripts[1].split()]
    return [json.loads(line) for chunk in chunks for line in zlib.decompress(chunk).splitlines()]


def test_the_page_loads_nothing(tmp_path: Path) -> None:
    """No element points anywhere, no style loads, and the page forbids itself the network."""
    page = written(tmp_path, every_verdict())
    assert not [item for item in page.elements if LOADING & item[1].keys()]
    assert {tag for tag, _ in page.elements} & {"link", "iframe", "object", "embed", "img"} == set()
    style = (tmp_path / "run.html").read_text("utf-8").partition("</style>")[0]
    assert "url(" not in style
    assert "@import" not in style
    (policy,) = [
        attributes["content"]
        for tag, attributes in page.elements
        if tag == "meta" and "http-equiv" in attributes
    ]
    assert policy is not None
    assert policy.startswith("default-src 'none'; script-src 'sha256-")


def test_only_the_scripts_of_the_page_may_run(tmp_path: Path) -> None:
    """The policy names the digests of plotly and of the page's own script, and nothing else."""
    page = written(tmp_path, every_verdict())
    kinds = [attributes.get("type") for tag, attributes in page.elements if tag == "script"]
    assert kinds == ["text/plain", "text/plain", "application/json", None]
    policy = next(item[1]["content"] for item in page.elements if "http-equiv" in item[1])
    allowed = re.findall(r"'sha256-([^']+)'", policy or "")
    digests = [hashlib.sha256(page.scripts[place].encode()).digest() for place in (0, 3)]
    assert allowed == [base64.b64encode(digest).decode() for digest in digests]
    assert not [item for item in page.elements if any(name.startswith("on") for name in item[1])]


def test_hostile_text_stays_text(tmp_path: Path) -> None:
    """Names, reasons, groups, settings and cells cannot end a script or begin an element."""
    case = case_record(2, HOSTILE, "FAIL", HOSTILE)
    case["groups"] = {HOSTILE: HOSTILE}
    case["columns"] = {HOSTILE: HOSTILE}
    changes = {"case_file": HOSTILE, "settings__standard": HOSTILE, "target": HOSTILE}
    calm = written(tmp_path, [case_record(2, "calm", "FAIL", "calm")])
    page = written(tmp_path, [case], **changes)
    assert len(page.scripts) == len(calm.scripts) == 4
    tags = {tag for tag, _ in page.elements}
    assert tags <= {tag for tag, _ in calm.elements}
    assert HOSTILE.replace("\ud800", "?").replace("\x00", "") in page.text.replace("\x00", "")
    index = json.loads(page.scripts[2])
    assert index["rows"][0][1] == HOSTILE
    assert records_in(page) == [case]


def test_what_is_told_of_the_run(tmp_path: Path) -> None:
    """Verdict, counts by group, what ran it and by which thresholds it was judged."""
    page = written(tmp_path, every_verdict())
    text = " ".join(page.text.split())
    assert "1 of 5 cases passed" in text
    assert "3 cases ran on the reference, not a device (cpu)" in text
    assert "mixed (current edition)" in text
    assert "rtol 2^-10, atol 2^-16, min_share 0.99, floor 0.01, max_ulps 32" in text
    for words in ("BSND 1 of 2", "TND 0 of 4", "float16 0 of 4", "AB 1 of 2", "numpy-blocked"):
        assert words in text
    assert "opferry validate -i cases/rotary.csv --seed 7" in text


@pytest.mark.parametrize(
    ("figures", "said"),
    [
        ({"backend": "cpu"}, "1 case ran on the reference, not a device (cpu)"),
        ({"backend": "aclnn"}, "1 case ran on simulated, not a device (aclnn)"),
        (
            {"backend": "aclnn", "real_device": True, "soc_name": "Ascend910_93"},
            "Ran on a real device: aclnn, Ascend910_93",
        ),
        ({"known_answer": "FAILED"}, "the known answer of the operator package was wrong"),
        ({"backend": ""}, "Nothing was executed"),
    ],
)
def test_what_ran_it_is_plain(tmp_path: Path, figures: dict[str, Any], said: str) -> None:
    """Nobody takes the reference or a simulator for a device."""
    case = every_verdict()[0]
    case["figures"] |= figures
    assert said in " ".join(written(tmp_path, [case]).text.split())


def test_an_incomplete_run_is_no_pass(tmp_path: Path) -> None:
    """Rows without a record are told, and the headline is not that all passed."""
    page = written(tmp_path, [case_record()], row_count=9)
    text = " ".join(page.text.split())
    assert "8 of 9 rows have no record" in text
    assert "1 of 9 cases passed" in text


@pytest.mark.parametrize("cases", [[], [case_record(2, "off", "DISABLED")]])
def test_a_run_of_nothing_is_no_pass(tmp_path: Path, cases: list[CaseRecord]) -> None:
    """Neither without a case nor with a disabled one alone."""
    assert "No case was enabled, and none has passed" in written(tmp_path, cases).text


def test_the_index_and_the_records_agree(tmp_path: Path) -> None:
    """Each row of the index is the record at its place, over several chunks."""
    cases = [
        case_record(row, f"case {row}", outputs=every_verdict()[1]["outputs"]) for row in range(40)
    ]
    page = written(tmp_path, cases)
    index = json.loads(page.scripts[2])
    assert len(index["starts"]) == len(page.scripts[1].split()) > 1
    assert [row[:3] for row in index["rows"]] == [
        [case["row"], case["name"], f"'{case['name']}'"] for case in records_in(page)
    ]


@pytest.mark.parametrize("module", ["jinja2", "plotly.offline"])
def test_the_missing_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str
) -> None:
    """One line says what to install, and no file is left."""
    run = read_run(write_run(tmp_path / "run.jsonl", [case_record()]))
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(
        ReportError, match=r"needs the extra \"report\": pip install '\.\[report\]'"
    ):
        write_html(tmp_path / "run.html", run)
    assert not (tmp_path / "run.html").exists()


def test_a_page_that_cannot_be_written(tmp_path: Path) -> None:
    """One line names it."""
    run = read_run(write_run(tmp_path / "run.jsonl", [case_record()]))
    with pytest.raises(ReportError, match=r"run\.html: cannot be written: No such file"):
        write_html(tmp_path / "none" / "run.html", run)
