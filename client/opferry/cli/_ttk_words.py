"""TTK's words on the command line: those that mean the same, and those that are not served."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    _RangesType = click.ParamType[tuple[range, ...]]
    _CountType = click.ParamType[int]
else:
    _RangesType = _CountType = click.ParamType  # generic from click 8.4 on

NOT_SERVED = {
    "--no-op": "name the operators that are to run with --op",
    "--exclude-operator": "name the operators that are to run with --op",
    "--provider": "give --compare cross_check with --against-target or --against-package",
    "--config": "give --compare cross_check with --against-target or --against-package",
    "--xpu-perf": "give --compare cross_check with --against-target or --against-package",
    "--dev": "the server chooses the device; --exclusive has it alone",
    "--device": "the server chooses the device; --exclusive has it alone",
    "--device-whitelist": "the server chooses the device; --exclusive has it alone",
    "--device-blacklist": "the server chooses the device; --exclusive has it alone",
    "--pc": "the server runs as many cases at a time as its devices take",
    "--process-count": "the server runs as many cases at a time as its devices take",
    "--proc-no-reuse": "a worker that a case broke is replaced by the server",
    "--no-memory-check": "the server's limits say what it takes; see opferry info",
    "--plat": "the server knows its SoC; --soc chooses rows",
    "--platform": "the server knows its SoC; --soc chooses rows",
    "-l": "the server's limits say what it takes; see opferry info",
    "--limit": "the server's limits say what it takes; see opferry info",
    "--task-prof": "each run is timed by device events; see --run and --exclusive",
    "--npu-timeout": "the server's option device.operator-timeout-ms says how long a run may take",
    "--no-prof": "use --golden-mode Disable, or --dump in,golden",
    "--manual-data-dirs": "name the files in the column manual_tensor_binaries",
    "--single-log": "the server's log has the request id of each row",
    "--plugin": "the operator's own reference is the golden",
    "--title": "the result file has every column; choose there",
    "--csv-preserve": "the result file has the input's columns as they are",
    "--print": "use --json for programs",
    "--kernel": "a file's api_name says what is called",
    "--cpu": "leave out --target: an embedded CPU server runs the cases",
    "--backend": "the server has one backend; see opferry info",
}
"""TTK's words that are not served, and what to use instead."""


class ValidateCommand(click.Command):
    """A command that knows TTK's words, also those that it does not serve."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the command line; a word of TTK's that is not served says what to use instead."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            advice = NOT_SERVED.get(error.option_name)
            if advice is None:
                raise
            text = f"{error.option_name} is a word of TTK's that is not served here; {advice}"
            raise click.UsageError(text, ctx) from error
        except click.BadParameter as error:
            advice = _advice(error)
            if not advice:
                raise
            raise click.UsageError(f"{error.format_message()} {advice}", ctx) from error


def _advice(error: click.BadParameter) -> str:
    """Return what to use in place of a value of TTK's that is not served, "" for any other."""
    name = error.param.name if error.param is not None else ""
    if name == "standard" and "requant" in error.message:
        return "requant is for float8, which this operator does not take."
    if name == "dump_format" and "print" in error.message:
        return "Use npy, and numpy.load."
    if name == "deterministic_level" and "'2'" in error.message:
        return "Level 2 is a setting of the graph compiler, which takes no part here; use 1."
    return ""


class RangesType(_RangesType):
    """Numbers and ranges, such as 1,3 or 1-10."""

    name = "ranges"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[range, ...]:
        """Return the ranges."""
        from opferry.validation.selection import parse_ranges

        if isinstance(value, tuple):
            return value
        try:
            return parse_ranges(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


RANGES = RangesType()
"""The type of --ti and --priority."""


class RepeatType(_CountType):
    """A number of runs; TTK's true and false are 1 and 0."""

    name = "count"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the number."""
        if isinstance(value, int):
            return int(value)
        words = {"true": 1, "false": 0}
        word = value.strip().lower()
        if word not in words and not (word.isascii() and word.isdigit()):
            self.fail(f"{value!r} is no number of runs; give 0 or more", param, ctx)
        return words.get(word, int(word) if word.isdigit() else 0)
