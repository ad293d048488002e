"""`opferry login`, `opferry logout` and `opferry context`: where calls go, and who calls."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from opferry.cli._common import WRONG, json_option, reports_errors, say
from opferry.cli._tls_options import context_of_options, context_options

if TYPE_CHECKING:
    from opferry._contexts import Contexts

CHECK_S = 10.0
"""For how long the server is asked whether it knows the token."""

FIRST_NAME = "default"
"""The name of a user's first context, if he does not give one."""

name_option = click.option(
    "--context", "name", metavar="NAME", help=f"The context. Default: the current, or {FIRST_NAME}."
)


@click.command()
@name_option
@context_options
@click.option(
    "--token-file",
    type=click.Path(exists=True, dir_okay=False, allow_dash=True),
    help="Read the token from this file, or from - for the input. Default: ask for it.",
)
@click.option("--no-check", is_flag=True, help="Do not ask the server whether it knows the token.")
@reports_errors
def login(name: str | None, token_file: str | None, no_check: bool, **words: Any) -> None:
    """Keep a token, and make its context the current one.

    The token is asked for, or read from a file or the input; it is no option, because options can
    be seen by others. It is kept in a file that only you can read.
    """
    from opferry import _contexts

    kept = _read()
    name = _contexts.checked_name(name or kept.current or FIRST_NAME)
    context = context_of_options(words, kept.contexts.get(name))
    kept.contexts[name] = context
    kept.current = name
    token = _token(token_file)
    if not no_check:
        import opferry

        with opferry.connect(
            context.target,
            token=token,
            tls=context.tls,
            insecure=context.insecure,
            retry=opferry.RetryConfig(attempts=1),
        ) as client:
            info = client.server_info(timeout=CHECK_S)
        say(f"{context.target} knows you as tenant {info.tenant}, role {info.role}")
    _contexts.write_contexts(kept)
    _contexts.keep_token(name, token)
    say(f"the token of context {name} is kept; it is the current context")


@click.command()
@name_option
@reports_errors
def logout(name: str | None) -> None:
    """Forget the token of a context; the context stays."""
    from opferry import _contexts

    name = name or _read().current or FIRST_NAME
    _contexts.keep_token(name, None)
    say(f"there is no token of context {name} here any more")


@click.group(invoke_without_command=False)
def context() -> None:
    """Names for target, TLS and token, kept in your configuration."""


@context.command("list")
@json_option
@reports_errors
def list_(as_json: bool) -> None:
    """Show all contexts; the current one has a star."""
    import json

    kept = _read()
    if as_json:
        entries = [_entry(kept, name) for name in kept.contexts]
        click.echo(json.dumps(entries, indent=2))
        return
    for name, each in kept.contexts.items():
        click.echo(f"{'*' if name == kept.current else ' '} {name}  {each.target}")


@context.command()
@click.argument("name", required=False)
@reports_errors
def show(name: str | None) -> None:
    """Show a context, or the current one, as JSON: everything but its token."""
    import json

    kept = _read()
    name = name or kept.current
    if not name:
        raise click.UsageError("there is no current context; name one")
    kept.find(name)
    click.echo(json.dumps(_entry(kept, name), indent=2))


@context.command()
@click.argument("name")
@reports_errors
def use(name: str) -> None:
    """Make a context the current one: what counts where neither target nor context is given."""
    from opferry import _contexts

    kept = _read()
    kept.find(name)
    kept.current = name
    _contexts.write_contexts(kept)


@context.command()
@click.argument("name")
@context_options
@reports_errors
def add(name: str, **words: Any) -> None:
    """Keep a new context; `opferry login` adds its token."""
    from opferry import _contexts

    kept = _read()
    if _contexts.checked_name(name) in kept.contexts:
        raise click.UsageError(f"there is a context {name!r} already; remove it first")
    kept.contexts[name] = context_of_options(words, None)
    kept.current = kept.current or name
    _contexts.write_contexts(kept)


@context.command()
@click.argument("name")
@reports_errors
def remove(name: str) -> None:
    """Forget a context and its token."""
    from opferry import _contexts

    kept = _read()
    kept.find(name)
    _contexts.keep_token(name, None)
    del kept.contexts[name]
    if kept.current == name:
        kept.current = ""
    _contexts.write_contexts(kept)


def _read() -> Contexts:
    from opferry._contexts import read_contexts

    return read_contexts()


def _entry(kept: Contexts, name: str) -> dict[str, Any]:
    from dataclasses import asdict

    from opferry._contexts import token_of

    return {
        "name": name,
        "current": name == kept.current,
        **asdict(kept.find(name)),
        "has_token": token_of(name) is not None,
    }


def _token(file: str | None) -> str:
    """Return the token that a user gives, without showing it."""
    from opferry._token import FILE_BYTES, TokenError, read_token, valid_token

    if file is None and sys.stdin.isatty():
        given = click.prompt("Token", hide_input=True, err=True).strip()
    elif file in (None, "-"):
        given = sys.stdin.read(FILE_BYTES).strip()
    else:
        return read_token(Path(file or ""))
    try:
        return valid_token(given)
    except TokenError as error:
        say(f"error: {error}")
        raise SystemExit(WRONG) from None
