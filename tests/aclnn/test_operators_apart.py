"""Two operators on one device are two things: one that is not there, or wrong, is not the other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import opferry
from opferry import errors
from opferry.embedded import embedded_server
from opferry_server.packages import LIBRARY
from tests.aclnn.test_backend import server
from tests.support import simulator
from tests.support.calls import assert_same_bits, forward_arrays, reference, tnd

FORWARD, BACKWARD = "ApplyRotaryPosEmb", "ApplyRotaryPosEmbGrad"
FIRST_STAGES = {
    FORWARD: "aclnnApplyRotaryPosEmbV2GetWorkspaceSize",
    BACKWARD: "aclnnApplyRotaryPosEmbGradGetWorkspaceSize",
}


@contextmanager
def beside_own_backward(faults: str = "") -> Iterator[opferry.Client]:
    """Run a server whose environment has a package with the backward alone, before CANN's own."""
    environment = simulator.environment(faults)
    environment["ASCEND_CUSTOM_OPP_PATH"] = simulator.package("grad-only")
    with (
        embedded_server(backend="aclnn", environment=environment) as running,
        opferry.connect(running.address, timeout=60) as client,
    ):
        yield client


@pytest.mark.parametrize("status", [pytest.param(161002, marks=pytest.mark.full), 561003])
@pytest.mark.parametrize("refused", [FORWARD, BACKWARD])
def test_an_operator_that_the_device_refuses_is_alone_not_served(refused: str, status: int) -> None:
    """An older CANN, or kernels that are not installed: the other operator runs."""
    with server(f"{FIRST_STAGES[refused]}:*:{status}") as (_, client):
        calls = {
            FORWARD: lambda: client.apply_rotary_pos_emb(**forward_arrays()),
            BACKWARD: lambda: client.apply_rotary_pos_emb_grad(**tnd()),
        }
        refused_call = calls.pop(refused)
        (served,) = calls
        for _ in range(2):
            with pytest.raises(errors.NotSupportedError, match=str(status)) as caught:
                refused_call()
            assert caught.value.argument == "operator"
            assert refused in str(caught.value)
            assert calls[served]().execution.operator_package.known_answer == "PASSED"
        info = client.server_info()
        assert info.operators == (served,)
        assert refused in info.workers[0].trouble
        assert str(status) in info.workers[0].trouble


@pytest.mark.full
def test_a_device_that_refuses_every_operator_does_not_start() -> None:
    """With the words of the first refusal."""
    faults = ";".join(f"{stage}:*:561003" for stage in FIRST_STAGES.values())
    with pytest.raises(errors.ServerError, match="did not start"), server(faults):
        pass


def test_each_operator_tells_of_the_library_that_has_it() -> None:
    """The environment's package has the backward alone; the forward is CANN's own."""
    folder = simulator.package("grad-only")
    with beside_own_backward() as client:
        forward = client.apply_rotary_pos_emb(**forward_arrays()).execution.operator_package
        backward = client.apply_rotary_pos_emb_grad(**tnd()).execution.operator_package
    assert backward.library_file == str(Path(folder, LIBRARY).resolve())
    assert Path(forward.library_file).name == "libopapi_transformer.so"
    assert forward.digest not in ("", backward.digest)


@pytest.mark.full
def test_the_vendors_operator_must_be_right_beside_a_custom_one() -> None:
    """A custom backward does not excuse a wrong forward of CANN's."""
    with (
        pytest.raises(errors.ServerError, match="did not start"),
        beside_own_backward("aclnnApplyRotaryPosEmbV2:1-3:corrupt:1"),
    ):
        pass


def test_what_is_known_to_be_wrong_is_told_of_that_operator_alone() -> None:
    """A package of one's own whose forward is wrong: the backward's replies say PASSED."""
    options = {"packages": f"mine={simulator.package('good')}"}
    fault = "aclnnApplyRotaryPosEmbV2:*:corrupt:1"
    with server(fault, options={**options, "default-package": "mine"}) as (_, client):
        forward = client.apply_rotary_pos_emb(**forward_arrays()).execution
        backward = client.apply_rotary_pos_emb_grad(**tnd()).execution
    assert forward.operator_package.known_answer == "FAILED"
    assert backward.operator_package.known_answer == "PASSED"


def test_what_a_server_can_run_does_not_change_with_what_it_has_just_run() -> None:
    """One device serves a package at a time; server information is of all of them."""
    options = {"packages": f"mine={simulator.package('grad-only')}"}
    with server(options=options) as (_, client):
        for _ in range(2):
            client.apply_rotary_pos_emb_grad(**tnd(), operator_package="mine")
            assert set(client.server_info().operators) == {FORWARD, BACKWARD}
            result = client.apply_rotary_pos_emb(**forward_arrays())
            assert_same_bits(result, reference(forward_arrays()))
            assert set(client.server_info().operators) == {FORWARD, BACKWARD}
