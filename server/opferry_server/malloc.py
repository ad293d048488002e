"""The C allocator of the front, which handles messages of megabytes all day.

It is to use again what is freed, and yet not keep for good what a burst of large messages took.
Elsewhere than on glibc nothing is done.
"""

from __future__ import annotations

import ctypes

from opferry.core.malloc import c_library, tune_malloc

KEPT_BYTES = 2**20
"""So much free memory at the end of the heap stays for the next messages."""


def tune() -> None:
    """Keep freed blocks, in one arena for all threads; call it before there are others.

    What is free at the end of any other arena would stay, whatever `trim` does: some megabytes for
    each of gRPC's threads.
    """
    tune_malloc(arena_count=1)


def trim() -> None:
    """Give what is free back to the system."""
    library = c_library()
    if library is not None:
        library.malloc_trim(ctypes.c_size_t(KEPT_BYTES))
