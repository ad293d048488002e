"""Reads a Dockerfile and .dockerignore, and does what they say without docker.

Only what our own file uses is understood; anything else is an error, not a guess.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from tests.packaging.environments import clean_variables, run_checked


@dataclass(frozen=True)
class Instruction:
    """One instruction, its lines joined."""

    keyword: str
    """Its first word, in capitals."""
    text: str
    """All that follows."""

    @property
    def words(self) -> list[str]:
        """The words of the exec form, or of the line."""
        if self.text.startswith("["):
            found: list[str] = json.loads(self.text)
            return found
        return shlex.split(self.text)


@dataclass
class Stage:
    """From one FROM to the next."""

    base: str
    """The base image, or the name of the argument that chooses it."""
    name: str
    """What follows AS, or ""."""
    instructions: list[Instruction] = field(default_factory=list)
    """What follows FROM, in order."""

    def all(self, keyword: str) -> list[Instruction]:
        """Return the instructions of one kind."""
        return [item for item in self.instructions if item.keyword == keyword]

    def one(self, keyword: str) -> Instruction:
        """Return the only instruction of one kind."""
        (found,) = self.all(keyword)
        return found

    def pairs(self, keyword: str) -> dict[str, str]:
        """Return what all LABEL or ENV instructions set."""
        words = (word for item in self.all(keyword) for word in item.words)
        return dict(word.split("=", 1) for word in words)

    def health_check(self) -> list[str]:
        """Return the health check's command, which is in exec form."""
        return Instruction("CMD", self.one("HEALTHCHECK").text.partition("CMD ")[2]).words


def read_dockerfile(text: str) -> list[Stage]:
    """Return the stages of a Dockerfile."""
    code = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    stages: list[Stage] = []
    for line in re.sub(r"\\\n\s*", "", code).splitlines():
        keyword, _, rest = line.strip().partition(" ")
        if keyword == "FROM":
            base, _, name = rest.strip().partition(" AS ")
            stages.append(Stage(base.removeprefix("${").removesuffix("}"), name))
        elif keyword == "ARG" and not stages:
            continue  # what bases may be chosen by
        elif keyword:
            stages[-1].instructions.append(Instruction(keyword, rest.strip()))
    return stages


def is_ignored(path: str, patterns: list[str]) -> bool:
    """Return whether .dockerignore keeps a file from the builder: the last match decides."""
    parents = [str(parent) for parent in PurePosixPath(path).parents if str(parent) != "."]
    ignored = False
    for line in patterns:
        pattern = line.strip()
        if not pattern or pattern.startswith("#"):
            continue
        expression = _expression(pattern.removeprefix("!").strip("/"))
        if any(expression.fullmatch(name) for name in (path, *parents)):
            ignored = not pattern.startswith("!")
    return ignored


def _expression(pattern: str) -> re.Pattern[str]:
    """Return one pattern of .dockerignore as a regular expression."""
    parts = re.split(r"(\*\*/|\*\*|\*|\?|\[[^]]*\])", pattern)
    known = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    return re.compile(
        "".join(
            known.get(part, part if part.startswith("[") else re.escape(part)) for part in parts
        )
    )


class Rehearsal:
    """Performs stages with the machine's own Python, all absolute paths moved into one folder.

    The stages share that folder: a virtual environment cannot be moved, so COPY --from must keep
    the path, and then there is nothing to do.
    """

    def __init__(self, context: Path, root: Path, python: Path) -> None:
        """Prepare.

        Args:
            context: the folder that the builder would get.
            root: where the image's absolute paths are put.
            python: what "python" is in the base image.
        """
        self._context = context
        self._root = root
        self._python = python
        self._prefixes: set[str] = set()
        self._folder = root

    def perform(self, stages: list[Stage]) -> None:
        """Do what the instructions that change files say."""
        items = [item for stage in stages for item in stage.instructions]
        self._prefixes = {item.text for item in items if item.keyword == "WORKDIR"}
        self._prefixes |= {item.words[1] for item in items if item.text.startswith("--from=")}
        for stage in stages:
            self._folder = self._root
            for item in stage.instructions:
                if item.keyword == "WORKDIR":
                    self._folder = self._root / item.text.lstrip("/")
                    self._folder.mkdir(parents=True)
                elif item.keyword == "COPY":
                    self._copy(item.words)
                elif item.keyword == "RUN":
                    self._run(item.text)

    def located(self, text: str) -> str:
        """Return a text with the image's absolute paths put into the folder."""
        for prefix in self._prefixes:
            text = re.sub(rf"(?<![\w./]){re.escape(prefix)}\b", str(self._root) + prefix, text)
        return text

    def _copy(self, words: list[str]) -> None:
        if words[0].startswith("--"):
            assert words[0].startswith("--from="), words
            assert words[1:] == [words[1], words[1]], f"{words}: an environment cannot be moved"
            assert (self._root / words[1].lstrip("/")).is_dir()
            return
        *sources, target = words
        for source in sources:
            found = self._context / source
            if found.is_dir():
                shutil.copytree(found, self._folder / target, dirs_exist_ok=True)
            else:
                shutil.copy(found, self._folder / target)

    def _run(self, command: str) -> None:
        # the base image's "python" is the first on its path
        programs = self._root / "programs"
        programs.mkdir(exist_ok=True)
        if not (programs / "python").exists():
            # a link would lose the home of an interpreter that is itself in an environment
            (programs / "python").write_text(f'#!/bin/sh\nexec {self._python} "$@"\n')
            (programs / "python").chmod(0o755)
        variables = clean_variables(PATH=f"{programs}:{os.environ['PATH']}")
        run_checked(["sh", "-ec", self.located(command)], cwd=self._folder, env=variables)
