"""The status page in a browser, while devices fault: acceptance of the farm, number 5."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import opferry
from opferry import errors
from tests.aclnn.simulated import Simulated, simulated
from tests.support import servers
from tests.support.admin import Admin
from tests.support.browser import Shown, shown
from tests.support.calls import tnd
from tests.support.processes import eventually

pytestmark = pytest.mark.full

STAGE_TWO = "aclnnApplyRotaryPosEmbGrad"

FAULT, FAULTS_FOR_GOOD, HELD = 1234.5, 512.0, 99.25
"""What a request holds that faults its device, that breaks it for good, that does not end."""

ONCE = opferry.RetryConfig(attempts=1)

COUNT_SHIFTS = """
() => {
  window.shifts = [];
  new PerformanceObserver((list) => list.getEntries().forEach((entry) => shifts.push(entry.value)))
    .observe({ type: "layout-shift" });
}
"""


def call(first: float | None = None, tokens: int = 2) -> dict[str, Any]:
    arguments = tnd(tokens)
    if first is not None:
        arguments["grad_query_embed"].flat[0] = first
    return arguments


@contextlib.contextmanager
def farm(folder: Path, admin: Admin, *rules: str) -> Iterator[Simulated]:
    """A server on four simulated devices, on which some requests fault."""
    (folder / "simulator").mkdir()
    with simulated(folder / "simulator", workers=4, options=admin.options) as found:
        found.set_rules(
            f"{STAGE_TWO}:content={FAULT}:507015",
            f"{STAGE_TWO}:content={FAULTS_FOR_GOOD}:507053",
            f"{STAGE_TWO}:content={HELD}:hold:{{hold}}",
            *rules,
        )
        yield found


@contextlib.contextmanager
def busy(address: str, count: int, first: float | None = None) -> Iterator[None]:
    """Have *count* clients call, again and again, for the length of a `with` block."""
    ended = threading.Event()

    def work() -> None:
        with opferry.connect(address, retry=ONCE) as client:
            while not ended.is_set():
                with contextlib.suppress(errors.OpFerryError):
                    client.apply_rotary_pos_emb_grad(**call(first, 200), exclusive=True)

    threads = [threading.Thread(target=work) for _ in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        for thread in threads:
            thread.join()


@contextlib.contextmanager
def released(hold: Path) -> Iterator[None]:
    """Let what is held go on at the end of a `with` block, whatever happens in it."""
    try:
        yield
    finally:
        hold.unlink()


def texts(page: Shown, selector: str) -> list[str]:
    found: list[str] = page.page.locator(selector).all_inner_texts()
    return found


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_while_devices_fault(tmp_path: Path, scheme: str) -> None:
    """Devices, requests, queue and faults are shown as they come and go, and nothing jumps."""
    admin = Admin()
    with (
        farm(tmp_path, admin) as found,
        shown(admin.url + "/", tmp_path / "b", scheme=scheme) as seen,
    ):
        page = seen.page
        page.locator(".card").nth(3).wait_for()
        assert texts(seen, "#state") == ["serving"]
        page.screenshot(path=tmp_path / f"idle-{scheme}.png", full_page=True)
        page.evaluate(COUNT_SHIFTS)

        # two requests hold a device, others run beside them and wait
        with busy(found.address, 1, HELD), busy(found.address, 7), released(found.hold):
            page.locator("#jobs tbody tr").nth(3).wait_for()
            page.locator('#jobs .pill[data-state="running"]').first.wait_for()
            page.get_by_role("cell", name="place 1").first.wait_for()
            with opferry.connect(found.address, retry=ONCE) as client:
                with pytest.raises(errors.DeviceFaultError, match="507015"):
                    client.apply_rotary_pos_emb_grad(**call(FAULT))
                fault = page.locator("#faults tbody tr").first
                fault.wait_for()
                assert "507015" in fault.inner_text()
                assert "ACL_ERROR_RT_AICORE_EXCEPTION" in fault.inner_text()
                assert "built-in" in fault.inner_text()
                with pytest.raises(errors.DeviceFaultError, match="507053"):
                    client.apply_rotary_pos_emb_grad(**call(FAULTS_FOR_GOOD))
            page.locator('.card[data-state="quarantined"] .trouble').wait_for()
            assert "507053" in page.locator('.card[data-state="quarantined"]').inner_text()
            assert eventually(lambda: len(texts(seen, "#faults tbody tr")) == 2)
            # a picture of the whole page is taken in a taller window, in which much is elsewhere
            assert sum(page.evaluate("shifts")) < 0.01
            time.sleep(3)  # for the picture: lines that have something to show
            page.screenshot(path=tmp_path / f"faults-{scheme}.png", full_page=True)
        page.locator("#jobs-empty").wait_for()
        assert int(page.locator("#failed-total").inner_text()) == 2
        assert page.locator("#inside").inner_text() == "0"
        own = {f"{admin.url}/{name}" for name in ("", "status.css", "status.js", "events")}
        assert {url for url in seen.requests if not url.startswith("data:")} <= own
        assert seen.complaints == []


def test_names_from_outside_are_text(tmp_path: Path) -> None:
    """What a hostile caller or backend names cannot become markup."""
    admin = Admin()
    hostile = "<img src=x onerror=alert(1)>"
    with (
        servers.embedded("CrashBackend", options=admin.options) as server,
        shown(admin.url + "/", tmp_path / "b") as seen,
        opferry.connect(server.address, retry=ONCE) as client,
    ):
        page = seen.page
        page.locator(".card").wait_for()
        snapshot = page.evaluate("shown")
        snapshot["faults"] = [{**dict.fromkeys(FAULT_FIELDS, hostile), "time_s": 0}]
        snapshot["jobs"] = [{**dict.fromkeys(JOB_FIELDS, hostile), **JOB_NUMBERS}]
        snapshot["tenants"] = [{"name": hostile, "states": {}}]
        snapshot["devices"][0]["trouble"] = snapshot["devices"][0]["package"] = hostile
        snapshot["devices"][0]["ready"] = False
        snapshot["packages"][0] |= {"name": hostile, "known_answer": hostile}
        snapshot["server"]["id"] = hostile
        # and no other comes after it
        page.evaluate("(value) => { const real = show; show = () => {}; real(value); }", snapshot)
        assert page.locator("img").count() == 0
        assert page.locator("#server-id").inner_text() == hostile
        assert hostile in page.locator("#faults tbody").inner_text()
        assert hostile in page.locator("#jobs tbody").inner_text()
        assert page.locator(".card .trouble").inner_text() == hostile
        assert client.server_info().serving
        assert seen.complaints == []


FAULT_FIELDS = ("worker", "device", "package", "how", "acl_error", "stage", "name")
JOB_FIELDS = ("tenant", "subject", "operator", "dtype", "package", "priority", "worker", "state")
JOB_NUMBERS = {
    "key": 1,
    "shape": [1],
    "state_s": 1,
    "inside_s": 1,
    "bytes": 1,
    "position": 0,
    "request_id": "x",
}


def test_the_page_says_when_nobody_answers_and_comes_back(tmp_path: Path) -> None:
    """A server that is gone; another one at the same place later."""
    admin = Admin()
    with shown("data:text/html,", tmp_path / "b") as seen:
        page = seen.page
        (tmp_path / "one").mkdir()
        with servers.tcp(tmp_path / "one", lines=admin.lines):
            page.goto(admin.url + "/")
            page.locator(".card").wait_for()
        page.locator('#state[data-state="no answer"]').wait_for()
        assert page.locator("#state").inner_text().startswith("no answer for ")
        (tmp_path / "other").mkdir()
        with servers.tcp(tmp_path / "other", lines=admin.lines):
            page.locator('#state[data-state="serving"]').wait_for()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("width", "height"), [(1280, 800), (390, 844)])
def test_it_fits_the_window(tmp_path: Path, scheme: str, width: int, height: int) -> None:
    """Nothing sticks out sideways; pictures are left for a look."""
    admin = Admin()
    size = {"width": width, "height": height}
    with (
        servers.embedded("SleepBackend", workers=2, options=admin.options) as server,
        shown(admin.url + "/", tmp_path / "b", scheme=scheme, **size) as seen,
        opferry.connect(server.address) as client,
    ):
        page = seen.page
        page.locator(".card").first.wait_for()
        slow = threading.Thread(target=client.apply_rotary_pos_emb_grad, kwargs=tnd(cos=3.0))
        slow.start()
        page.locator('.card[data-state="running"]').wait_for()
        time.sleep(1)
        page.screenshot(path=tmp_path / "whole.png", full_page=True)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        back = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert back == {"light": "rgb(244, 246, 248)", "dark": "rgb(14, 18, 22)"}[scheme]
        slow.join()
        assert seen.complaints == []


def test_many_requests_are_shown_in_part(tmp_path: Path) -> None:
    """A full queue does not make the page long, nor its events large."""
    admin = Admin()
    with (
        servers.embedded(
            "SleepBackend", options=admin.options, limits={"queue_count": 400, "call_count": 400}
        ) as server,
        shown(admin.url + "/", tmp_path / "b") as seen,
        opferry.connect(server.address) as client,
    ):
        page = seen.page
        page.locator(".card").wait_for()
        long = threading.Thread(target=client.apply_rotary_pos_emb_grad, kwargs=tnd(cos=4.0))
        long.start()
        calls = [
            {name: array for name, array in tnd(cos=0.0).items() if isinstance(array, np.ndarray)}
        ]
        threads = []
        for _ in range(3):
            other = threading.Thread(
                target=lambda: list(
                    client.execute_many(
                        "apply_rotary_pos_emb_grad", calls * 120, attributes={"layout": 4}
                    )
                )
            )
            other.start()
            threads.append(other)
        page.locator("#jobs tbody tr").nth(3).wait_for()
        assert page.locator("#jobs tbody tr").count() <= 200
        for thread in (long, *threads):
            thread.join()
        page.locator("#jobs-empty").wait_for()
        assert seen.complaints == []
