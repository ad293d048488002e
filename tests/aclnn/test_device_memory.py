"""Pain case 16, the Int32 workspace trap: what a request takes of the device, in 64 bits."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from opferry import errors
from opferry.core.dtypes import DType
from opferry.core.limits import GIB, MIB, LimitsConfig
from opferry.core.problems import Problem, Reason
from opferry.core.tensors import TensorSpec
from opferry.operators.call import Call, check_call
from tests.aclnn import in_process
from tests.aclnn.simulated import simulated
from tests.support.calls import HEAVY, ROTARY_GRAD, Subject, assert_same_bits, reference, tnd

B, S, N, D = 4, 8192, 64, 128


def trap() -> Call:
    """The smallest round call whose workspace is 2**31 bytes: one more than an int32 holds."""
    large, small = (B, S, N, D), (1, S, 1, D)
    shapes = {
        "grad_query_embed": large,
        "grad_key_embed": large,
        "cos": small,
        "sin": small,
        "query": large,
        "key": large,
    }
    specs = {name: TensorSpec(DType.BFLOAT16, shape) for name, shape in shapes.items()}
    return Call(ROTARY_GRAD, ROTARY_GRAD.parse_attributes({}), specs)


INPUT_BYTES = 4 * 512 * MIB + 2 * 2 * MIB
OUTPUT_BYTES = 2 * 512 * MIB + 2 * 2 * MIB
WORKSPACE_BYTES = 2**31


def test_limits_count_the_workspace_in_64_bits() -> None:
    """Case 16: inputs, outputs and workspace add up; one byte less than that is too little."""
    total = INPUT_BYTES + OUTPUT_BYTES + WORKSPACE_BYTES
    checked = check_call(trap(), LimitsConfig(request_bytes=total))
    assert checked.plan is not None
    assert checked.plan.workspace_bytes == WORKSPACE_BYTES
    assert checked.plan.total_bytes == total
    with pytest.raises(Problem) as caught:
        check_call(trap(), LimitsConfig(request_bytes=total - 1))
    assert caught.value.reason is Reason.TENSOR_TOO_LARGE
    assert caught.value.given == str(total)
    assert caught.value.allowed == str(total - 1)


def test_a_device_with_4_gib_refuses_the_trap_before_anything_is_copied() -> None:
    """Case 16 as it stands: three numbers, no 207018, no allocation, nothing on the bus."""
    done = in_process.start("tests.aclnn.int32_trap", device_memory_bytes=str(4 * GIB))
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    assert found["problem"]["reason"] == "DEVICE_MEMORY_EXHAUSTED"
    assert found["problem"]["status"] == 8, "RESOURCE_EXHAUSTED"
    for number in (INPUT_BYTES, OUTPUT_BYTES, WORKSPACE_BYTES):
        assert str(number) in found["problem"]["message"].replace(",", "").split()
    assert "207018" not in found["problem"]["message"]
    assert "acl_error" not in found["problem"]
    assert found["counters"] == {
        "violations": 0,
        "bytes.h2d": 0,
        "total.device_allocations": 0,
        "total.executors": 0,
    }


def test_a_request_that_does_not_fit_is_refused_with_three_numbers(tmp_path: Path) -> None:
    """Case 16, scaled to a device of 64 MiB: the next request is served as if nothing had been."""
    arguments = tnd(1700, 16, 16, 64)
    inputs = sum(arguments[name].nbytes for name in arguments if name != "layout")
    outputs = sum(array.nbytes for array in reference(arguments).values())
    workspace = 1700 * 16 * 64 * 4 * 2
    assert inputs + outputs + 16 * MIB < 64 * MIB < inputs + outputs + workspace + 16 * MIB
    with simulated(tmp_path, device_memory_bytes=str(64 * MIB)) as found:
        with pytest.raises(errors.DeviceMemoryError) as caught:
            found.client.apply_rotary_pos_emb_grad(**arguments)
        assert caught.value.reason == "DEVICE_MEMORY_EXHAUSTED"
        for number in (inputs, outputs, workspace):
            assert str(number) in str(caught.value)
        assert "207018" not in str(caught.value)
        small = tnd(50)
        assert_same_bits(found.client.apply_rotary_pos_emb_grad(**small), reference(small))
        assert found.total("violations") == 0
        assert [worker.restart_count for worker in found.client.server_info().workers] == [0]


def test_the_runtimes_own_share_is_left_to_it(tmp_path: Path) -> None:
    """Case 16: 16 MiB are the system's; what fits without them only, does not fit."""
    arguments = tnd(1000, 16, 16, 64)
    inputs = sum(arguments[name].nbytes for name in arguments if name != "layout")
    outputs = sum(array.nbytes for array in reference(arguments).values())
    workspace = 1000 * 16 * 64 * 4 * 2
    memory = inputs + outputs + workspace + 15 * MIB
    with (
        simulated(tmp_path, device_memory_bytes=str(memory)) as found,
        pytest.raises(errors.DeviceMemoryError, match=str(workspace)),
    ):
        found.client.apply_rotary_pos_emb_grad(**arguments)


@pytest.mark.parametrize("subject", HEAVY)
def test_what_earlier_requests_left_counts_as_free(tmp_path: Path, subject: Subject) -> None:
    """A pool that holds most of the device refuses nobody who fits into it, or instead of it."""
    with simulated(tmp_path, device_memory_bytes=str(96 * MIB)) as found:
        for tokens in (2000, 1000, 1500, 2000):
            arguments = subject.tnd(tokens, 16, 16, 64)
            result = subject.call(found.client, **arguments)
            first = subject.outputs[0]
            assert result[0].tobytes() == reference(arguments)[first].tobytes()
        assert found.total("violations") == 0
