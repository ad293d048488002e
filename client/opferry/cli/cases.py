"""`opferry cases`: suites of cases, written as TTK files."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from opferry.cli._common import WRONG, reports_errors, say

if TYPE_CHECKING:
    _ParamType = click.ParamType[int]
else:
    _ParamType = click.ParamType  # generic from click 8.4 on

LEVELS = ("L0", "L1", "L2")
FORMATS = ("aclnn", "e2e")
DISTRIBUTIONS = ("uniform", "normal", "both")

FOR_POSITIVES = ("level", "row_count", "seed", "largest_bytes", "distribution")
"""The options that say nothing about negative cases."""

_UNITS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30}


class SizeType(_ParamType):
    """A number of bytes, such as 128MiB."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the bytes."""
        if isinstance(value, int):
            return value
        found = re.fullmatch(r"([0-9]{1,15})\s*(?:([kmg]?)i?b?)", value.strip(), re.IGNORECASE)
        if found is None:
            self.fail(f"{value!r} is not a size such as 128MiB or 4096", param, ctx)
        return int(found[1]) * _UNITS[found[2].lower()]


@click.command()
@click.option(
    "--operator",
    required=True,
    metavar="NAME",
    help="Whose cases, for example apply_rotary_pos_emb_grad.",
)
@click.option(
    "--level",
    type=click.Choice(LEVELS),
    default="L0",
    show_default=True,
    help="How much to test: 5,000 (L0), 10,000 (L1) or 30,000 rows (L2), each larger than the one "
    "before.",
)
@click.option(
    "-o",
    "--output",
    "case_file",
    type=click.Path(dir_okay=False, path_type=Path),
    required=True,
    help="Write the cases here as CSV; an old file is replaced.",
)
@click.option(
    "--rows",
    "row_count",
    type=click.IntRange(min=1),
    metavar="N",
    help="How many rows; fewer are the first of more. Default: as many as the level has.",
)
@click.option(
    "--seed",
    default=0,
    show_default=True,
    help="Other seeds give other cases; the same seed the same bytes.",
)
@click.option(
    "--largest-bytes",
    type=SizeType(),
    metavar="SIZE",
    help="The most that the inputs of one case take, such as 64MiB. Default: 4MiB (L0), 128MiB "
    "(L1), 256MiB (L2).",
)
@click.option(
    "--input-dist",
    "distribution",
    type=click.Choice(DISTRIBUTIONS),
    default="both",
    show_default=True,
    help="How inputs are distributed: normal fills the column normal_distribution, both does in "
    "half of the rows, as the standard asks.",
)
@click.option(
    "--format",
    "kind",
    type=click.Choice(FORMATS),
    default="aclnn",
    show_default=True,
    help="The kind of file.",
)
@click.option(
    "--negative",
    is_flag=True,
    help="Write the cases that must be refused instead: at least one for each rule of the "
    "operator's contract, with the column expected_status.",
)
@reports_errors
def cases(
    operator: str,
    case_file: Path,
    kind: str,
    negative: bool,
    **words: Any,
) -> None:
    """Write a suite of cases for an operator, by the ecosystem standard's rules.

    The cases have every layout, dtype, broadcast and kernel template, sizes of powers of two and
    one less, the boundaries of each rule, views, and values up to infinity and NaN. Every row
    satisfies the operator's contract. `opferry validate` runs the file, and so does TTK.
    """
    from opferry.validation import CaseFileError
    from opferry.validation.generation import generated_rows, negative_rows, write_rows

    if negative:
        context = click.get_current_context()
        for parameter in context.command.params:
            source = context.get_parameter_source(parameter.name or "")
            if parameter.name in FOR_POSITIVES and source is not click.core.ParameterSource.DEFAULT:
                text = f"{parameter.opts[0]} says nothing about --negative cases; leave it out"
                raise click.UsageError(text)
    rows = negative_rows(operator) if negative else generated_rows(operator, **words)
    try:
        count = write_rows(case_file, rows, kind, negative=negative)
    except CaseFileError as error:
        say(f"error: {error}")
        raise SystemExit(WRONG) from error
    click.echo(f"{case_file}: {count} cases")
