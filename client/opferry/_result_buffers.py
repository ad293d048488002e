"""Memory of results that nobody looks at any more, kept for the next ones.

Fresh pages take longer to get than to fill; memory that was used before has them. Where the system
can be told, it may take them back whenever it is short of memory, so they are missing nobody.
"""

from __future__ import annotations

import mmap
import sys
import weakref
from collections import deque
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from opferry._leased_arena import size_class
from opferry.core.tensors import TensorSpec

POOLED_BYTES = 2**20
"""Smaller results are numpy's own memory: the C library keeps such blocks itself."""


class ResultBuffers:
    """Where a client's results lie, for many threads.

    Memory comes back by finalizers, which run anywhere, between any two steps of the same thread as
    well: so there is no lock, and each step on what is kept is one that cannot be interrupted.
    """

    def __init__(self, kept_bytes: int) -> None:
        """Keep nothing yet, and never more than *kept_bytes* that no result uses; 0: nothing."""
        self._kept_bytes = kept_bytes if sys.platform != "win32" else 0
        self._kept: deque[mmap.mmap] = deque()

    def array(self, spec: TensorSpec) -> NDArray[Any]:
        """Return an array for a result that is contiguous; what is in it is of no meaning.

        When the last view of it dies, its memory comes back.
        """
        if spec.data_bytes < POOLED_BYTES or not self._kept_bytes:
            return np.empty(spec.shape, spec.dtype.numpy)
        memory = self._take(size_class(spec.data_bytes))
        # all views are of this array, however they are made, and it dies with the last of them
        root: NDArray[np.uint8] = np.frombuffer(memory, np.uint8)
        weakref.finalize(root, self._give_back, memory).atexit = False
        return np.ndarray(spec.shape, spec.dtype.numpy, root)

    def close(self) -> None:
        """Keep nothing any more; results that are still looked at stay."""
        self._kept_bytes = 0
        self._kept.clear()

    def _take(self, size_bytes: int) -> mmap.mmap:
        for memory in reversed(tuple(self._kept)):  # of those used last the pages are the warmest
            if len(memory) == size_bytes:
                with suppress(ValueError):  # another thread has taken it meanwhile
                    self._kept.remove(memory)
                    return memory
        memory = mmap.mmap(-1, size_bytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        _advise(memory, "MADV_HUGEPAGE")
        return memory

    def _give_back(self, memory: mmap.mmap) -> None:
        if len(memory) > self._kept_bytes:
            return
        _advise(memory, "MADV_FREE")
        self._kept.append(memory)
        while sum(map(len, tuple(self._kept))) > self._kept_bytes:
            with suppress(IndexError):  # another thread has made room meanwhile
                self._kept.popleft()


def _advise(memory: mmap.mmap, name: str) -> None:
    """Tell the system how memory is used, if Python and the system know this advice."""
    advice = getattr(mmap, name, None)
    if advice is not None:
        with suppress(OSError):
            memory.madvise(advice)
