"""The page in a browser: it works from a file, without network, in light and dark."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from opferry.reports import read_run, write_html
from tests.support.browser import Shown, shown
from tests.support.run_records import case_record, every_verdict, input_record, write_run

pytestmark = pytest.mark.full

pytest.importorskip("jinja2", reason='the extra "report" is not installed')
pytest.importorskip("plotly", reason='the extra "report" is not installed')

MEGABYTE = 1_000_000


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a run with a case of each verdict, and a hostile one."""
    folder = tmp_path_factory.mktemp("page")
    hostile = "</script><img src=x onerror=console.log(1)>"
    cases = [*every_verdict(), case_record(8, hostile, "ERROR", hostile)]
    page = folder / "run.html"
    write_html(page, read_run(write_run(folder / "run.jsonl", cases)))
    return page


@pytest.fixture
def report(page_file: Path, tmp_path: Path) -> Iterator[Shown]:
    """That page, shown; at the end it must not have asked for anything, nor complained."""
    with shown(page_file, tmp_path / "profile") as found:
        yield found
        assert found.requests == []
        assert found.complaints == []


def names(report: Shown) -> list[str]:
    return report.page.locator("tr.case .fold").all_inner_texts()


def test_a_case_unfolds_and_folds(report: Shown) -> None:
    """What is below a case is made when it is unfolded, and gone when it is folded."""
    page = report.page
    assert page.locator(".details").count() == 0
    fold = page.get_by_role("button", name="bsnd_fp32_wrong_last_head")
    fold.click()
    page.locator(".output").first.wait_for()
    text = page.locator(".details").inner_text()
    assert "opferry validate -i cases/rotary.csv --seed 7 -t bsnd_fp32_wrong_last_head" in text
    assert "strides [8192, 64, 0, 1], offset 16, storage [16400]" in text
    assert "-inf to inf, with nan" in text
    assert "≥ 0.99" in text
    assert page.locator(".worst tbody tr").count() == 8 + 3
    assert fold.get_attribute("aria-expanded") == "true"
    fold.click()
    assert page.locator(".details").count() == 0


def test_plots_are_drawn_when_they_come_into_view(report: Shown) -> None:
    """Two histograms, a slice and three heat maps for each failing output."""
    page = report.page
    assert page.evaluate("window.Plotly === undefined")
    page.get_by_role("button", name="bsnd_fp32_wrong_last_head").click()
    page.locator(".output").first.wait_for()
    plots = page.locator(".output >> nth=0 >> .plot")
    assert plots.count() == 6
    plots.last.scroll_into_view_if_needed()
    for number in range(6):
        plots.nth(number).locator(".main-svg").first.wait_for()
    rows = page.evaluate("document.querySelectorAll('.plot.heat')[2].data[0].z")
    assert [[bool(share) for share in row] for row in rows] == [[False] * 7 + [True]] * 16
    page.locator(".chosen select").first.select_option("3")
    assert page.evaluate("document.querySelector('.plot.heat').data[0].z[7][15]") == 1


def test_plots_of_what_passes_are_asked_for(report: Shown) -> None:
    """They are behind a word, and there are no worst places to show."""
    page = report.page
    page.get_by_role("button", name="bsnd_fp32_passes").click()
    page.locator(".details summary").first.click()
    page.locator(".plot.histogram .main-svg").first.wait_for()
    assert page.locator(".output >> nth=0 >> .plot").count() == 2


def test_filters(report: Shown) -> None:
    """By verdict, by text in name or reason, by group, and all again."""
    page = report.page
    page.get_by_role("button", name="FAIL 2").click()
    assert names(report) == ["bsnd_fp32_wrong_last_head", "tnd_fp16_nan"]
    page.get_by_role("button", name="ERROR 2").click()
    assert len(names(report)) == 4
    page.fill("#filter-text", "Shape [3]")
    assert names(report) == ["tnd_fp16_refused"]
    page.get_by_role("button", name="Show all").click()
    assert len(names(report)) == 7
    page.locator("#filter-groups select[data-group=layout]").select_option("TND")
    assert page.locator("#filter-count").inner_text() == "4 of 7 shown"
    page.locator("#summary button", has_text="float32").click()
    assert names(report) == []
    page.fill("#filter-text", "no such thing")
    assert page.locator("#filter-count").inner_text() == "0 of 7 shown"


def test_sorting(report: Shown) -> None:
    """What did not pass comes first; a heading sorts, and sorts backwards."""
    page = report.page
    statuses = page.locator("tr.case .status").all_inner_texts()
    assert statuses == ["FAIL", "FAIL", "ERROR", "ERROR", "NOT RUN", "PASS", "DISABLED"]
    row = page.get_by_role("button", name="row", exact=True)
    row.click()
    assert page.locator("td.row").all_inner_texts() == ["2", "3", "4", "5", "6", "7", "8"]
    row.click()
    assert page.locator("td.row").all_inner_texts() == ["8", "7", "6", "5", "4", "3", "2"]
    assert page.locator("th.row").get_attribute("aria-sort") == "descending"
    page.get_by_role("button", name="largest error").click()
    assert page.locator("td.error").all_inner_texts()[3:] == [""] * 4


def test_a_row_is_named_in_the_address(page_file: Path, report: Shown) -> None:
    """#row-7 unfolds the case of that row, so that it can be pointed at."""
    report.page.evaluate("location.hash = 'row-7'")
    report.page.locator("#row-7 + .unfolded .output").wait_for()


def test_the_command_is_copied(report: Shown) -> None:
    """The button copies, or says at least that it selected the text."""
    page = report.page
    page.locator("#facts .copy").click()
    page.get_by_role("button", name="Copied").wait_for()


def test_a_foreign_script_does_not_run(report: Shown) -> None:
    """Hostile text is shown as it is."""
    page = report.page
    assert "</script><img src=x onerror=console.log(1)>" in names(report)
    page.locator("#row-8 .fold").click()
    page.locator("#row-8 + .unfolded .command").wait_for()
    assert page.locator("img").count() == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("width", "height"), [(1280, 800), (390, 844)])
def test_it_fits_the_window(
    page_file: Path, tmp_path: Path, scheme: str, width: int, height: int
) -> None:
    """Nothing sticks out sideways, folded or unfolded; pictures of both are left for a look."""
    with shown(
        page_file, tmp_path / "profile", scheme=scheme, width=width, height=height
    ) as report:
        page = report.page
        page.screenshot(path=tmp_path / "top.png")
        page.locator("#row-3 .fold").click()
        page.locator(".output").first.wait_for()
        page.evaluate("document.querySelectorAll('.plot').forEach(draw)")
        page.locator(".plot .main-svg").first.wait_for()
        page.screenshot(path=tmp_path / "whole.png", full_page=True)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        back = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert back == {"light": "rgb(255, 255, 255)", "dark": "rgb(18, 22, 27)"}[scheme]
        assert report.complaints == []


def test_paper_is_light(page_file: Path, tmp_path: Path) -> None:
    """Printed from a dark screen, text and plots are dark on white, and filters are left out."""
    with shown(page_file, tmp_path / "profile", scheme="dark") as report:
        page = report.page
        page.locator("#row-3 .fold").click()
        page.locator(".output").first.wait_for()
        page.emulate_media(media="print")
        page.evaluate("dispatchEvent(new Event('beforeprint'))")
        page.locator(".plot .main-svg").first.wait_for()
        ink = page.evaluate("document.querySelector('.plot').layout.font.color")
        assert ink == "#1f2328"
        assert not page.locator(".filters").is_visible()
        page.screenshot(path=tmp_path / "print.png", full_page=True)


def test_a_run_of_nothing(tmp_path: Path) -> None:
    """A run that was killed before its first case has a page too."""
    page_file = tmp_path / "run.html"
    write_html(page_file, read_run(write_run(tmp_path / "run.jsonl", [], row_count=3)))
    with shown(page_file, tmp_path / "profile") as report:
        assert report.page.locator("#filter-count").inner_text() == "0 of 0 shown"
        assert report.page.get_by_text("3 of 3 rows have no record").is_visible()
        assert report.complaints == []


def test_ten_thousand_cases(tmp_path: Path, record_property: pytest.RecordProperty) -> None:
    """A page of a large run is small, and usable at once."""
    outputs = every_verdict()[0]["outputs"]
    cases = []
    for row in range(2, 10_002):
        case = case_record(row, f"case_{row}", outputs=outputs)
        case["inputs"] = [input_record(name, row) for name in ("query", "key", "cos", "sin")]
        cases.append(case)
    page_file = tmp_path / "run.html"
    run = read_run(write_run(tmp_path / "run.jsonl", cases))
    del cases
    write_html(page_file, run)
    assert page_file.stat().st_size < 20 * MEGABYTE
    start = time.perf_counter()
    with shown(page_file, tmp_path / "profile") as report:
        page = report.page
        page.locator("tr.case").first.wait_for()
        record_property("seconds_to_interactive", round(time.perf_counter() - start, 3))
        assert page.locator("tr.case").count() < 1000
        page.fill("#filter-text", "case_9999")
        page.get_by_role("button", name="case_9999").click()
        page.locator(".output").first.wait_for()
        assert page.locator("#filter-count").inner_text() == "1 of 10,000 shown"
        page.fill("#filter-text", "")
        page.locator("footer").scroll_into_view_if_needed()
        page.locator("tr.case").nth(300).wait_for()
        assert report.complaints == []
