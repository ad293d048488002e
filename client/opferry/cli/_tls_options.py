"""The options of what a context keeps, for the commands that make one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import click

from opferry.envconfig import SYSTEM

if TYPE_CHECKING:
    from opferry._contexts import Context

_F = TypeVar("_F", bound=Callable[..., Any])

_FILE = click.Path(exists=True, dir_okay=False, resolve_path=True)

_OPTIONS = (
    click.option(
        "--target", metavar="TARGET", help="host:port, host:port,host:port or dns:///host:port."
    ),
    click.option(
        "--server",
        "servers",
        multiple=True,
        metavar="HOST:PORT",
        help="One of the target's servers, where its name stands for a proxy before them; may be "
        "given several times.",
    ),
    click.option(
        "--tls-authorities",
        "authorities",
        metavar="FILE",
        help=f"Use TLS: a PEM file with the server's authorities, or {SYSTEM} for the usual ones.",
    ),
    click.option(
        "--tls-certificate", "certificate", type=_FILE, help="A PEM file: your own certificate."
    ),
    click.option("--tls-key", "key", type=_FILE, help="A PEM file: its key."),
    click.option(
        "--tls-server-name", "server_name", help="The name that the server's certificate has."
    ),
    click.option(
        "--insecure", is_flag=True, help="Send the token where others can read it, without TLS."
    ),
)


def context_options(command: _F) -> _F:
    """Give a command the options of what a context keeps."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def context_of_options(words: dict[str, Any], before: Context | None) -> Context:
    """Return the context that options describe, over what was kept before.

    Raises:
        click.UsageError: if there is no target, or it is none.
    """
    from opferry._contexts import Context
    from opferry._targets import ALLOWED, parse_target
    from opferry.config import TlsConfig
    from opferry.envconfig import tls_of_words

    target = words["target"] or (before.target if before is not None else None)
    if target is None:
        raise click.UsageError("give --target: there is no context of that name yet")
    for each in (target, *words["servers"]):
        if parse_target(each) is None:
            raise click.UsageError(f"{each!r} is no target; allowed are {ALLOWED}")
    context = Context(target) if before is None else replace(before, target=target)
    names = ("authorities", "certificate", "key", "server_name")
    said = {name: words[name] for name in names if words[name]}
    if said:
        if (file := said.get("authorities")) not in (None, SYSTEM):
            said["authorities"] = _FILE.convert(file, None, None)
        context = replace(context, tls=tls_of_words({**vars(context.tls or TlsConfig()), **said}))
    if words["servers"]:
        context = replace(context, servers=tuple(words["servers"]))
    return replace(context, insecure=context.insecure or words["insecure"])
