"""The service as a peer sees it: information, plans, health, reflection, errors."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

import opferry
from opferry import errors, wire
from opferry.core.dtypes import DType
from opferry.core.limits import LimitsConfig
from opferry.embedded import embedded_server
from opferry.operators import OPERATORS
from opferry.v1 import operator_service_pb2 as pb
from tests.support import raw, servers
from tests.support.backends import LongErrorBackend
from tests.support.calls import ROTARY_GRAD, tnd


def test_server_information(client: opferry.Client) -> None:
    """A server says what it is, what it runs and what it allows, and that it is no device."""
    info = client.server_info()
    assert info.backend == "cpu"
    assert not info.real_device
    assert info.serving
    assert info.operators == tuple(OPERATORS)
    assert [package.name for package in info.operator_packages] == ["built-in"]
    assert [(worker.device, worker.ready) for worker in info.workers] == [("cpu:0", True)]
    assert info.limits == LimitsConfig(**servers.EARLY_STREAMS)
    assert {"python", "numpy", "grpcio", "protobuf"} <= set(info.versions)
    assert info.reference_kernel == "numpy-blocked"
    assert info.opferry_version


def test_the_compiled_reference(tmp_path: Path) -> None:
    """The reference is compiled where numba is there; where it does not work, it is said why."""
    options = {"reference-kernel": "auto"}
    with (
        servers.embedded(options=options) as server,
        opferry.connect(server.address) as client,
    ):
        info = client.server_info()
    assert info.reference_kernel == "numba-fused"
    assert "numba" in info.versions
    (tmp_path / "numba.py").write_text("raise ImportError('needs another numpy')")
    path = os.pathsep.join([str(tmp_path), servers.PYTHONPATH])
    with (
        embedded_server(options=options, environment={"PYTHONPATH": path}) as server,
        opferry.connect(server.address) as client,
    ):
        info = client.server_info()
        outputs = client.apply_rotary_pos_emb_grad(**tnd(3, 4, 2, 16))
    assert info.reference_kernel == "numpy-blocked (ImportError: needs another numpy)"
    assert "numba" not in info.versions
    assert outputs.grad_query.shape == (3, 4, 16)


def test_a_plan_is_the_contracts_own(client: opferry.Client) -> None:
    """Planning on the server, with arrays or with specs, gives what the contract gives here."""
    arguments = tnd(3, 4, 2, 16)
    specs = {
        name: opferry.TensorSpec(DType.FLOAT32, array.shape)
        for name, array in arguments.items()
        if isinstance(array, np.ndarray)
    }
    here = ROTARY_GRAD.check(specs, ROTARY_GRAD.parse_attributes({"layout": 4}))
    there = client.plan_apply_rotary_pos_emb_grad(**arguments)
    assert there.operator_package == client.server_info().operator_packages[0]
    assert there.operator_package.known_answer == "PASSED"
    assert client.plan_apply_rotary_pos_emb_grad(**specs, layout="TND") == there
    assert replace(there, operator_package=None) == here


def test_a_plan_of_what_no_memory_could_hold(client: opferry.Client) -> None:
    """No data is needed to plan: specs of terabytes are refused by the limit, not by memory."""
    spec = opferry.TensorSpec(DType.FLOAT32, (2**30, 1, 1024))
    with pytest.raises(errors.TooLargeError, match="the limit is"):
        client.plan_apply_rotary_pos_emb_grad(spec, spec, spec, spec, layout=4)


def test_health_by_service_name(cpu_server: str) -> None:
    """The standard health service answers for the server and for the operator service."""
    with grpc.insecure_channel(cpu_server) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        for name in ("", wire.SERVICE_NAME):
            reply = stub.Check(health_pb2.HealthCheckRequest(service=name), timeout=5)
            assert reply.status == health_pb2.HealthCheckResponse.SERVING


def test_reflection_lists_the_service(cpu_server: str) -> None:
    """Tools that know no schema can ask for it."""
    with grpc.insecure_channel(cpu_server) as channel:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        request = reflection_pb2.ServerReflectionRequest(list_services="")
        (reply,) = stub.ServerReflectionInfo(iter([request]), timeout=5)
        listed = {service.name for service in reply.list_services_response.service}
    assert {wire.SERVICE_NAME, "grpc.health.v1.Health"} <= listed


def test_an_unknown_method_is_unimplemented(cpu_server: str) -> None:
    """A method of a later schema is refused with its status, and the server lives on."""
    with grpc.insecure_channel(cpu_server) as channel:
        call = channel.unary_unary(f"/{wire.SERVICE_NAME}/Teleport")
        with pytest.raises(grpc.RpcError) as caught:
            call(b"", timeout=5)
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_an_unknown_package_is_refused_with_the_known_ones(client: opferry.Client) -> None:
    """No code is ever uploaded: a request can only choose what the server has."""
    with pytest.raises(errors.NotSupportedError, match="it has built-in") as caught:
        client.apply_rotary_pos_emb_grad(**tnd(), operator_package="my-kernel")
    assert caught.value.reason == "OPERATOR_PACKAGE_UNKNOWN"
    assert caught.value.status.name == "FAILED_PRECONDITION"
    client.apply_rotary_pos_emb_grad(**tnd(), operator_package="built-in")


def test_a_long_error_is_cut_and_kept() -> None:
    """20 KB of Chinese: the code survives, the text is capped, the rest comes by request id."""
    with (
        servers.embedded("LongErrorBackend") as server,
        opferry.connect(server.address) as client,
    ):
        for tokens in (2, 4000):
            with pytest.raises(errors.OperatorError, match="truncated") as caught:
                client.apply_rotary_pos_emb_grad(**tnd(tokens))
            error = caught.value
            assert error.aclnn_status == 561002
            assert error.stage == "stage_one"
            assert error.reason == "OPERATOR_FAILED"
            assert error.status.name == "INTERNAL"
            assert len(error.message.encode()) < 3700
            assert LongErrorBackend.TEXT.startswith(error.message.split("...")[0])
            assert error.request_id in error.message
            assert client.error_text(error.request_id) == LongErrorBackend.TEXT
        with pytest.raises(errors.RequestError, match="no text is kept"):
            client.error_text("r-unknown")


def test_a_defect_of_a_backend_is_named_and_survived() -> None:
    """An exception nobody expected is OPERATOR_FAILED; no traceback leaves the server."""
    with (
        servers.embedded("DefectBackend") as server,
        opferry.connect(server.address) as client,
    ):
        for _ in range(2):
            with pytest.raises(errors.OperatorError, match="ZeroDivisionError") as caught:
                client.apply_rotary_pos_emb_grad(**tnd())
            assert "Traceback" not in str(caught.value)
        assert client.server_info().workers[0].restart_count == 0


@pytest.mark.parametrize("tokens", [2, 4000])
def test_an_output_that_is_not_written_shows_nobodys_data(tokens: int) -> None:
    """Memory is used again; outputs that a backend leaves alone are zeros, not old inputs."""
    with (
        servers.embedded("IdleBackend") as server,
        opferry.connect(server.address) as client,
    ):
        for _ in range(3):
            result = client.apply_rotary_pos_emb_grad(**tnd(tokens))
            for array in result:
                assert array is not None
                assert not array.any()


def test_a_check_that_is_skipped_reaches_the_backend(client: opferry.Client) -> None:
    """check=False: the backend itself refuses, with the stage where it did."""
    arguments = tnd()
    arguments["layout"] = 1
    with pytest.raises(errors.ContractError) as caught:
        client.apply_rotary_pos_emb_grad(**arguments, check=False)
    assert caught.value.stage == "stage_one"
    assert caught.value.aclnn_status == 161002


def test_a_missing_input_has_the_null_pointers_status(cpu_server: str) -> None:
    """Leaving out a required tensor is 161001, by name."""
    with pytest.raises(errors.ContractError, match="sin is missing") as caught:
        raw.stream(cpu_server, [raw.header_frame(raw.small_specs()[:3])])
    assert caught.value.aclnn_status == 161001
    assert caught.value.argument == "sin"
    request = pb.ApplyRotaryPosEmbGradRequest(attributes=raw.HALF_TND).SerializeToString()
    with pytest.raises(errors.ContractError, match="grad_query_embed is missing"):
        raw.unary(cpu_server, "ApplyRotaryPosEmbGrad", request)


def test_logs_are_structured_and_hold_no_data(tmp_path: Path) -> None:
    """One JSON object a line, with request id, sizes and times, and nothing of the tensors."""
    with servers.tcp(tmp_path) as server, opferry.connect(server.address) as client:
        arguments = tnd(3, cos=12345.678)
        execution = client.apply_rotary_pos_emb_grad(**arguments).execution
        with pytest.raises(errors.ContractError):
            client.apply_rotary_pos_emb_grad(**{**arguments, "layout": 1}, check=False)
    lines = [json.loads(line) for line in server.log.read_text().splitlines()]
    done = next(line for line in lines if "kernel_ms" in line)
    assert done["request_id"] == execution.request_id
    assert done["upload_bytes"] == execution.upload_bytes
    assert done["kernel_ms"][0] > 0
    outcomes = [line["outcome"] for line in lines if line.get("event") == "request"]
    assert "OK" in outcomes
    assert "SHAPE_MISMATCH" in outcomes
    assert "12345" not in server.log.read_text()
