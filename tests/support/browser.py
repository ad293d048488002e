"""A headless Chromium that shows a page, from a file or from a server."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Page

FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@dataclass
class Shown:
    """A page that is shown, and what it did."""

    page: Page
    """Playwright's page."""
    requests: list[str] = field(default_factory=list)
    """What it asked for beside itself."""
    complaints: list[str] = field(default_factory=list)
    """What it said on the console, and errors that nobody caught."""


@contextlib.contextmanager
def shown(
    place: Path | str, profile: Path, *, scheme: str = "light", width: int = 1280, height: int = 800
) -> Iterator[Shown]:
    """Show a page; skips the test where there is no Chromium or no playwright.

    Args:
        place: the page's file, or its address.
        profile: a new folder for what the browser keeps.
        scheme: light or dark.
        width: of the window, in pixels.
        height: likewise.
    """
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("needs the program chromium")
    playwright = pytest.importorskip(
        "playwright.sync_api", reason='needs playwright, of the extra "dev"'
    )
    options: dict[str, Any] = {
        "executable_path": program,
        "args": list(FLAGS),
        "viewport": {"width": width, "height": height},
        "color_scheme": scheme,
    }
    with playwright.sync_playwright() as api:
        context = api.chromium.launch_persistent_context(profile, **options)
        try:
            page = context.pages[0]
            found = Shown(page)
            address = place if isinstance(place, str) else place.resolve().as_uri()
            page.on(
                "request",
                lambda asked: asked.url.startswith(address) or found.requests.append(asked.url),
            )
            page.on("console", lambda said: found.complaints.append(said.text))
            page.on("pageerror", lambda error: found.complaints.append(str(error)))
            page.goto(address)
            yield found
        finally:
            context.close()
