"""`opferry queue`, `opferry cancel` and `opferry lease`: what the users of a farm share."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import time
from typing import TYPE_CHECKING, Any

import click

from opferry.cli._common import (
    COULD_NOT_RUN,
    FAILED,
    FILE_WIDTH,
    WRONG,
    client_configs,
    context_of,
    given_target,
    json_option,
    reports_errors,
    say,
    servers_option,
)

if TYPE_CHECKING:
    from opferry._servers import Answer
    from opferry.config import ClientConfig
    from opferry.core.farm import DeviceLease, Queue

ANSWER_S = 5.0
"""For how long a server is asked."""

ASK_COUNT = 6
"""How often an address is asked whether it is always the same server."""

POLL_S = 0.2
"""How often the command under a lease is looked at, in seconds."""

LEAST_S, MOST_S = 0.001, 3_600_000.0
"""The bounds of a time, in seconds."""

_UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0}


def _seconds(_: click.Context, __: click.Parameter, text: str) -> float:
    """Return the seconds of a time such as 90s, 10m or 1h."""
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([smh])", text)
    seconds = 0.0 if found is None else float(found.group(1)) * _UNITS_S[found.group(2)]
    if not LEAST_S <= seconds <= MOST_S:
        raise click.BadParameter(f"{text[:40]!r} is no time; give 90s, 10m or 1h, at most 1000h")
    return seconds


def _text(_: click.Context, parameter: click.Parameter, given: Any) -> Any:
    """Return what was given, if it can be sent: a terminal may pass on bytes that are no text."""
    for word in (given,) if isinstance(given, str) else given:
        if not word.isprintable():
            raise click.BadParameter(f"{word[:40]!a} has characters that cannot be sent")
    return given


@click.command()
@servers_option
@json_option
@reports_errors
def queue(target: str | None, as_json: bool) -> None:
    """Show the requests on every server of the target, in the order in which they are to run.

    Ids are shown of your own tenant's requests, to an admin of all. A server that does not answer
    is named. Exits 3 if none answered.
    """
    from dataclasses import asdict

    from opferry._servers import ask_each

    answers = ask_each(client_configs(target), lambda client: client.queue(timeout=ANSWER_S))
    if as_json:
        entries = [
            {
                "target": answer.target,
                "error": None if answer.error is None else str(answer.error),
                "queue": None if answer.value is None else asdict(answer.value),
            }
            for answer in answers
        ]
        click.echo(json.dumps(entries, indent=2))
    else:
        heard = [answer.value for answer in answers if answer.value is not None]
        if heard:
            _print(heard)
    _name_silent(answers)
    if all(answer.value is None for answer in answers):
        raise SystemExit(COULD_NOT_RUN)


@click.command()
@click.argument("request_ids", metavar="ID...", nargs=-1, required=True, callback=_text)
@servers_option
@reports_errors
def cancel(request_ids: tuple[str, ...], target: str | None) -> None:
    """End requests, wherever in the target's servers they are; `opferry queue` shows their ids.

    What waits ends at once; what a device runs is finished there, and its result dropped. The id of
    a stream ends all of its requests, and that of a lease ends the lease. Exits 1 if one is
    nowhere, 2 if you may not, 3 if a server that might have it did not answer.
    """
    configs, status = client_configs(target), 0
    for request_id in request_ids:
        status = max(status, _cancel(configs, request_id))
    if status:
        raise SystemExit(status)


def _cancel(configs: list[ClientConfig], request_id: str) -> int:
    """End a request wherever it is, say what came of it, and return the exit status."""
    from opferry import errors
    from opferry._servers import ask_each

    answers = ask_each(configs, lambda client: client.cancel(request_id, timeout=ANSWER_S))
    for answer in answers:
        if answer.error is None:
            running = "; its device finishes the run" if answer.value else ""
            click.echo(f"{request_id} on {answer.target}: ended{running}")
            return 0
    for answer in answers:
        if isinstance(answer.error, errors.AccessError):
            say(f"error: {request_id}: {answer.error}")
            return WRONG
    named = [answer.error is not None and bool(answer.error.reason) for answer in answers]
    silent = [answer for answer, heard in zip(answers, named, strict=True) if not heard]
    asked = [config for config, heard in zip(configs, named, strict=True) if heard]
    infos = ask_each(asked, lambda client: client.server_info(timeout=ANSWER_S))
    ids = sorted({info.value.server_id for info in infos if info.value is not None})
    where = ", ".join(ids) or "any server"
    if ids and not any(request_id.startswith(f"{server_id}-") for server_id in ids):
        say(
            f"error: {request_id}: it is another server's than {where}, which answered; name the "
            "servers themselves, by --target host1:port,host2:port or a context"
        )
    else:
        say(f"error: {request_id}: no such request that you may end is inside {where}")
    _name_silent(silent)
    return COULD_NOT_RUN if silent else FAILED


@click.command(context_settings={"ignore_unknown_options": True})
@click.option(
    "--device-kind",
    default="",
    callback=_text,
    help="A system on chip, or a part of its name: 950PR.",
)
@click.option(
    "--for",
    "duration_s",
    callback=_seconds,
    default="10m",
    show_default=True,
    metavar="TIME",
    help="How long, from the grant on: 90s, 10m, 1h.",
)
@servers_option
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@reports_errors
def lease(
    device_kind: str, duration_s: float, target: str | None, command: tuple[str, ...]
) -> None:
    """Have a device to yourself: to time work, which bears no neighbours.

    With a COMMAND after `--`, it is run under the lease, and its exit status is this one's: its
    calls go to the leased device, by OPFERRY_TARGET and OPFERRY_DEVICE_LEASE. Without one, these
    variables are printed for another terminal, and the lease lasts until Ctrl-C or its time is
    over. It ends by itself if this command dies.
    """
    from opferry._device_lease import first_granted

    with first_granted(client_configs(target), device_kind, duration_s, say) as (config, granted):
        end_s = time.monotonic() + granted.left_s
        where = f"{granted.soc_name or granted.device} ({granted.worker} of {config.target})"
        _check_alone(config, granted)
        say(f"leased {where} for {granted.left_s:.0f} s")
        variables = _variables(config, granted, context_of(given_target(target) or ""))
        if command:
            raise SystemExit(_run(command, variables, end_s))
        for name, value in variables.items():
            click.echo(f"export {name}={shlex.quote(value)}")
        time.sleep(max(0.0, end_s - time.monotonic()))
        say("the lease is over")


def _check_alone(config: ClientConfig, granted: DeviceLease) -> None:
    """End the command if its calls would go to other servers than that of the lease."""
    from opferry.client import Client

    with Client(config) as client:
        ids = {client.server_info(timeout=ANSWER_S).server_id for _ in range(ASK_COUNT)}
    if ids != {granted.server_id}:
        say(
            f"error: {config.target} leads to several servers ({', '.join(sorted(ids))}): lease "
            "from the servers themselves, by --target host1:port,host2:port or a context"
        )
        raise SystemExit(WRONG)


def _variables(config: ClientConfig, granted: DeviceLease, context: str | None) -> dict[str, str]:
    """Return what sends another process's calls to a leased device."""
    found = {"OPFERRY_TARGET": config.target, "OPFERRY_DEVICE_LEASE": granted.token}
    # none, too: one that the environment has goes with another target
    found["OPFERRY_CONTEXT"] = context or ""
    if config.tls is not None and config.tls.server_name:
        # the server's own address is in no certificate
        found["OPFERRY_TLS_SERVER_NAME"] = config.tls.server_name
    return found


def _run(command: tuple[str, ...], variables: dict[str, str], end_s: float) -> int:
    """Run a command under a lease; return its exit status."""
    try:
        process = subprocess.Popen(command, env={**os.environ, **variables})
    except OSError as error:
        say(f"error: {command[0]}: {error.strerror}")
        return 127
    told = False
    try:
        while True:
            try:
                return process.wait(POLL_S)
            except subprocess.TimeoutExpired:
                if not told and time.monotonic() > end_s:
                    say("the lease is over; the command runs on, and its next calls are refused")
                    told = True
    except KeyboardInterrupt:
        # the terminal has told the command, too
        return process.wait()


def _name_silent(answers: list[Answer[Any]]) -> None:
    for answer in answers:
        if answer.error is not None:
            say(f"{answer.target} did not answer: {answer.error}")


def _print(queues: list[Queue]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for name in ("REQUEST", "TENANT", "CLASS", "OPERATOR", "STATE", "AGE", "WAITS YET", "MIB"):
        table.add_column(name, justify="right" if name in ("AGE", "WAITS YET", "MIB") else "left")
    streams = any(each.stream_id for found in queues for each in found.requests)
    if streams:
        table.add_column("STREAM")
    for found in queues:
        for each in found.requests:
            waits = each.state.startswith("waiting")
            table.add_row(
                each.request_id or f"{found.server_id}-...",
                each.tenant,
                each.priority,
                each.operator,
                f"{each.state} on {each.worker}" if each.worker and not waits else each.state,
                f"{each.age_s:.1f} s",
                f"about {each.expected_wait_s:.1f} s" if waits else "",
                f"{each.data_bytes / 2**20:.2f}",
                *([each.stream_id] if streams else []),
            )
        for lease in found.device_leases:
            state = "device leased" if lease.worker else "waiting for a device to lease"
            table.add_row(
                lease.request_id or f"{found.server_id}-...",
                lease.tenant,
                "lease",
                "",
                f"{state}: {lease.worker}" if lease.worker else state,
                "",
                f"{lease.left_s:.0f} s left" if lease.worker else "",
                "",
            )
    console = Console()
    if not console.is_terminal:
        console = Console(width=FILE_WIDTH)
    if table.row_count:
        console.print(table)
    else:
        click.echo(f"no requests on {', '.join(found.server_id for found in queues)}")
