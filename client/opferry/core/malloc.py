"""The C allocator of a process that handles messages of megabytes.

As it comes, glibc gives megabytes back to the system as soon as they are freed, and the next ones
cost fresh pages, which take longer to get than to fill. Elsewhere than on glibc nothing is done.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8
"""glibc's numbers of the parameters, in malloc.h."""

TRIM_THRESHOLD_BYTES = 256 * 2**20
"""So much free memory at the end of the heap is not given back by itself."""

MMAP_THRESHOLD_BYTES = 32 * 2**20
"""Blocks from this size on, the most that glibc allows, are mapped for themselves."""

ARENA_COUNT = 2
"""The arenas that threads share; what is free at the end of any but the first stays there."""


def tune_malloc() -> bool:
    """Let malloc keep freed blocks of megabytes, to use them again; for the whole process.

    The command line does it for itself. A program that often calls a server with tensors of some
    100 KiB or more gains by it (about a third of the time at 1 MiB, a fifth at 16), and keeps up to
    about 256 MiB.
    Call it before there are other threads.

    Returns:
        Whether this C library can be tuned.
    """
    library = c_library()
    if library is None:
        return False
    settings = {
        M_TRIM_THRESHOLD: TRIM_THRESHOLD_BYTES,
        M_MMAP_THRESHOLD: MMAP_THRESHOLD_BYTES,
        M_ARENA_MAX: ARENA_COUNT,
    }
    return all(library.mallopt(parameter, value) for parameter, value in settings.items())


@functools.cache
def c_library() -> Any:
    """Return glibc, or None where there is another C library."""
    library = ctypes.CDLL(None)
    return library if hasattr(library, "malloc_trim") else None
