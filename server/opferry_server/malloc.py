"""The C allocator of the front, which handles messages of megabytes all day.

It must not keep for good what a burst of large messages took. Elsewhere than on glibc nothing is
done. `opferry.tune_malloc` is not for it: with it the front's memory went up by a quarter within
5,000 requests.
"""

from __future__ import annotations

import ctypes

from opferry.core.malloc import M_ARENA_MAX, c_library

KEPT_BYTES = 2**20
"""So much free memory at the end of the heap stays for the next messages."""


def use_one_arena() -> None:
    """Let all threads share one arena; call it before there are others.

    What is free at the end of any other arena would stay, whatever `trim` does: some megabytes for
    each of gRPC's threads.
    """
    library = c_library()
    if library is not None:
        library.mallopt(M_ARENA_MAX, 1)


def trim() -> None:
    """Give what is free back to the system."""
    library = c_library()
    if library is not None:
        library.malloc_trim(ctypes.c_size_t(KEPT_BYTES))
