"""The C allocator of the front, which handles messages of megabytes all day.

glibc keeps what is freed in many arenas, and large blocks with it; a burst of large messages would
stay in memory for good. Elsewhere than on glibc nothing is done.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any

KEPT_BYTES = 2**20
"""So much free memory at the end of the heap stays for the next messages."""


M_ARENA_MAX = -8
"""glibc's number of the parameter, in malloc.h."""


@functools.cache
def _library() -> Any:
    library = ctypes.CDLL(None)
    return library if hasattr(library, "malloc_trim") else None


def use_one_arena() -> None:
    """Let all threads share one arena; call it before there are others.

    What is free at the end of any other arena would stay, whatever `trim` does: some megabytes for
    each of gRPC's threads.
    """
    library = _library()
    if library is not None:
        library.mallopt(M_ARENA_MAX, 1)


def trim() -> None:
    """Give what is free back to the system."""
    library = _library()
    if library is not None:
        library.malloc_trim(ctypes.c_size_t(KEPT_BYTES))
