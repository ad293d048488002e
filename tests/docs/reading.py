"""What the documents hold: command blocks, links, code spans, tables, headings."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.support.servers import ROOT

READMES = (ROOT / "README.md", ROOT / "README.zh-CN.md")

DOCUMENTS = (*READMES, ROOT / "examples" / "README.md", *sorted((ROOT / "docs").glob("*.md")))
"""Every document for users."""


class Fence(NamedTuple):
    """A block between fences."""

    language: str
    """What stands behind the opening fence."""
    text: str
    """The lines between, each with its end."""


def fences(path: Path) -> list[Fence]:
    """Return the fenced blocks of a document, in order."""
    found = re.findall(r"^```(\w*)\n(.*?)^```$", path.read_text(), re.DOTALL | re.MULTILINE)
    return [Fence(*block) for block in found]


def prose(path: Path) -> str:
    """Return a document without its fenced blocks."""
    return re.sub(r"^```.*?^```$", "", path.read_text(), flags=re.DOTALL | re.MULTILINE)


def code_spans(path: Path) -> list[str]:
    """Return what stands between single backticks outside of blocks, each on one line."""
    found = re.findall(r"`((?:[^`\n]|\n(?!\n))+)`", prose(path))
    return [" ".join(span.split()) for span in found]


def commands(path: Path) -> list[str]:
    """Return the command lines of a document's console blocks."""
    blocks = [block.text for block in fences(path) if block.language == "console"]
    return [line for text in blocks for line in text.splitlines() if line]


def links(path: Path) -> list[str]:
    """Return the targets of a document's links, those to other sites left out."""
    found = re.findall(r"\]\(([^)\s]+)\)", prose(path))
    return [target for target in found if "://" not in target]


def named_links(path: Path) -> list[tuple[str, str]]:
    """Return text and target of the links whose text is a name in code."""
    return re.findall(r"\[`([^`]+)`\]\(([^)\s]+)\)", prose(path))


def anchors(path: Path) -> set[str]:
    """Return the anchors that GitHub makes of a document's headings."""
    heads = re.findall(r"^#+ (.+)$", prose(path), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def table_rows(path: Path) -> Iterator[list[str]]:
    """Yield the cells of each row of a document's tables."""
    for line in prose(path).splitlines():
        if line.startswith("|") and not line.startswith("|---"):
            yield [cell.strip() for cell in line.strip("|").split("|")]
