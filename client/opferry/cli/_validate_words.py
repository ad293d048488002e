"""What the options of `opferry validate` mean together, and the words that say it again."""

from __future__ import annotations

import sys
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from opferry.validation import Case, CaseFile, RunSettings
    from opferry.validation.dumps import DumpWriter

CHOOSING = ("names", "indexes", "count", "operators", "priorities", "soc", "rerun")
"""The options that choose rows."""

ALSO_DECIDING = ("sheet", "distribution", "against_target", "against_package", *CHOOSING)
"""The options that decide over what is run, and are not among a run's settings."""

NEEDS = {
    "dump_format": ("dump", "dump_on_fail"),
    "dump_folder": ("dump", "dump_on_fail"),
    "against_target": (),
    "against_package": (),
    "level": (),
}
"""Options that say nothing without one of others; without any named, they go with cross_check."""

REPRODUCED = (
    *("sheet", "seed", "repeat", "warmup", "exclusive", "deterministic", "check", "standard"),
    *("edition", "level", "golden_mode", "distribution", "inputs", "deterministic_level"),
    *("target", "operator_package", "against_target", "against_package", "timeout"),
)
"""The options that a command which runs a row again needs, where they were given."""


def check_words(words: dict[str, Any]) -> None:
    """Refuse words that contradict each other."""
    if words["result_file"] is not None and words["append_file"] is not None:
        raise click.UsageError("-o and -a exclude each other: a file is replaced or appended to")
    if words["resume"] and words["append_file"] is not None:
        raise click.UsageError("--resume goes with -o: the result file is written anew")
    if words["resume"] and words["result_file"] is None and words["record_file"] is None:
        raise click.UsageError("--resume needs the -o, or the --record, of the run to go on with")
    crossed = words["standard"] == "cross_check"
    against = words["against_target"], words["against_package"]
    if crossed and against == (None, None):
        raise click.UsageError(
            "--compare cross_check compares with another implementation: give --against-target, "
            "--against-package or both"
        )
    if crossed and words["golden_mode"] == "Disable":
        raise click.UsageError("--compare cross_check needs a golden; leave out --golden-mode")
    names = ("result_file", "append_file", "record_file", "html", "junit")
    files = [words[name].resolve() for name in names if words[name] is not None]
    if len(set(files)) < len(files):
        raise click.UsageError(
            "the result, the record and the reports each need a file of their own"
        )
    if words["result_file"] is not None and words["result_file"].suffix == ".jsonl":
        raise click.UsageError("-o is a CSV file; its record is written beside it, as .jsonl")
    context = click.get_current_context()
    for name, others in NEEDS.items():
        given = context.get_parameter_source(name) is not click.core.ParameterSource.DEFAULT
        useful = any(words[other] for other in others) if others else crossed
        if given and not useful:
            needed = " or ".join(f"--{other.replace('_', '-')}" for other in others)
            option = f"--{name.replace('_', '-')}"
            raise click.UsageError(f"{option} goes with {needed or '--compare cross_check'} only")
    if words["dump_on_fail"] and words["golden_mode"] == "Disable":
        raise click.UsageError("--dump-on-fail needs a golden; leave out --golden-mode Disable")
    for name in ("result_file", "append_file"):
        path = words[name]
        if path is not None and path.suffix.lower() in (".xlsx", ".xls", ".html", ".json"):
            raise click.UsageError(f"{path}: results are written as CSV; give a name with .csv")
        if path is not None and not path.resolve().parent.is_dir():
            raise click.UsageError(f"{path}: there is no folder {path.parent}")
    if words["edition"] != "current" and words["standard"] != "mixed":
        raise click.UsageError(f"--edition {words['edition']} goes with --compare mixed only")


def chosen_cases(found: CaseFile, words: dict[str, Any]) -> tuple[Case, ...]:
    """Return the rows that are chosen; end the command if only failed ones are, and none did."""
    from opferry.validation.selection import failed_before, select

    if words["rerun"] is not None and not failed_before(found, words["rerun"]):
        click.echo(f"{found.path}: every row passed, nothing is run again")
        raise SystemExit(0)
    chosen = select(
        found,
        names=_names("-t", words["names"]),
        indexes=words["indexes"],
        count=words["count"],
        seed=words["seed"],
        operators=_names("--op", words["operators"]),
        priorities=words["priorities"],
        soc=words["soc"],
        rerun=words["rerun"],
    )
    if words["distribution"] is None:
        return chosen
    normal = words["distribution"] == "normal"
    return tuple(replace(case, normal_distribution=normal) for case in chosen)


def _names(option: str, text: str | None) -> list[str] | None:
    if text is None:
        return None
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise click.UsageError(f"{option} names nothing; give names, separated by commas")
    return names


def run_settings(words: dict[str, Any]) -> RunSettings:
    """Return the settings of the run."""
    from opferry.core.execution import ExecutionOptions, Priority
    from opferry.validation import GoldenMode, InputSource, RunSettings

    deterministic = words["deterministic"] or words["deterministic_level"] == "1"
    repeat = max(2, words["repeat"]) if words["deterministic_level"] == "1" else words["repeat"]
    crossed = words["standard"] == "cross_check"
    return RunSettings(
        seed=words["seed"],
        options=ExecutionOptions(
            check=words["check"],
            repeat=repeat,
            warmup=words["warmup"],
            exclusive=words["exclusive"],
            deterministic=deterministic,
            priority=None if words["priority"] is None else Priority(words["priority"]),
        ),
        standard=words["standard"],
        edition=words["level"] if crossed else words["edition"],
        golden_mode=GoldenMode(words["golden_mode"]),
        operator_package=words["operator_package"],
        inputs=InputSource(words["inputs"]),
        batch_consistency=words["deterministic_level"] == "3",
    )


def dump_writer(words: dict[str, Any], settings: RunSettings) -> DumpWriter | None:
    """Return what writes tensors, None if none are to be written."""
    from opferry.validation.dumps import DumpWriter, kinds_of

    kinds = frozenset() if words["dump"] is None else kinds_of(words["dump"])
    if not kinds and not words["dump_on_fail"]:
        return None
    beside = words["result_file"] or words["append_file"] or Path("result")
    return DumpWriter(
        words["dump_folder"] or beside.parent / "dump",
        kinds,
        words["dump_format"],
        on_fail=words["dump_on_fail"],
        settings=settings,
    )


def command_again(case_file: Path, names: Collection[str]) -> list[str]:
    """Return the words of a command that runs rows again, with the options of some names."""
    context = click.get_current_context()
    found = ["opferry", "validate", "-i", str(case_file)]
    for parameter in context.command.params:
        name = parameter.name or ""
        given = context.get_parameter_source(name) is not click.core.ParameterSource.DEFAULT
        if name not in names or not (given or name == "seed"):
            continue
        value = context.params[name]
        option = next((word for word in parameter.opts if word.startswith("--")), parameter.opts[0])
        if isinstance(value, bool):
            off = parameter.secondary_opts
            found += [option] if value else off[:1]
        elif name in ("indexes", "priorities"):
            found += [option, ",".join(_range_word(part) for part in value)]
        elif value is not None:
            found += [option, str(value)]
    return found


def _range_word(part: range) -> str:
    if part.stop == sys.maxsize:  # without an end
        return f"{part.start}-"
    return str(part.start) if part.stop == part.start + 1 else f"{part.start}-{part.stop - 1}"
