"""`opferry plan`: what a call would take, without running it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from opferry.cli._common import (
    asked_option,
    connected,
    given_target,
    json_option,
    layout_of,
    operator_options,
    package_line,
    package_option,
    reports_errors,
    say,
    timeout_option,
)

if TYPE_CHECKING:
    from opferry.operators.base import Operator, Plan

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
@click.option("--grad-query-embed", type=_SHAPE, help="Its shape, for example 2,8,4,64.")
@click.option("--grad-key-embed", type=_SHAPE, help="Default: as grad_query_embed.")
@click.option("--query", type=_SHAPE, help="Its shape; the backward's is as grad_query_embed.")
@click.option("--key", type=_SHAPE, help="Default: as query; the backward's as grad_key_embed.")
@click.option("--cos", type=_SHAPE, required=True, help="Its shape; sin has the same.")
@click.option(
    "--query-and-key/--no-query-and-key",
    default=False,
    help="Whether the backward is given query and key too.",
)
@click.option("--dtype", default="float32", show_default=True, help="float32, float16 or bfloat16.")
@operator_options
@asked_option
@package_option
@timeout_option
@json_option
@reports_errors
def plan(
    query_and_key: bool,
    dtype: str,
    operator: str,
    layout: str,
    rotary_mode: str,
    target: str | None,
    operator_package: str,
    timeout: float,
    as_json: bool,
    **shapes: tuple[int, ...] | None,
) -> None:
    """Plan a call of an operator: outputs, template, workspace, bytes.

    With a server (--target or --context) it is asked; without one the contract alone answers. No
    tensor data is needed or sent.
    """
    import opferry
    from opferry._calls import prepare_plan
    from opferry.operators import operator_named
    from opferry.operators.call import check_contract

    called = operator_named(operator)
    kind = opferry.DType.parse(dtype)
    inputs: dict[str, Any] = {
        name: opferry.TensorSpec(kind, shape)
        for name, shape in _shapes_of(called, shapes, optional=query_and_key).items()
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
        call = prepare_plan(called.name, inputs, attributes, operator_package)
        found = check_contract(call).plan
        assert found is not None  # noqa: S101 - a plan is always checked
    else:
        with connected(named, timeout) as client:
            # each operator has a method of its name
            found = getattr(client, f"plan_{called.python_name}")(
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


def _shapes_of(
    operator: Operator, given: Mapping[str, tuple[int, ...] | None], *, optional: bool
) -> dict[str, tuple[int, ...]]:
    """Return the shape of each input; one that is not given is like another.

    Args:
        operator: the operator.
        given: the shapes of the command line.
        optional: whether optional inputs are there that are not given.

    Raises:
        UsageError: for a shape that is missing, or of an input that the operator does not have.
    """
    names = [declared.name for declared in operator.inputs]
    for name, shape in given.items():
        if shape is not None and name not in names:
            raise click.UsageError(f"{operator.python_name} has no input {name}")
    found: dict[str, tuple[int, ...]] = {}
    for declared in operator.inputs:
        shape = given.get(declared.name)
        if shape is None and (optional or not declared.optional):
            shape = found.get(declared.like)
            if shape is None:
                word = declared.name.replace("_", "-")
                raise click.UsageError(f"{operator.python_name} needs --{word}, a shape")
        if shape is not None:
            found[declared.name] = shape
    return found


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
