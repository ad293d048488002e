"""The device memory of a request's outputs: filled before the runs, checked after them.

It is filled with a pattern, so that an element that the operator does not write is found and no
earlier request's data can show. With guards there is a band of the pattern before and behind each
output, too, which the operator must leave alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from opferry.core.problems import Problem, Reason
from opferry_server.backends.aclnn.library import Library
from opferry_server.backends.aclnn.memory import Block

POISONS = (0xA5, 0x5A)
"""What output memory is filled with before a run. An element that still holds it was not written,
or happens to look like it; the second poison tells which."""

GUARD_BYTES = 64 * 1024
"""The width of a guard band: more than the rows that a kernel works on at a time."""

Arrays = Mapping[str, NDArray[Any]]


class OutputMemory:
    """The blocks of one request's outputs."""

    def __init__(
        self,
        library: Library,
        stream: int,
        sizes: Mapping[str, int],
        lease: Callable[[int], Block],
        *,
        guarded: bool,
    ) -> None:
        """Lease memory for outputs.

        Args:
            library: the bound functions.
            stream: the stream that fills the memory.
            sizes: the size of each output in bytes, by name.
            lease: returns a block of device memory of at least so many bytes.
            guarded: whether each output lies between guards.
        """
        self._library = library
        self._stream = stream
        self._sizes = sizes
        self._guard_bytes = GUARD_BYTES if guarded else 0
        self._blocks = {name: lease(size + 2 * self._guard_bytes) for name, size in sizes.items()}
        self.addresses = {
            name: block.address + self._guard_bytes for name, block in self._blocks.items()
        }
        """Where each output begins."""

    def fill(self, byte: int) -> None:
        """Fill all of it with a byte, guards included, in the stream's order."""
        for name in self._blocks:
            self._fill(name, byte)

    def clear_from_others(self, client: str) -> None:
        """Clear what another client may have used before, in the stream's order."""
        for name, block in self._blocks.items():
            if block.previous_client != client:
                self._fill(name, 0)

    def check_guards(self, byte: int, copy: Callable[[NDArray[Any], int], None]) -> None:
        """Refuse an operator that wrote outside of its outputs.

        Args:
            byte: what the guards were filled with.
            copy: copies device memory, from an address, to a host array.

        Raises:
            Problem: OPERATOR_FAILED, naming the output, the side and the distance.
        """
        if not self._guard_bytes:
            return
        found = np.empty(self._guard_bytes, np.uint8)
        for name, size in self._sizes.items():
            begin, end = self.addresses[name], self.addresses[name] + size
            for side, address in (("before", begin - self._guard_bytes), ("behind", end)):
                copy(found, address)
                (changed,) = np.nonzero(found != byte)
                if changed.size:
                    at = changed[0] if side == "behind" else changed[-1] - self._guard_bytes
                    raise Problem(
                        Reason.OPERATOR_FAILED,
                        f"{name}: the operator wrote outside of it: {changed.size} of the "
                        f"{self._guard_bytes} bytes {side} it have changed, the nearest at "
                        f"{int(at):+d}",
                        argument=name,
                        stage="copy_out",
                        soc=self._library.soc_name,
                    )

    def _fill(self, name: str, byte: int) -> None:
        block, size = self._blocks[name], self._sizes[name] + 2 * self._guard_bytes
        self._library.call(
            "aclrtMemsetAsync",
            *(block.address, block.capacity_bytes, byte, size, self._stream),
            stage="copy_in",
        )


def untouched(arrays: Arrays, poison: int) -> dict[str, NDArray[np.bool_]]:
    """Return where outputs still hold the poison."""
    return {name: _untouched(array, poison) for name, array in arrays.items()}


def not_written(name: str, missed: NDArray[np.bool_], soc: str) -> Problem:
    """Return the problem of elements that the operator did not write."""
    first = [int(axis[0]) for axis in np.nonzero(missed)]
    return Problem(
        Reason.OPERATOR_FAILED,
        f"{name}: {int(missed.sum())} of {missed.size} elements were not written by the operator, "
        f"the first at {first}",
        argument=name,
        stage="copy_out",
        soc=soc,
    )


def _untouched(array: NDArray[Any], poison: int) -> NDArray[np.bool_]:
    unsigned = np.dtype(f"u{array.dtype.itemsize}")
    pattern = np.frombuffer(bytes([poison]) * array.dtype.itemsize, unsigned)[0]
    found: NDArray[np.bool_] = array.view(unsigned) == pattern
    return found
