"""`opferry plan`: what a call would take, without running it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from opferry.cli._common import (
    connected,
    given_target,
    json_option,
    layout_of,
    package_line,
    package_option,
    reports_errors,
    say,
    timeout_option,
)
from opferry.envconfig import TARGET_VARIABLE

if TYPE_CHECKING:
    from opferry.operators.base import Plan

    _ParamType = click.ParamType[tuple[int, ...]]
else:
    _ParamType = click.ParamType  # generic from click 8.4 on


class ShapeType(_ParamType):
    """A shape such as 2,2048,16,128."""

    name = "shape"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        """Return the extents."""
        if isinstance(value, tuple):
            return value
        try:
            return tuple(int(part) for part in value.strip("()[] ,").split(","))
        except ValueError:
            self.fail(f"{value!r} is not a shape such as 2,2048,16,128", param, ctx)


_SHAPE = ShapeType()


@click.command()
@click.option(
    "--grad-query-embed", type=_SHAPE, required=True, help="Its shape, for example 2,8,4,64."
)
@click.option("--grad-key-embed", type=_SHAPE, help="Default: as grad_query_embed.")
@click.option("--cos", type=_SHAPE, required=True, help="Its shape; sin has the same.")
@click.option(
    "--query-and-key/--no-query-and-key", default=False, help="Whether they are given too."
)
@click.option("--dtype", default="float32", show_default=True, help="float32, float16 or bfloat16.")
@click.option(
    "--layout", default="BSND", show_default=True, help="BSND, SBND or TND, or its number."
)
@click.option("--rotary-mode", default="half", show_default=True, help="half.")
@click.option(
    "--target",
    metavar="HOST:PORT",
    help=f"The server to ask. Default: {TARGET_VARIABLE}, else the contract alone answers.",
)
@package_option
@timeout_option
@json_option
@reports_errors
def plan(
    grad_query_embed: tuple[int, ...],
    grad_key_embed: tuple[int, ...] | None,
    cos: tuple[int, ...],
    query_and_key: bool,
    dtype: str,
    layout: str,
    rotary_mode: str,
    target: str | None,
    operator_package: str,
    timeout: float,
    as_json: bool,
) -> None:
    """Plan a call of ApplyRotaryPosEmbGrad: outputs, template, workspace, bytes.

    With a server (--target) it is asked; without one the contract alone answers. No tensor data is
    needed or sent.
    """
    import opferry
    from opferry._calls import prepare_plan
    from opferry.operators.call import check_contract

    kind = opferry.DType.parse(dtype)
    key_shape = grad_key_embed or grad_query_embed
    inputs: dict[str, Any] = {
        "grad_query_embed": opferry.TensorSpec(kind, grad_query_embed),
        "grad_key_embed": opferry.TensorSpec(kind, key_shape),
        "cos": opferry.TensorSpec(kind, cos),
        "sin": opferry.TensorSpec(kind, cos),
        "query": opferry.TensorSpec(kind, grad_query_embed) if query_and_key else None,
        "key": opferry.TensorSpec(kind, key_shape) if query_and_key else None,
    }
    attributes: dict[str, Any] = {
        "layout": layout_of(layout),
        "rotary_mode": rotary_mode,
    }
    named = given_target(target)
    if named is None:
        if operator_package:
            raise click.UsageError("--operator-package needs a server; name one with --target")
        say("no --target: planned by the contract alone")
        call = prepare_plan("ApplyRotaryPosEmbGrad", inputs, attributes, operator_package)
        found = check_contract(call).plan
        assert found is not None  # noqa: S101 - a plan is always checked
    else:
        with connected(named, timeout) as client:
            found = client.plan_apply_rotary_pos_emb_grad(
                **inputs, **attributes, operator_package=operator_package
            )
    fields = plan_fields(found)
    if as_json:
        click.echo(json.dumps(fields, indent=2))
        return
    for name, value in fields.items():
        if name == "outputs":
            for output, spec in value.items():
                click.echo(f"{output:22} {spec['dtype']} {spec['shape']}")
        elif name == "operator_package" and found.operator_package is not None:
            click.echo(f"{name:22} {package_line(found.operator_package)}")
        elif value is not None:
            click.echo(f"{name:22} {value}")


def plan_fields(found: Plan) -> dict[str, Any]:
    """Return a plan as JSON can hold it."""
    package = found.operator_package
    return {
        "operator": found.operator.name,
        "outputs": {
            name: {"dtype": spec.dtype.value, "shape": list(spec.shape)}
            for name, spec in found.outputs.items()
        },
        "template": found.template,
        "tiling_key": found.tiling_key,
        "broadcast_axes": list(found.broadcast_axes),
        "input_bytes": found.input_bytes,
        "output_bytes": found.output_bytes,
        "workspace_bytes": found.workspace_bytes,
        "device_workspace_bytes": found.device_workspace_bytes,
        "operator_package": None if package is None else vars(package),
        "total_bytes": found.total_bytes,
    }
