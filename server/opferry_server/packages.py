"""Operator packages: the names by which requests choose them, and what lies behind each name.

A package is a folder as CANN's tools install a custom operator build: `op_api/lib` in it holds the
library. No library is ever uploaded, and none is loaded anew in a living process: a changed file
means another worker.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import xxhash

from opferry.core.execution import OperatorPackage

VENDOR = "built-in"
"""The package of whatever CANN itself runs on the host."""

LIBRARY = Path("op_api", "lib", "libcust_opapi.so")
"""Where a package's folder holds its library."""


class Packages:
    """The packages of a server; the first name is the default."""

    def __init__(self, folders: Mapping[str, str], default: str = VENDOR) -> None:
        """Offer the vendor's package and others.

        Args:
            folders: the folder of each package beside the vendor's, by name.
            default: the name of the package that runs requests which name none.
        """
        self._folders = {VENDOR: "", **folders}
        self.names = (default, *(name for name in self._folders if name != default))
        self._described: dict[str, tuple[str, OperatorPackage]] = {}
        self._digests: dict[str, tuple[str, str]] = {}
        self._served: dict[str, OperatorPackage] = {}

    @property
    def default(self) -> str:
        """The package that runs requests which name none."""
        return self.names[0]

    def folder(self, name: str) -> str:
        """Return a package's folder, "" for the vendor's."""
        return self._folders[name]

    def learn(self, package: OperatorPackage) -> None:
        """Note how a worker that serves a package describes it."""
        self._served[package.name] = package

    def describe(self, name: str) -> OperatorPackage:
        """Return what a package is now: as a worker knows it, or by its files if these are new."""
        now = self._by_files(name)
        served = self._served.get(name, now)
        return served if now.digest in ("", served.digest) else now

    def _by_files(self, name: str) -> OperatorPackage:
        """Return what a package is by its files; of the vendor's, only the name is known."""
        if not self._folders[name]:
            return OperatorPackage(name)
        now = stamp(self._folders[name])
        before, found = self._described.get(name, ("", OperatorPackage(name)))
        if now != before:
            library = os.path.realpath(Path(self._folders[name], LIBRARY))
            found = OperatorPackage(name, self._digest(library), library)
            self._described[name] = (now, found)
        return found

    def _digest(self, library: str) -> str:
        """Return a library's digest, computed again only if that file itself has changed."""
        now = stamp(library)
        before, found = self._digests.get(library, ("", ""))
        if now != before:
            found = file_digest(library)
            self._digests[library] = (now, found)
        return found


def stamp(place: str) -> str:
    """Return a text that changes with the files of a folder, or with a file; "" for no place.

    It goes by names, sizes and times of change: cheap enough to look before every request. The
    kernels beside the library count too, since a build may change them alone. Links to folders are
    not followed. A folder that takes long to look through is looked at less often, so that it takes
    no more than a tenth of the time.
    """
    if not place:
        return ""
    begun_s = time.monotonic()
    found, until_s = _stamps.get(place, ("", 0.0))
    if begun_s < until_s:
        return found
    digest = xxhash.xxh3_128()
    for path, status in _files(place):
        known = (status.st_size, status.st_mtime_ns, status.st_ino)
        digest.update(os.fsencode(path) + f"|{known}\n".encode())
    now_s = time.monotonic()
    _stamps[place] = (digest.hexdigest(), now_s + 9 * (now_s - begun_s))
    return digest.hexdigest()


_stamps: dict[str, tuple[str, float]] = {}


def _files(place: str) -> Iterator[tuple[str, os.stat_result]]:
    """Yield the files of a folder, or the file itself; nothing if it is gone, which shows too."""
    try:
        entries = sorted(os.scandir(place), key=lambda entry: entry.name)
    except OSError:
        with contextlib.suppress(OSError):
            yield place, os.stat(place)
        return
    for entry in entries:
        with contextlib.suppress(OSError):
            if entry.is_dir(follow_symlinks=False):
                yield from _files(entry.path)
            else:
                yield entry.path, entry.stat()


def file_digest(path: str) -> str:
    """Return the SHA-256 of a file in hexadecimal, "" if it cannot be read."""
    try:
        with open(path, "rb") as file:
            digest = hashlib.sha256()
            while block := file.read(1 << 20):
                digest.update(block)
    except OSError:
        return ""
    return digest.hexdigest()
