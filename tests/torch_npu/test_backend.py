"""The backend torch-npu on stand-ins: what it says, does, and finds out."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import opferry
from opferry import errors
from opferry.v1 import tensor_pb2
from opferry.validation import compare
from opferry.validation.standards import STANDARDS
from tests.support import raw, torch_npu
from tests.support.calls import HEAVY, Subject, assert_agrees, reference, tnd
from tests.support.processes import eventually


class Faulty:
    """A server that records calls, and on which the next run can be made to fail."""

    def __init__(self, client: opferry.Client, address: str, folder: Path) -> None:
        self.client = client
        self.address = address
        self._folder = folder

    def fail_next(self, at: str, text: str = "") -> None:
        (self._folder / "fault").write_text(json.dumps({"at": at, "text": text}))

    def last_call(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self._folder / "calls").read_text().splitlines()[-1])
        return found


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Faulty]:
    folder = tmp_path_factory.mktemp("stand-in")
    files = {"fault": str(folder / "fault"), "calls": str(folder / "calls")}
    with torch_npu.server(**files) as (running, client):
        yield Faulty(client, running.address, folder)


def stated(call: str, code: int) -> str:
    """A text such as torch_npu's when a call of CANN's fails, with a process id like a status."""
    return (
        f"operator():NPUStream.cpp:1 NPU function error: {call}, error code is {code}\n"
        "[ERROR] 2026-01-01-00:00:00 (PID:161002, Device:0, RankID:-1) ERR00100 PTA call acl api "
        "failed\n[Error]: see the ascend log.\nEZ9903: [PID: 107002] 00:00:00.507.015 more"
    )


def test_it_says_what_it_is_and_that_it_is_simulated(faulty: Faulty) -> None:
    """Device, SoC, versions, wrapper with digest; and no claim of a real device."""
    info = faulty.client.server_info()
    execution = faulty.client.apply_rotary_pos_emb_grad(**tnd()).execution
    assert info.backend == execution.backend == "torch-npu"
    assert not info.real_device
    assert not execution.real_device
    assert execution.soc_name == "Ascend950PR-simulated"
    assert execution.device == "npu:0"
    assert "stand-in" in execution.cann_version
    assert info.versions["torch"].startswith("2.")
    assert "stand-in" in info.versions["torch_npu"]
    assert "stand-in" in info.versions["cann_ops_transformer"]
    package = execution.operator_package
    assert package == info.operator_packages[0]
    assert package.name == "built-in"
    assert package.known_answer == "PASSED"
    assert package.library_file == str(torch_npu.STAND_INS / "cann_ops_transformer" / "ops.py")
    assert len(package.digest) == 64
    assert execution.timings.host_to_device_ns > 0
    assert execution.timings.stage_one_ns == 0
    assert execution.timings.device_to_host_ns > 0


def test_every_repeat_is_timed(faulty: Faulty, subject: Subject) -> None:
    """Five runs, five times of the kernel."""
    timings = subject.call(faulty.client, **subject.tnd(), repeat=5).execution.timings
    assert len(timings.kernel_ns) == 5
    assert min(timings.kernel_ns) > 0


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("subject", HEAVY)
def test_results_are_right_and_the_same_each_time(
    faulty: Faulty, dtype: str, subject: Subject
) -> None:
    """All but sums have the reference's bits, those pass `mixed`, all the same bits 20 times."""
    kind = opferry.DType.parse(dtype)
    arguments = subject.tnd(5, 67, 33, 64, dtype=kind.numpy)
    golden = reference(arguments)
    results = [subject.call(faulty.client, **arguments) for _ in range(20)]
    for result in results:
        assert_agrees(result, golden)
        for name, expected in golden.items():
            found = getattr(result, name)
            assert compare(found, expected, STANDARDS[0], dtype=kind).passed
            assert found.tobytes() == getattr(results[0], name).tobytes()


def test_bfloat16_travels_as_bits(faulty: Faulty, subject: Subject) -> None:
    """Every finite pattern comes back as it went, denormals and signed zeros too."""
    bits = np.arange(2**16, dtype=np.uint16)
    bits = np.concatenate([half[:0x7F00] for half in np.split(bits, 2)])
    patterns = bits.view(ml_dtypes.bfloat16).reshape(-1, 1, 128)
    one = np.ones_like(patterns)
    zero = np.zeros_like(patterns)
    result = subject.call(faulty.client, patterns, patterns, one, zero, layout=4)
    expected = reference(
        {**dict.fromkeys(subject.vectors, patterns), "cos": one, "sin": zero} | {"layout": 4}
    )
    assert_agrees(result, expected)
    same = result[0].view(np.uint16).ravel() == bits
    assert set(bits[~same]) <= {0x8000}  # x*1 + y*0: a sum of zeros of both signs is +0


def test_views_reach_the_operator_as_views(faulty: Faulty, subject: Subject) -> None:
    """A transposed and a broadcast input are not made contiguous on the way."""
    rng = np.random.default_rng(0)
    wide = rng.standard_normal((3, 5, 16), np.float32).transpose(1, 0, 2)
    narrow = np.broadcast_to(rng.standard_normal((1, 1, 16), np.float32), (5, 1, 16))
    arguments = {**dict.fromkeys(subject.vectors, wide), "cos": narrow, "sin": narrow}
    result = subject.call(faulty.client, **arguments, layout=4, keep_strides=True)
    assert_agrees(result, reference({**arguments, "layout": 4}))
    inputs = faulty.last_call()["inputs"]
    assert inputs[subject.vectors[0]]["strides"] == [16, 80, 1]
    assert not inputs[subject.vectors[0]]["contiguous"]
    assert inputs["cos"]["strides"][0] == 0
    assert inputs["cos"]["storage_count"] == 16


def test_an_offset_into_the_storage_is_kept(faulty: Faulty) -> None:
    """The whole storage is on the device, and the view begins inside of it."""
    shape, names = (2, 1, 8), ("grad_query_embed", "grad_key_embed", "cos", "sin")
    view = {"storage_offset": 3, "storage_shape": [21], "strides": [10, 9, 1], "data_bytes": 84}
    specs = [raw.spec(name, shape, **view) for name in names]
    body = [raw.chunk(n, 0, np.arange(21, dtype=np.float32).tobytes()) for n in range(len(names))]
    assert specs[0].data_type == tensor_pb2.DATA_TYPE_FLOAT32
    assert raw.stream(faulty.address, [raw.header_frame(specs), *body])
    assert faulty.last_call()["inputs"]["cos"] == {
        "shape": [2, 1, 8],
        "strides": [10, 9, 1],
        "offset": 3,
        "storage_count": 21,
        "contiguous": False,
    }


@pytest.mark.full
def test_what_is_set_before_the_packages_are_loaded(tmp_path: Path) -> None:
    """Each worker sees its own device only; timeouts, determinism and direct launches are on."""
    options = {"device.operator-timeout-ms": "1234", "device.sync-timeout-ms": "2345"}
    calls = tmp_path / "calls"
    with torch_npu.server(options, workers=2, calls=str(calls)):
        lines = [json.loads(line) for line in calls.read_text().splitlines()]
    assert {line["environment"]["ASCEND_RT_VISIBLE_DEVICES"] for line in lines} == {"0", "1"}
    for line in lines:
        assert line["environment"]["ACL_STREAM_TIMEOUT"] == "2345"
        assert line["environment"]["TASK_QUEUE_ENABLE"] == "0"
        assert line["settings"] == {"device": 0, "op_timeout_ms": 1234}
        assert line["deterministic"]


@pytest.mark.parametrize(
    "at",
    [
        "synchronize",
        *(
            pytest.param(at, marks=pytest.mark.full)  # each loads torch anew
            for at in ("copy_in", "operator", "copy_out")
        ),
    ],
)
@pytest.mark.parametrize("subject", HEAVY)
def test_a_fault_ends_the_worker_and_it_is_replaced(
    faulty: Faulty, at: str, subject: Subject
) -> None:
    """507015 wherever it shows: the caller is told, and the next request has a new worker."""
    before = faulty.client.server_info().workers[0].restart_count
    faulty.fail_next(at, stated("AclrtSynchronizeStreamWithTimeout", 507015))
    # of a shape of its own, since bytes that faulted twice would be refused
    arguments = subject.tnd(tokens=10 + len(at), with_query=False)
    with pytest.raises(errors.DeviceFaultError, match="ACL_ERROR_RT_AICORE_EXCEPTION") as caught:
        subject.call(faulty.client, **arguments)
    assert caught.value.acl_error == 507015
    assert caught.value.stage == at
    assert caught.value.soc == "Ascend950PR-simulated"
    assert not caught.value.may_retry

    def replaced() -> bool:
        worker = faulty.client.server_info().workers[0]
        return worker.ready and worker.restart_count == before + 1

    assert eventually(replaced, 30)
    assert_agrees(subject.call(faulty.client, **arguments), reference(arguments))


@pytest.mark.parametrize(
    ("text", "error", "fields"),
    [
        (stated("call aclnnX failed", 561003), errors.OperatorError, {"aclnn_status": 561003}),
        (stated("call aclnnX failed", 161002), errors.OperatorError, {"aclnn_status": 161002}),
        (stated("aclrtMalloc", 207001), errors.DeviceMemoryError, {"acl_error": 207001}),
        (
            "NPU out of memory. Tried to allocate 2.00 GiB (NPU 0; 60.00 GiB total capacity)",
            errors.DeviceMemoryError,
            {"acl_error": None},
        ),
        ("something that nobody has foreseen", errors.OperatorError, {"aclnn_status": None}),
    ],
)
def test_other_errors_leave_the_worker_alive(
    faulty: Faulty, text: str, error: type[Exception], fields: dict[str, Any], subject: Subject
) -> None:
    """Each is told with its text and its status, and the same worker serves the next request."""
    before = faulty.client.server_info().workers[0].restart_count
    faulty.fail_next("operator", text)
    with pytest.raises(error) as caught:
        subject.call(faulty.client, **subject.tnd())
    assert text.splitlines()[0] in str(caught.value)
    assert {name: getattr(caught.value, name) for name in fields} == fields
    assert_agrees(subject.call(faulty.client, **subject.tnd()), reference(subject.tnd()))
    assert faulty.client.server_info().workers[0].restart_count == before


@pytest.mark.parametrize(("layout", "who"), [(3, "torch_npu"), (5, "cann_ops_transformer")])
def test_a_call_that_is_not_checked_is_refused_by_wrapper_or_device(
    faulty: Faulty, layout: int, who: str
) -> None:
    """The wrapper lets layout 3 pass, and the device refuses it; others the wrapper refuses."""
    one = np.ones((1, 2, 1, 8), np.float32)
    with pytest.raises(errors.ContractError, match=who) as caught:
        faulty.client.apply_rotary_pos_emb_grad(one, one, one, one, layout=layout, check=False)
    assert caught.value.reason == "REFUSED_BY_DEVICE"
    assert caught.value.aclnn_status == 161002
    assert caught.value.stage == "operator"


def test_an_element_that_is_not_written_is_not_found_out(faulty: Faulty, subject: Subject) -> None:
    """What the backend's documents admit; torch's deterministic mode makes it NaN at least."""
    faulty.fail_next("unwritten")
    result = subject.call(faulty.client, **subject.tnd())
    assert np.isnan(result[1].flat[-1])
    assert not np.isnan(result[1].ravel()[:-1]).any()
