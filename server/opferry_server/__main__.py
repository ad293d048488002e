"""The command `opferry-server`."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, NoReturn


def main() -> None:
    """Run the server, or `doctor` or `token`, if that is the first word.

    Exit status: 0 after a clean stop, 1 if it cannot run, 2 for wrong words.
    """
    first = sys.argv[1:2]
    command: Callable[[Sequence[str]], int] | None = None
    try:
        if first == ["doctor"]:
            from opferry_server.doctor.command import main as command
        elif first == ["token"]:
            from opferry_server.access.token_command import main as command
        else:
            from opferry_server.app import StartError, raise_descriptor_limit, serve
            from opferry_server.config import ConfigError, load_config
            from opferry_server.logs import configure_logging
    except ModuleNotFoundError as err:
        if (err.name or "").startswith("opferry"):
            raise
        text = f'the extra "server" is missing ({err.name})'
        _end(1, f"{text}: pip install '.[server]' in a checkout")
    if command is not None:
        raise SystemExit(command(sys.argv[2:]))
    try:
        config = load_config(sys.argv[1:])
    except ConfigError as err:
        _end(2, str(err))
    configure_logging(config)
    raise_descriptor_limit()
    try:
        _run(serve(config, partial(load_config, sys.argv[1:])))
    except StartError as err:
        _end(1, str(err))


def _run(serving: Coroutine[Any, Any, None]) -> None:
    """Run the server on uvloop's event loop where it is installed: some percent faster."""
    try:
        import uvloop
    except ImportError:
        asyncio.run(serving)
    else:
        uvloop.run(serving)


def _end(status: int, text: str) -> NoReturn:
    sys.stderr.write(f"opferry-server: {text}\n")
    raise SystemExit(status)


if __name__ == "__main__":
    main()
