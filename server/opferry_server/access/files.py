"""Files that are read again when they change, for as long as a server lives."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import structlog

log = structlog.get_logger()

_Signature = tuple[tuple[int, int, int, int] | None, ...]


class WatchedFiles:
    """Some files, and what reads them all. A broken new version leaves what was read before."""

    def __init__(self, what: str, paths: Sequence[Path], read: Callable[[], None]) -> None:
        """Read the files.

        Args:
            what: they are, for the log.
            paths: the files.
            read: reads them, and keeps what they say; whatever it raises keeps the old.

        Raises:
            Exception: what *read* raises.
        """
        self._what = what
        self._paths = paths
        self._read = read
        self._seen = self._signature()
        read()

    def look(self) -> None:
        """Read the files again if one has changed, and log what came of it."""
        now = self._signature()
        if now == self._seen:
            return
        # what is written while it is read has another signature the next time
        self._seen = now
        try:
            self._read()
        except Exception as err:
            log.error("not read", what=self._what, why=str(err))
        else:
            log.info("read again", what=self._what)

    def _signature(self) -> _Signature:
        return tuple(_signature_of(path) for path in self._paths)


def _signature_of(path: Path) -> tuple[int, int, int, int] | None:
    try:
        # through links: a mounted secret changes by its link
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size
