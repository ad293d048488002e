"""A run as one HTML file that needs nothing else: no network, no other file, no build.

The page forbids itself everything but its own scripts, by their digests. What comes from the record
is text: in the page escaped by the template, in the embedded data free of "<", and put in by the
scripts as text alone.
"""

from __future__ import annotations

import base64
import hashlib
import os
from importlib.resources import files
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from opferry.reports._page import Page
from opferry.reports.problems import ReportError
from opferry.reports.reading import RecordedRun

if TYPE_CHECKING:
    from jinja2 import Environment

SCRIPTS = ("data.js", "elements.js", "plots.js", "details.js", "table.js")
"""The page's own script, in its order."""


def write_html(path: str | os.PathLike[str], run: RecordedRun) -> None:
    """Write a run as a page.

    Args:
        path: the file; an old one is replaced.
        run: what `read_run` returned.

    Raises:
        ReportError: if the extra "report" is missing, or the file cannot be written.
    """
    environment, plotly = _environment(), _plotly()
    own = "\n".join(_text(name) for name in SCRIPTS)
    page = Page(run)
    pieces = environment.get_template("report.html").generate(
        page=page,
        style=_text("report.css"),
        plotly=plotly,
        script=own,
        allowed=" ".join(map(_digest, (plotly, own))),
    )
    try:
        # a lone surrogate, which JSON can hold and UTF-8 cannot, shows as a question mark
        with open(path, "w", encoding="utf-8", errors="replace", newline="\n") as stream:
            stream.writelines(pieces)
    except OSError as error:
        raise ReportError(f"{os.fspath(path)}: cannot be written: {error.strerror}") from error


def check_page_can_be_made() -> None:
    """Check that what a page is made with is installed.

    Raises:
        ReportError: if the extra "report" is missing.
    """
    if find_spec("jinja2") is None or find_spec("plotly") is None:
        raise _missing()


def _environment() -> Environment:
    try:
        import jinja2
    except ModuleNotFoundError as error:
        raise _missing() from error
    loader = jinja2.FunctionLoader(_text)
    return jinja2.Environment(
        loader=loader,
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _plotly() -> str:
    try:
        from plotly.offline import get_plotlyjs
    except ModuleNotFoundError as error:
        raise _missing() from error
    source: str = get_plotlyjs()
    # a browser makes line feeds of these before it takes the digest
    source = source.replace("\r\n", "\n").replace("\r", "\n")
    return source.replace("</script", r"<\/script")


def _missing() -> ReportError:
    return ReportError("the page needs the extra \"report\": pip install '.[report]' in a checkout")


def _text(name: str) -> str:
    return (files("opferry.reports") / "templates" / name).read_text("utf-8")


def _digest(script: str) -> str:
    """Return a script's digest as a policy names it."""
    digest: Any = hashlib.sha256(script.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
