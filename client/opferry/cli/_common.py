"""What the commands share: options, the server to use, errors turned into exit statuses."""

from __future__ import annotations

import contextlib
import functools
import re
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

import click

from opferry.envconfig import TARGET_VARIABLE

if TYPE_CHECKING:
    from opferry.client import Client
    from opferry.config import ClientConfig
    from opferry.core.execution import OperatorPackage

FAILED, WRONG, COULD_NOT_RUN = 1, 2, 3
"""The exit statuses beside 0."""

DEFAULT_OPERATOR = "apply_rotary_pos_emb_grad"
"""The operator of a command that names none."""

FILE_WIDTH = 200
"""The most columns of a table where it is not a terminal that sets the width."""

UNREACHABLE_S = 5.0
"""For how long a command tries to reach a server."""

_F = TypeVar("_F", bound=Callable[..., Any])


class _Chosen:
    """What the command line says of where calls go, and what came of it."""

    context: str | None = None
    """The context of --context."""
    contexts: dict[str, str]
    """The contexts by the targets that they were found for."""

    def __init__(self) -> None:
        self.contexts = {}


_chosen = _Chosen()


def _choose_context(_: click.Context, __: click.Parameter, name: str | None) -> None:
    _chosen.context = name
    _chosen.contexts.clear()


def target_option(command: _F) -> _F:
    """Give a command the options --target and --context, for one that can do without a server."""
    words = f"The server. Default: {TARGET_VARIABLE} or the context, else an embedded CPU server."
    return _target_option(command, "HOST:PORT", words)


def asked_option(command: _F) -> _F:
    """Give a command the options --target and --context, for one that a server may answer too."""
    words = (
        f"The server to ask. Default: {TARGET_VARIABLE} or the context, else the contract alone "
        "answers."
    )
    return _target_option(command, "HOST:PORT", words)


def servers_option(command: _F) -> _F:
    """Give a command the options --target and --context, for one that asks each server."""
    words = f"The servers, or a name of all. Default: {TARGET_VARIABLE} or the context."
    return _target_option(command, "HOST:PORT,...", words)


def _target_option(command: _F, metavar: str, words: str) -> _F:
    with_context = click.option(
        "--context",
        metavar="NAME",
        expose_value=False,
        callback=_choose_context,
        help="The context that gives target, TLS and token; see `opferry context`.",
    )(command)
    return click.option(
        "--target",
        metavar=metavar,
        help=words,
    )(with_context)


timeout_option = click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=600.0,
    show_default=True,
    help="Seconds that one call may take.",
)
package_option = click.option(
    "--operator-package",
    default="",
    metavar="NAME",
    help="Which of the server's operator packages runs the call. Default: the server's own.",
)
warmup_option = click.option(
    "--warmup",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="How often the operator runs before that, untimed.",
)
exclusive_option = click.option(
    "--exclusive", is_flag=True, help="Run while nothing else runs on the device: for timing."
)
priority_option = click.option(
    "--class",
    "priority",
    type=click.Choice(["interactive", "batch"]),
    help="How urgent it is among the server's other requests. Default: interactive for run, batch "
    "for validate.",
)
deterministic_option = click.option(
    "--deterministic", is_flag=True, help="Fail unless every timed run gives the same bits."
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON to read by program.")


def say(text: str) -> None:
    """Write a remark to stderr; stdout is for results."""
    click.echo(text, err=True)


def given_target(target: str | None) -> str | None:
    """Return the server that the user named, by option, variable or context, or None."""
    if target is not None and not target.strip():
        # an unset variable on the command line must not turn into another server
        raise click.UsageError("--target is empty; give HOST:PORT, or leave it out")
    if target is not None and _chosen.context is None:
        return target
    from opferry._connect import find_place

    place = find_place(target, _chosen.context)
    if place is None:
        return None
    if place.name:
        _chosen.contexts[place.target] = place.name
    return place.target


def context_of(target: str) -> str | None:
    """Return the name of the context that a target was found by, or None."""
    return _chosen.contexts.get(target)


def package_line(package: OperatorPackage) -> str:
    """Return an operator package in words: name, library, digest, and whether it may be wrong."""
    line = package.name
    if package.digest:
        line += f", {package.library_file}, SHA-256 {package.digest}"
    if package.known_answer == "FAILED":
        line += "; its known answer was wrong"
    return line


def operator_options(command: _F) -> _F:
    """Give a command the options that say which operator it calls, and its attributes."""
    operator = click.option(
        "--operator",
        metavar="NAME",
        default=DEFAULT_OPERATOR,
        show_default=True,
        help="The operator, by any of its names.",
    )
    layout = click.option(
        "--layout",
        default="BSND",
        show_default=True,
        help="BSND, SBND or TND, for the forward also BNSD and BSH, or its number.",
    )
    mode = click.option(
        "--rotary-mode",
        default="half",
        show_default=True,
        help="half, for the forward also interleave and quarter.",
    )
    return operator(layout(mode(command)))


def layout_of(word: str) -> int | str:
    """Return a layout's number, or its name, from the command line."""
    return int(word) if re.fullmatch(r"-?[0-9]{1,9}", word) else word


@contextlib.contextmanager
def server_address(target: str | None) -> Iterator[str]:
    """Yield the server's address; if none is named, start an embedded one and say so."""
    named = given_target(target)
    if named is not None:
        yield named
        return
    from opferry.embedded import embedded_server

    with embedded_server() as server:
        say(
            f"no --target: using an embedded CPU server on {server.address} "
            "(the reference, not a device)"
        )
        yield server.address


def connected(address: str, timeout: float, reconnect_s: float = 0.0) -> Client:
    """Return a client as a person at a terminal wants it.

    It gives up soon on a server that cannot be reached, stays in line at one that is busy for as
    long as *timeout* seconds, and waits *reconnect_s* seconds for one that was there and has gone.
    """
    import opferry

    retry = opferry.RetryConfig(
        attempts=10_000, total_s=timeout, unreachable_s=UNREACHABLE_S, reconnect_s=reconnect_s
    )
    opferry.tune_malloc()  # this process is ours
    return opferry.connect(address, timeout=timeout, retry=retry, context=context_of(address))


def client_configs(target: str | None) -> list[ClientConfig]:
    """Return the configuration of a client of each server of the target that the user named."""
    from opferry._connect import client_config
    from opferry._servers import each_server
    from opferry.config import RetryConfig

    named = given_target(target)
    if named is None:
        raise click.UsageError(f"no server: give --target or --context, or set {TARGET_VARIABLE}")
    config = client_config(named, retry=RetryConfig(attempts=1), context=context_of(named))
    return each_server(config, config.servers)


def exit_status_of(error: Exception) -> int:
    """Return the exit status that goes with an error of opferry's."""
    from opferry import errors

    if isinstance(error, errors.RequestError):
        return WRONG
    busy = (errors.TransportError, errors.DeadlineError, errors.CallCancelledError)
    if isinstance(error, (*busy, errors.ServerBusyError)) or type(error) is errors.ServerError:
        return COULD_NOT_RUN
    return FAILED


def reports_errors(command: _F) -> _F:
    """Make a command print errors of opferry's as one line, with the right exit status."""

    @functools.wraps(command)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        # Only what was imported can have been raised: nothing is loaded to catch an error.
        try:
            return command(*args, **kwargs)
        except KeyboardInterrupt:
            say("interrupted")
            raise SystemExit(COULD_NOT_RUN) from None
        except Exception as error:
            problem, root = (
                sys.modules.get("opferry.core.problems"),
                sys.modules.get("opferry.errors"),
            )
            if problem is not None and isinstance(error, problem.Problem):
                say(f"error: {error}")
                raise SystemExit(WRONG) from error
            if isinstance(error, _context_errors()):
                say(f"error: {error}")
                raise SystemExit(WRONG) from error
            if root is not None and isinstance(error, root.OpFerryError):
                say(f"error: {error}")
                raise SystemExit(exit_status_of(error)) from error
            raise

    return wrapped  # type: ignore[return-value]


def _context_errors() -> tuple[type[Exception], ...]:
    """Return what contexts and tokens raise, where they are in use."""
    contexts = sys.modules.get("opferry._contexts")
    return () if contexts is None else (contexts.ContextError, contexts.TokenError)
