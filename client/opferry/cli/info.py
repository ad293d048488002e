"""`opferry info`: what a server is."""

from __future__ import annotations

import json

import click

from opferry.cli._common import (
    COULD_NOT_RUN,
    FILE_WIDTH,
    connected,
    json_option,
    reports_errors,
    say,
    server_address,
    target_option,
    timeout_option,
)


@click.command()
@target_option
@timeout_option
@json_option
@reports_errors
def info(target: str | None, timeout: float, as_json: bool) -> None:
    """Show what a server is, what it can run and what it allows.

    Exits 3 if it cannot be reached or takes no operator calls now, so that it serves as a health
    check.
    """
    from dataclasses import asdict

    with server_address(target) as address, connected(address, timeout) as client:
        found = client.server_info()
    fields = asdict(found)
    if as_json:
        click.echo(json.dumps(fields, indent=2))
    else:
        _print(address, fields)
    if not found.serving:
        say("error: the server takes no operator calls now")
        raise SystemExit(COULD_NOT_RUN)


def _print(address: str, fields: dict[str, object]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"server {address}", show_header=False, title_justify="left")
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in fields.items():
        table.add_row(name.replace("_", " "), _text(value))
    console = Console()
    if not console.is_terminal:
        # paths and digests that can be copied
        console = Console(width=FILE_WIDTH)
    console.print(table)


def _text(value: object) -> str:
    if isinstance(value, dict):
        return "\n".join(f"{name}: {_text(item)}" for name, item in value.items())
    if isinstance(value, list | tuple):
        return "\n\n".join(_text(item) for item in value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value) or "-"
