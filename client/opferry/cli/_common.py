"""What the commands share: options, the server to use, errors turned into exit statuses."""

from __future__ import annotations

import contextlib
import functools
import re
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

import click

from opferry.envconfig import TARGET_VARIABLE, target_from_environment

if TYPE_CHECKING:
    from opferry.client import Client
    from opferry.core.execution import OperatorPackage

FAILED, WRONG, COULD_NOT_RUN = 1, 2, 3
"""The exit statuses beside 0."""

FILE_WIDTH = 200
"""The most columns of a table where it is not a terminal that sets the width."""

UNREACHABLE_S = 5.0
"""For how long a command tries to reach a server."""

_F = TypeVar("_F", bound=Callable[..., Any])

target_option = click.option(
    "--target",
    metavar="HOST:PORT",
    help=f"The server. Default: {TARGET_VARIABLE}, else an embedded CPU server.",
)
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
deterministic_option = click.option(
    "--deterministic", is_flag=True, help="Fail unless every timed run gives the same bits."
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON to read by program.")


def say(text: str) -> None:
    """Write a remark to stderr; stdout is for results."""
    click.echo(text, err=True)


def given_target(target: str | None) -> str | None:
    """Return the server that the user named, by option or variable, or None."""
    if target is not None and not target.strip():
        # an unset variable on the command line must not turn into another server
        raise click.UsageError("--target is empty; give HOST:PORT, or leave it out")
    return target or target_from_environment()


def package_line(package: OperatorPackage) -> str:
    """Return an operator package in words: name, library, digest, and whether it may be wrong."""
    line = package.name
    if package.digest:
        line += f", {package.library_file}, SHA-256 {package.digest}"
    if package.known_answer == "FAILED":
        line += "; its known answer was wrong"
    return line


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
    return opferry.connect(address, timeout=timeout, retry=retry)


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
            if root is not None and isinstance(error, root.OpFerryError):
                say(f"error: {error}")
                raise SystemExit(exit_status_of(error)) from error
            raise

    return wrapped  # type: ignore[return-value]
