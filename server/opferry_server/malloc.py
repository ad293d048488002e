"""The C allocator of the front, which handles messages of megabytes all day.

While large tensors come and go, what one message took serves the next: fresh pages cost more than
what is written to them. When they are over, nothing of the burst must stay. Elsewhere than on glibc
nothing is done.
"""

from __future__ import annotations

import ctypes

from opferry.core.malloc import (
    M_ARENA_MAX,
    M_MMAP_THRESHOLD,
    M_TRIM_THRESHOLD,
    MMAP_THRESHOLD_BYTES,
    c_library,
)

KEPT_BYTES = 2**20
"""So much free memory at the end of the heap stays for the next messages after `trim`."""

BURST_BYTES = 64 * 2**20
"""So much of it is not given back before `trim`: more than what is under way of a few streams."""


def tune() -> None:
    """Let all threads share one arena that keeps what bursts need; before there are other threads.

    What is free at the end of any other arena would stay, whatever `trim` does: some megabytes for
    each of gRPC's threads.
    """
    library = c_library()
    if library is not None:
        library.mallopt(M_ARENA_MAX, 1)
        library.mallopt(M_MMAP_THRESHOLD, MMAP_THRESHOLD_BYTES)
        library.mallopt(M_TRIM_THRESHOLD, BURST_BYTES)


def trim() -> None:
    """Give what is free back to the system."""
    library = c_library()
    if library is not None:
        library.malloc_trim(ctypes.c_size_t(KEPT_BYTES))
