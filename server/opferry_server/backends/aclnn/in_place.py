"""Inputs that an operator overwrites: what of them lies on the device, and the outputs taken of it.

The device gets a copy, so that the caller's data, and the request's in the server's memory, stay as
they are. A view stays a view there, and what comes back is the whole storage: its view is the
output. A view whose elements share memory cannot hold a result, and is made compact first.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from opferry.core.problems import Problem, Reason
from opferry.core.tensors import TensorSpec, view_array
from opferry.operators.call import Call
from opferry_server.backends.aclnn.operators import Binding

Copy = Callable[[NDArray[Any], int], None]
"""Copies device memory, from an address, to a contiguous host array."""


class Overwritten(NamedTuple):
    """One input that becomes an output."""

    name: str
    """The input's name."""
    output: str
    """The output's name."""
    given: TensorSpec
    """The input as it came."""

    @property
    def spec(self) -> TensorSpec:
        """The tensor on the device."""
        return (
            self.given
            if _is_disjoint(self.given)
            else TensorSpec(self.given.dtype, self.given.shape)
        )

    def storage(self, array: NDArray[Any]) -> NDArray[np.uint8]:
        """Return the bytes that go to the device.

        Args:
            array: the input's view.
        """
        if self.spec is not self.given:
            return np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        return storage_of(array, self.given)

    def take(self, target: NDArray[Any], address: int, copy: Copy) -> NDArray[np.uint8] | None:
        """Copy the output to *target*; return the whole storage, None if the output is all of it.

        Args:
            target: the output, contiguous.
            address: where the storage begins on the device.
            copy: copies from there.
        """
        spec = self.spec
        if spec.is_contiguous:
            copy(target, address)
            return None
        storage = np.empty(spec.data_bytes, np.uint8)
        copy(storage, address)
        np.copyto(target, view_array(spec, storage.data))
        return storage

    def check_gaps(
        self, target: NDArray[Any], array: NDArray[Any], storage: NDArray[np.uint8], soc: str
    ) -> None:
        """Refuse an operator that wrote between the elements of the view.

        Args:
            target: the output.
            array: the input's view.
            storage: what `take` returned.
            soc: the system on chip.

        Raises:
            Problem: OPERATOR_FAILED, with how many bytes have changed.
        """
        expected = self.storage(array).copy()
        np.copyto(view_array(self.spec, expected.data), target)
        changed = int(np.count_nonzero(storage != expected))
        if changed:
            raise Problem(
                Reason.OPERATOR_FAILED,
                f"{self.output}: the operator wrote outside of it: {changed} bytes of the storage "
                f"of {self.name} have changed that its view does not show",
                argument=self.output,
                stage="copy_out",
                soc=soc,
            )


def overwritten_of(binding: Binding, call: Call) -> dict[str, Overwritten]:
    """Return the inputs of a call that are overwritten, by the outputs that they become."""
    return {
        output: Overwritten(name, output, call.inputs[name])
        for output, name in binding.in_place.items()
        if name in call.inputs
    }


def storage_of(array: NDArray[Any], spec: TensorSpec) -> NDArray[np.uint8]:
    """Return the bytes of a view's storage, which begins before the view's first element."""
    start = array.ctypes.data - spec.storage_offset * spec.dtype.itemsize
    return np.ctypeslib.as_array((ctypes.c_uint8 * spec.data_bytes).from_address(start))


def _is_disjoint(spec: TensorSpec) -> bool:
    """Return whether no two elements of a view lie at one place, as far as strides tell at once."""
    reach = 0
    steps = zip(spec.full_strides, spec.shape, strict=True)
    for step, extent in sorted((step, extent) for step, extent in steps if extent > 1):
        if step <= reach:
            return False
        reach += (extent - 1) * step
    return True
