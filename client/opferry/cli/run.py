"""`opferry run`: one call on tensors from a file."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from opferry.cli._common import (
    connected,
    deterministic_option,
    exclusive_option,
    json_option,
    layout_of,
    operator_options,
    package_line,
    package_option,
    priority_option,
    reports_errors,
    say,
    server_address,
    target_option,
    timeout_option,
    warmup_option,
)

if TYPE_CHECKING:
    from opferry.results import Progress

TELL_PERIOD_S = 2.0
"""How often a wait is told, in seconds."""


@click.command()
@click.option(
    "-i",
    "--input",
    "source",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    required=True,
    help="A .safetensors or .npz file with the inputs by their names.",
)
@click.option(
    "-o",
    "--output",
    "result_file",
    type=click.Path(dir_okay=False, path_type=Path),
    required=True,
    help="Where to write the outputs: .safetensors or .npz.",
)
@operator_options
@click.option("--dtype", help="What raw 16-bit elements of an .npz file are: bfloat16 or float16.")
@click.option("--repeat", default=1, show_default=True, help="How often the operator runs.")
@warmup_option
@exclusive_option
@priority_option
@deterministic_option
@click.option(
    "--check/--no-check", default=True, help="Check the contract, or let the device judge."
)
@click.option("--checksum", is_flag=True, help="Protect the tensors by digests on the way.")
@target_option
@package_option
@timeout_option
@json_option
@reports_errors
def run(
    source: Path,
    result_file: Path,
    operator: str,
    layout: str,
    rotary_mode: str,
    dtype: str | None,
    target: str | None,
    timeout: float,
    as_json: bool,
    **options: Any,
) -> None:
    """Run an operator once on the tensors of a file.

    The file holds its inputs by their names: for apply_rotary_pos_emb_grad grad_query_embed,
    grad_key_embed, cos and sin, and query and key if grad_cos and grad_sin are wanted; for
    apply_rotary_pos_emb query, key, cos and sin.
    """
    import opferry
    from opferry.cli._tensor_files import check_output, load_tensors, save_tensors
    from opferry.operators import operator_named

    if result_file.exists() and result_file.samefile(source):
        raise click.UsageError(f"--output {result_file} is the input; give it another name")
    raw = None if dtype is None else opferry.DType.parse(dtype)
    arrays: dict[str, Any] = dict(load_tensors(source, raw))
    called = operator_named(operator)
    called.check_present(arrays)
    first = called.inputs[0].name
    check_output(result_file, opferry.DType.of(arrays[first].dtype, first))
    with server_address(target) as address, connected(address, timeout) as client:
        # each operator has a method of its name
        result = getattr(client, called.python_name)(
            **arrays,
            layout=layout_of(layout),
            rotary_mode=rotary_mode,
            on_progress=_wait_teller(),
            **options,
        )
    outputs = {
        output.name: array
        for output, array in zip(called.outputs, result, strict=True)
        if array is not None
    }
    save_tensors(result_file, outputs)
    _report(outputs, result.execution, as_json)


def _wait_teller() -> Callable[[Progress], None]:
    """Return what tells of a wait in the queue, not more often than is readable."""
    from opferry import ProgressState

    told_s = time.monotonic()

    def tell(progress: Progress) -> None:
        nonlocal told_s
        now_s = time.monotonic()
        if progress.state is ProgressState.QUEUED and now_s - told_s >= TELL_PERIOD_S:
            told_s = now_s
            say(
                f"{progress.request_id} waits: {progress.position} before it, about "
                f"{progress.expected_wait_s:.0f} s"
            )

    return tell


def _report(outputs: dict[str, Any], execution: Any, as_json: bool) -> None:
    from dataclasses import asdict

    shapes = {
        name: {"dtype": str(array.dtype), "shape": list(array.shape)}
        for name, array in outputs.items()
    }
    if as_json:
        click.echo(json.dumps({"outputs": shapes, "execution": asdict(execution)}, indent=2))
        return
    for name, found in shapes.items():
        click.echo(f"{name:12} {found['dtype']} {found['shape']}")
    kernel = ", ".join(f"{ns / 1e6:.3f}" for ns in execution.timings.kernel_ns)
    where = f"{execution.device} ({execution.backend})"
    click.echo(f"ran on {where}, kernel {kernel} ms, request {execution.request_id}")
    click.echo(f"operator package {package_line(execution.operator_package)}")
