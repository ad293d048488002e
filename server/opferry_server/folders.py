"""Folders of a server's own, in the system's place for temporary files."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

LOCK = "lock"
"""The file that a folder's server holds a lock on for as long as it lives."""


class OwnFolder:
    """A folder that nobody else writes to, and that is deleted sooner or later, whoever dies."""

    def __init__(self, prefix: str, *, passable: bool = False) -> None:
        """Make the folder; those that killed servers have left under *prefix* are deleted.

        Args:
            prefix: how the names of all servers' folders of this kind begin.
            passable: whether other users may reach what lies in it by name.

        Raises:
            OSError: if it cannot be made.
        """
        for old in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
            with suppress(OSError), (old / LOCK).open("rb") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # nobody lives in it
                shutil.rmtree(old, ignore_errors=True)
        self.path = Path(tempfile.mkdtemp(prefix=prefix))
        # locked before it has its name: a server that starts meanwhile finds it held, or no lock
        part = self.path / f"{LOCK}.part"
        self._lock = os.open(part, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        part.rename(self.path / LOCK)
        if passable:
            self.path.chmod(0o711)

    def close(self) -> None:
        """Delete the folder and all that is in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)
