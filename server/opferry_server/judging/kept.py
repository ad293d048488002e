"""Data that clients have sent, kept in files under their SHA-256, so that a second run sends none.

Each client has its own: what one has sent, no other can run an operator on. Both the whole and each
client's share are bounded; the longest unused go first.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from opferry_server.folders import OwnFolder

PREFIX = "opferry-kept-"
"""How the names of all servers' folders begin, in the system's folder for temporary files."""


class Key(NamedTuple):
    """What data are kept under."""

    client: str
    """Who sent them."""
    sha256: bytes
    """Their digest."""


class KeptData:
    """The files, for one event loop; judges read and write them."""

    def __init__(self, budget_bytes: int, client_bytes: int) -> None:
        """Keep nothing yet.

        Args:
            budget_bytes: what all files together may take.
            client_bytes: what those of one client may take.
        """
        self._budget_bytes = budget_bytes
        self._client_bytes = client_bytes
        self._sizes: OrderedDict[Key, int] = OrderedDict()
        self._pins: Counter[Key] = Counter()
        self._folder: OwnFolder | None = None

    @property
    def total_bytes(self) -> int:
        """What all files take."""
        return sum(self._sizes.values())

    def has(self, key: Key, size_bytes: int) -> bool:
        """Return whether so many bytes are kept; what somebody has deleted is forgotten."""
        if self._sizes.get(key) != size_bytes:
            return False
        if not self._is_there(key, size_bytes):
            self.forget(key)
            return False
        return True

    def pin(self, key: Key) -> Path:
        """Return the file of data that are kept; it stays at least until `unpin`."""
        self._sizes.move_to_end(key)
        self._pins[key] += 1
        return self._path(key)

    def unpin(self, key: Key) -> None:
        """Let the data go when their time comes."""
        self._pins[key] -= 1
        if not self._pins[key]:
            del self._pins[key]

    def place(self, key: Key, size_bytes: int) -> Path | None:
        """Return where data are to be written that may be kept; None if there is no room."""
        if size_bytes > min(self._budget_bytes, self._client_bytes):
            return None
        try:
            # somebody may have emptied the temporary folder
            if self._folder is None or not self._folder.path.is_dir():
                self.close()
                self._folder = OwnFolder(PREFIX)
        except OSError:
            return None
        return self._path(key)

    def discard(self, key: Key) -> None:
        """Delete what has been written to a place, and is not to be noted."""
        if key not in self._sizes:
            self._delete(key)

    def forget(self, key: Key) -> None:
        """Delete data; who is about to read them asks for them."""
        self._sizes.pop(key, None)
        self._delete(key)

    def note(self, key: Key, size_bytes: int) -> None:
        """Note that data have been written to their place, and make room for them.

        A judge that could not write them says nothing: a full disk keeps no case from its verdict.
        """
        if not self._is_there(key, size_bytes):
            self.forget(key)
            return
        self._sizes[key] = size_bytes
        self._sizes.move_to_end(key)
        self._shrink(self._client_bytes, key.client)
        self._shrink(self._budget_bytes, None)

    def close(self) -> None:
        """Delete everything."""
        if self._folder is not None:
            self._folder.close()
        self._sizes.clear()
        self._folder = None

    def _shrink(self, bound_bytes: int, client: str | None) -> None:
        mine = [key for key in self._sizes if client in (None, key.client)]
        total = sum(self._sizes[key] for key in mine)
        for key in mine:
            if total <= bound_bytes:
                return
            if not self._pins[key]:
                total -= self._sizes.pop(key)
                self._delete(key)

    def _is_there(self, key: Key, size_bytes: int) -> bool:
        try:
            return self._path(key).stat().st_size == size_bytes
        except OSError:
            return False

    def _delete(self, key: Key) -> None:
        with suppress(OSError):
            self._path(key).unlink()

    def _path(self, key: Key) -> Path:
        assert self._folder is not None  # noqa: S101 - made before the first file
        # a client's name may hold anything; its digest is a file name
        who = sha256(key.client.encode()).hexdigest()[:16]
        return self._folder.path / f"{who}-{key.sha256.hex()}"
