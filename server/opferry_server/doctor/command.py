"""The command `opferry-server doctor`."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from opferry_server.config import ConfigError, load_config
from opferry_server.doctor.abi import compare, is_verified
from opferry_server.doctor.examination import examine
from opferry_server.doctor.headers import Headers, HeadersError
from opferry_server.doctor.report import (
    comparison_fields,
    comparison_text,
    examination_fields,
    examination_text,
)

DESCRIPTION = """Say whether the backend aclnn will start on this host and, if not, what is missing.

Whatever loads CANN's libraries runs in processes of its own, each for --start-timeout-s at most.
Devices are opened as a worker opens them, and run a small case.
"""

EPILOG = """All options of opferry-server are taken too, and mean the same: --config, --workers,
--start-timeout-s, --packages and so on. Exit status: 0 if the backend will start (with
--abi: if everything agrees), 1 if not, 2 for wrong words."""


def parser() -> argparse.ArgumentParser:
    """Return the parser of doctor's own options."""
    made = argparse.ArgumentParser(
        prog="opferry-server doctor",
        usage="%(prog)s [--json] [--abi INCLUDE_DIR] [options of opferry-server]",
        description=DESCRIPTION,
        epilog=EPILOG,
        allow_abbrev=False,
    )
    made.add_argument("--json", action="store_true", help="print JSON")
    made.add_argument(
        "--abi",
        action="append",
        type=Path,
        metavar="INCLUDE_DIR",
        help="instead of the host, compare the backend's prototypes and constants with the C "
        "headers below a folder, usually $ASCEND_HOME_PATH/include; may be given several times",
    )
    made.add_argument("--backend", choices=("aclnn",), help="what is examined; there is no other")
    return made


def main(arguments: Sequence[str], root: Path = Path("/")) -> int:
    """Run doctor and return its exit status.

    Args:
        arguments: the words behind `doctor`.
        root: the folder in which dev/, etc/ and usr/ of the host lie; another one in tests only.

    Raises:
        SystemExit: after --help, and for words that cannot be parsed.
    """
    own, rest = parser().parse_known_args(arguments)
    try:
        # the order of timeouts, which the configuration refuses for aclnn, is one of the checks
        config = load_config([*rest, "--backend", "cpu"])
        if own.abi:
            return _abi(own.abi, as_json=own.json)
    except (ConfigError, HeadersError) as err:
        sys.stderr.write(f"opferry-server doctor: {err}\n")
        return 2
    examination = examine(config, root)
    if own.json:
        _print_json(examination_fields(examination))
    else:
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
        sys.stdout.write(examination_text(examination, width))
    return 0 if examination.will_start else 1


def _abi(folders: Sequence[Path], *, as_json: bool) -> int:
    headers = Headers(folders)
    comparisons = compare(headers)
    if as_json:
        _print_json(comparison_fields(comparisons, headers.count))
    else:
        sys.stdout.write(comparison_text(comparisons, headers.count))
    return 0 if is_verified(comparisons) else 1


def _print_json(fields: object) -> None:
    sys.stdout.write(json.dumps(fields, indent=2) + "\n")
