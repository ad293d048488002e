"""The command `opferry-server`."""

from __future__ import annotations

import asyncio
import sys

from opferry_server.app import StartError, configure_logging, serve
from opferry_server.config import ConfigError, load_config


def main() -> None:
    """Run the server. Exit status: 0 after a clean stop, 1 if it cannot run, 2 for wrong words."""
    try:
        config = load_config(sys.argv[1:])
    except ConfigError as err:
        sys.stderr.write(f"opferry-server: {err}\n")
        raise SystemExit(2) from None
    configure_logging(config)
    try:
        asyncio.run(serve(config))
    except StartError as err:
        sys.stderr.write(f"opferry-server: {err}\n")
        raise SystemExit(1) from None


if __name__ == "__main__":
    main()
