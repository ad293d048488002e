"""The command `opferry-server token`: makes a token and the entry that lets a server know it."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path

from opferry_server.access.credentials import (
    TENANT_NAME,
    Credentials,
    CredentialsError,
    digest_of,
    new_token,
)
from opferry_server.identity import Role

EPILOG = """The token is printed once, to stdout, and kept nowhere; what a server knows of it is its
SHA-256. Give it to its user, who runs `opferry login`. The entry goes to the file that the server's
option auth.tokens names; the server reads it within a second. Exit status: 0; 1 if the file cannot
be written; 2 for wrong words."""


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command's options."""
    made = argparse.ArgumentParser(
        prog="opferry-server token",
        description="Make a token for a tenant.",
        epilog=EPILOG,
        allow_abbrev=False,
    )
    made.add_argument("--tenant", required=True, type=_tenant, help="whose requests they are")
    made.add_argument(
        "--role",
        choices=[role.word for role in Role],
        default=Role.USER.word,
        help="what it allows: viewer sees, user runs, admin sees and ends everybody's; "
        "default: user",
    )
    made.add_argument("--name", help="what logs call it; default: the tenant's name and a number")
    made.add_argument(
        "--expires", type=_days, metavar="90d", help="for how many days it is good; default: ever"
    )
    made.add_argument(
        "--append", type=Path, metavar="FILE", help="add the entry to this file of credentials"
    )
    return made


def main(arguments: Sequence[str]) -> int:
    """Run the command and return its exit status.

    Args:
        arguments: the words behind `token`.
    """
    words = parser().parse_args(arguments)
    token = new_token()
    digest = digest_of(token)
    entry = [
        "[[tokens]]",
        f"name = {json.dumps(words.name or f'{words.tenant}-{digest[:6]}', ensure_ascii=False)}",
        f"tenant = {json.dumps(words.tenant)}",
        f"role = {json.dumps(words.role)}",
        f"sha256 = {json.dumps(digest)}",
    ]
    if words.expires is not None:
        until = datetime.now(timezone.utc).replace(microsecond=0) + words.expires
        entry.append(f"expires = {until.isoformat().replace('+00:00', 'Z')}")
    text = "\n".join(entry) + "\n"
    if words.append is None:
        sys.stderr.write(f"# append this to the file that auth.tokens names\n{text}")
    else:
        try:
            _append(words.append, text)
        except (OSError, UnicodeError, CredentialsError) as err:
            sys.stderr.write(f"opferry-server token: {words.append}: {err}\n")
            return 1
    sys.stdout.write(f"{token}\n")
    return 0


def _append(path: Path, text: str) -> None:
    """Write a file anew with one more entry, at once: a server never reads half of it.

    Raises:
        OSError: if it cannot be written.
        CredentialsError: if it would not be right.
    """
    before, mode, owner = "", 0o600, None
    if path.exists():
        found = path.stat()
        before, mode = path.read_text("utf-8"), found.st_mode & 0o777
        owner = (found.st_uid, found.st_gid)
    after = f"{before.rstrip()}\n\n{text}" if before.strip() else text
    Credentials.read(after)
    # beside it, through links: the name of the file itself must stay the link
    real = path.resolve()
    new = real.with_name(f".{real.name}.{os.getpid()}")
    try:
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(after)
            if owner is not None:  # the server that reads it is perhaps another user
                os.fchown(file.fileno(), *owner)
            os.fchmod(file.fileno(), mode)
        new.replace(real)
    finally:
        new.unlink(missing_ok=True)


def _tenant(word: str) -> str:
    if not TENANT_NAME.fullmatch(word):
        raise argparse.ArgumentTypeError(
            f"{word!r} is no name; allowed are letters, digits, dot, dash and underscore, at most "
            "63"
        )
    return word


def _days(word: str) -> timedelta:
    found = re.fullmatch(r"([1-9][0-9]{0,4})d", word)
    if found is None:
        raise argparse.ArgumentTypeError(f"{word!r} is no number of days, such as 90d")
    return timedelta(days=int(found.group(1)))
