"""The documents say what is there: names, flags, links, examples and tables."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import click
import pytest

from opferry import errors
from opferry.cli.__main__ import main as cli
from opferry.cli._ttk_words import NOT_SERVED
from opferry.core.limits import LimitsConfig
from opferry.validation import OUTPUT_FIGURES, RUN_COLUMNS, CaseStatus, OutputStatus
from opferry.validation.ttk import KNOWN_COLUMNS
from opferry_server.access.token_command import parser as token_parser
from opferry_server.doctor.command import parser as doctor_parser
from tests.docs import tables
from tests.docs.reading import (
    DOCUMENTS,
    READMES,
    anchors,
    code_spans,
    commands,
    fences,
    links,
    named_links,
    prose,
    table_rows,
)
from tests.support.servers import ROOT

EXAMPLES = [ROOT / "examples" / name for name in ("call.py", "call_torch.py")]
ENGLISH, CHINESE = READMES
every_document = pytest.mark.parametrize(
    "path", DOCUMENTS, ids=[str(path.relative_to(ROOT)) for path in DOCUMENTS]
)

COMMAND_FLAGS = {
    flag
    for parser in (doctor_parser(), token_parser())
    for action in parser._actions
    for flag in action.option_strings
}
SERVER_FLAGS = set(re.findall(r"`(--[a-z.-]+)`", tables.options())) | COMMAND_FLAGS


def flags_of(command: click.Command) -> set[str]:
    inner = command.commands.values() if isinstance(command, click.Group) else ()
    own = {
        flag
        for parameter in command.params
        for flag in (*parameter.opts, *parameter.secondary_opts)
    }
    return own.union({"-h", "--help"}, *map(flags_of, inner))


CLI_FLAGS = {name: flags_of(command) for name, command in cli.commands.items()}


@pytest.mark.parametrize("readme", READMES, ids=["en", "zh-CN"])
def test_the_example_is_the_script(readme: Path) -> None:
    """The READMEs show the calls with numpy and with torch whole, and nothing else in Python."""
    shown = [block.text for block in fences(readme) if block.language == "python"]
    assert shown == [example.read_text() for example in EXAMPLES]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_the_example_is_short(example: Path) -> None:
    """Beside its docstring and blank lines the script has at most twelve lines."""
    docstring, *statements = ast.parse(example.read_text()).body
    lines = example.read_text().splitlines()[docstring.end_lineno :]
    assert statements
    assert len([line for line in lines if line]) <= 12


def test_both_readmes_have_the_same_blocks_and_links() -> None:
    """What can be typed or followed is the same in both languages, in the same order."""
    assert fences(CHINESE) == fences(ENGLISH)

    def followed(path: Path) -> set[str]:
        return {link for link in links(path) if not link.startswith(("#", "README"))}

    assert followed(CHINESE) == followed(ENGLISH)
    assert CHINESE.name in links(ENGLISH)
    assert ENGLISH.name in links(CHINESE)


def test_both_readmes_have_the_same_tables() -> None:
    """Exceptions, exit statuses and flags stand in the same order in both languages."""

    def facts(path: Path) -> list[list[str]]:
        rows = [row for row in table_rows(path) if re.fullmatch(r"(↳ )?`[^`]+`|\d", row[0])]
        return [row[:2] if row[0].endswith("Error`") else row[:1] for row in rows]

    assert facts(CHINESE) == facts(ENGLISH)
    assert len(facts(ENGLISH)) > len(errors.__all__)


@every_document
def test_every_link_leads_somewhere(path: Path) -> None:
    """Relative links name files and headings that exist, and what they show is part of the path."""
    for link in links(path):
        file, _, anchor = link.partition("#")
        target = path.parent / file if file else path
        assert target.exists(), link
        if anchor:
            assert anchor in anchors(target), link
    for text, target_name in named_links(path):
        assert f"/{text.strip('/')}" in f"/{target_name}", text


@every_document
def test_every_path_exists(path: Path) -> None:
    """Paths from the root of the repository, in code spans and commands, name what is there."""
    made = ("build", "dist")  # by make, or by whoever reads the document
    folders = (item.name for item in ROOT.iterdir() if item.is_dir() and item.name not in made)
    tops = "|".join(name for name in folders if name[0] != ".")
    text = "\n".join([*code_spans(path), *commands(path)])
    for found in re.findall(rf"(?<![\w/.-])((?:{tops})/[\w./-]*)", text):
        if not re.search(r"[A-Z]{2}", found):  # in capitals: to be filled in
            assert (ROOT / found).exists(), found


@every_document
def test_every_flag_of_a_command_exists(path: Path) -> None:
    """Each flag in a command is one of the program, or subcommand, that the command calls."""
    for line in commands(path):
        program, *words = line.split()
        flags = {word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)}
        if Path(program).name == "opferry-server":
            assert flags <= SERVER_FLAGS, line
        elif Path(program).name == "opferry":
            assert flags <= CLI_FLAGS[words[0]], line


@every_document
def test_every_flag_in_the_text_exists(path: Path) -> None:
    """Each flag in a code span is one of some command, or a word of TTK's that is refused."""
    known = SERVER_FLAGS.union(*CLI_FLAGS.values(), NOT_SERVED)
    for span in code_spans(path):
        if re.match(r"(opferry|-)", span):
            flags = re.findall(r"(?:^| )(--?[a-z][a-z.-]*)", span)
            assert set(flags) <= known, span


@every_document
def test_every_make_target_exists(path: Path) -> None:
    """Each `make` in the documents has a target in the Makefile."""
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = re.findall(r"\bmake ([a-z-]+)", "\n".join([*commands(path), *code_spans(path)]))
    assert set(named) <= targets


def test_both_readmes_begin_with_the_two_commands() -> None:
    """The first block is what a user types first."""
    for readme in READMES:
        assert fences(readme)[0].text == "make demo\nmake test\n"


def test_the_flags_in_the_readme_have_their_defaults() -> None:
    """The short table of the server's flags agrees with the long one."""
    options = {row[0]: row[2] for row in table_rows(ROOT / "docs" / "operations.md") if row[2:]}
    rows = [row for row in table_rows(ENGLISH) if row[0].startswith("`--")]
    assert rows
    for flag, default, _ in rows:
        assert default.strip("`") in options[flag], flag


def test_the_readme_names_every_exception() -> None:
    """The table has all classes of opferry.errors, indented and derived as in the tree."""
    rows = {row[0]: row[1] for row in table_rows(ENGLISH) if row[0].endswith("Error`")}
    named = {cell.strip("↳ `") for cell in rows}
    assert named | {"OpFerryError"} == set(errors.__all__)
    parent = "OpFerryError"
    for cell, built_in in rows.items():
        kind: Any = getattr(errors, cell.strip("↳ `"))
        if cell.startswith("↳"):
            assert kind.__bases__[0] is getattr(errors, parent)
        else:
            parent = kind.__name__
        assert [base.__name__ for base in kind.__bases__[1:]] == [built_in.strip("`")] * bool(
            built_in
        )


@pytest.mark.parametrize("place", tables.PLACES, ids=lambda place: place.name)
def test_generated_tables_are_current(place: tables.Place) -> None:
    """Making a table again changes nothing; `python -m tests.docs.tables --write` renews it."""
    text = place.path.read_text()
    assert place.renewed(text) == text
    before, marker, table = text.partition(f"<!-- table: {place.name} -->\n")
    assert marker
    spoilt = before + marker + table.replace(" | ", " | spoilt ", 1)
    assert place.renewed(spoilt) == text


def test_a_place_without_markers_is_noticed() -> None:
    """A table whose markers are gone is not silently left out."""
    with pytest.raises(ValueError, match="no place for the table"):
        tables.PLACES[0].renewed("nothing")


def test_case_files_are_documented_whole() -> None:
    """Every column of case and result files, flag of validate and verdict has its place."""
    path = ROOT / "docs" / "case-files.md"
    spans = code_spans(path)
    assert KNOWN_COLUMNS.union(OUTPUT_FIGURES, RUN_COLUMNS) <= set(spans)
    named = {word for span in spans for word in span.split() if word.startswith("-")}
    told_by_help = {"-i", "--input", "--output", "--append", "-h", "--help"}
    assert CLI_FLAGS["validate"] - told_by_help <= named
    told = set(re.findall(r"[A-Z]+(?: [A-Z]+)*", prose(path)))
    assert {status.value for status in (*CaseStatus, *OutputStatus)} <= told


def test_the_limits_in_the_protocol_exist() -> None:
    """Every limit that the protocol names is one of the server's."""
    names = set(re.findall(r"\b\w+_(?:bytes|count|ms)\b", prose(ROOT / "docs" / "protocol.md")))
    others = {"data_bytes", "offset_bytes", "size_bytes", "total_bytes", "workspace_bytes"}
    others |= {"device_workspace_bytes", "warmup_count", "upload_bytes", "element_count"}
    others |= {"expected_wait_ms"}
    assert names - others <= set(vars(LimitsConfig()))


def test_the_events_of_the_log_are_all_there() -> None:
    """The table of log events has exactly those that the server's sources log."""
    sources = (ROOT / "server").rglob("*.py")
    found = re.compile(
        r"\b(?:log\.(?:debug|info|warning|error|exception)\(|begin\((?:name|\"\w+\"),)\s*\"([^\"]+)\""
    )
    logged = {event for path in sources for event in found.findall(path.read_text())}
    levels = ("info", "error", "warning", "debug")
    rows = [row for row in table_rows(ROOT / "docs" / "operations.md") if row[1] in levels]
    assert {row[0].strip("`") for row in rows} == logged


def test_the_script_finds_nothing_to_renew(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The script that renews the tables agrees, and says nothing."""
    monkeypatch.setattr("sys.argv", ["tables"])
    assert tables.main() == 0
    assert capsys.readouterr().out == ""
