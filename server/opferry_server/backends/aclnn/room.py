"""Whether a request has room on the device, asked before anything of it is copied there.

The contract's workspace is a lower bound of the device's, so that a request which passes here may
still run out of memory; one that cannot fit is refused at once, and with all its numbers.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from ctypes import c_size_t
from typing import Any

from numpy.typing import NDArray

from opferry.core.problems import Problem, Reason
from opferry.operators.call import Call
from opferry_server.backends.aclnn.in_place import overwritten_of
from opferry_server.backends.aclnn.library import Library
from opferry_server.backends.aclnn.memory import Pool
from opferry_server.backends.aclnn.operators import Binding
from opferry_server.backends.aclnn.symbols import VALUES

SYSTEM_BYTES = 16 * 1024 * 1024
"""What the runtime takes for itself beside an operator's workspace."""


def check_room(
    library: Library, pool: Pool, binding: Binding, call: Call, outputs: Mapping[str, NDArray[Any]]
) -> None:
    """Check that inputs, outputs and workspace together can be had; the thread has the context.

    Args:
        library: the bound functions.
        pool: the device memory that requests get.
        binding: the operator, whose outputs may lie where inputs were.
        call: the call, which has a workspace that is known only if it was checked.
        outputs: its outputs.

    Raises:
        Problem: DEVICE_MEMORY_EXHAUSTED, with the bytes of each and what there is.
    """
    inputs = {**call.inputs}
    inputs |= {item.name: item.spec for item in overwritten_of(binding, call).values()}
    input_bytes = sum(spec.data_bytes for spec in inputs.values())
    output_bytes = sum(a.nbytes for name, a in outputs.items() if name not in binding.in_place)
    workspace_bytes = 0
    if call.options.check:
        workspace_bytes = call.operator.check(call.inputs, call.attributes).workspace_bytes
    needed = input_bytes + output_bytes + workspace_bytes
    kept_bytes = pool.kept_bytes
    if needed <= kept_bytes:
        # what earlier requests left is enough: no need to ask the runtime
        return
    free, total = c_size_t(), c_size_t()
    pointers = (ctypes.byref(free), ctypes.byref(total))
    code = library.status("aclrtGetMemInfo", VALUES["ACL_HBM_MEM"], *pointers)
    if code:
        # a runtime that does not say serves all the same: the allocation will tell
        return
    # what the pool keeps, it gives back when an allocation fails
    available = free.value + kept_bytes - SYSTEM_BYTES
    allowed = min(available, pool.limit_bytes)
    if needed <= allowed:
        return
    raise Problem(
        Reason.DEVICE_MEMORY_EXHAUSTED,
        f"{input_bytes} bytes of inputs, {output_bytes} of outputs and at least {workspace_bytes} "
        f"of workspace are needed, {needed} together; of the device's {total.value} bytes "
        f"{max(available, 0)} can be had, and the limit is {pool.limit_bytes}",
        argument=pool.kind,
        given=str(needed),
        allowed=str(max(allowed, 0)),
        stage="malloc",
        soc=library.soc_name,
    )
