"""Files that one process writes to at a time."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import IO, Any

from opferry.validation.problems import CaseFileError


def open_alone(path: Path) -> IO[str]:
    """Open a text file to append to it, for oneself, for as long as it is open.

    Args:
        path: the file; made if it is not there.

    Raises:
        CaseFileError: if another run writes to it.
        OSError: if it cannot be opened, or the file system knows no locks.
    """
    # a name that is no text still is a name
    stream = path.open("a", encoding="utf-8", newline="", errors="replace")
    try:
        _lock(path, stream)
    except BaseException:
        stream.close()
        raise
    return stream


def cut(stream: IO[str], kept_bytes: int) -> None:
    """Drop what a file has beyond its first *kept_bytes*; a device has nothing that could be."""
    if os.fstat(stream.fileno()).st_size > kept_bytes:
        stream.truncate(kept_bytes)


def _lock(path: Path, stream: IO[Any]) -> None:
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        message = "is written by another run just now; wait for it, or give another file"
        raise CaseFileError(path, None, None, message) from None
