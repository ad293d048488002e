"""The C allocator of the front, which handles messages of megabytes all day.

glibc keeps what is freed in many arenas, and large blocks with it; a burst of large messages would
stay in memory for good. Elsewhere than on glibc nothing is done.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any

# mallopt's parameters, from glibc's malloc.h
M_TRIM_THRESHOLD, M_ARENA_MAX = -1, -8

TRIM_THRESHOLD_BYTES = 64 * 2**20
"""So much free memory at the end of the heap is kept for the next message."""

ARENA_COUNT = 2
"""The front has one busy thread and gRPC's own."""


@functools.cache
def _library() -> Any:
    library = ctypes.CDLL(None)
    return library if hasattr(library, "mallopt") and hasattr(library, "malloc_trim") else None


def tune() -> None:
    """Make the allocator keep less; call it before the first large message."""
    library = _library()
    if library is not None:
        library.mallopt(M_ARENA_MAX, ARENA_COUNT)
        library.mallopt(M_TRIM_THRESHOLD, TRIM_THRESHOLD_BYTES)


def trim() -> None:
    """Give what is free back to the system."""
    library = _library()
    if library is not None:
        library.malloc_trim(ctypes.c_size_t(TRIM_THRESHOLD_BYTES))
