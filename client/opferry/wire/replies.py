"""What servers report, executions, plans and themselves, to messages and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from functools import lru_cache

from opferry.core.execution import (
    Execution,
    OperatorPackage,
    ServerInfo,
    Timings,
    WorkerInfo,
)
from opferry.core.limits import LimitsConfig
from opferry.core.tensors import TensorSpec
from opferry.operators.base import Plan
from opferry.operators.call import Call
from opferry.v1 import execution_pb2, operator_service_pb2
from opferry.wire.specs import spec_from_message, spec_message

KNOWN_COUNT = 64
"""So many operator packages, those met last, are not translated again."""


def execution_message(execution: Execution) -> execution_pb2.Execution:
    """Return an execution as its message."""
    values = dict(vars(execution))
    values["operator_package"] = _package_message(execution.operator_package)
    values["timings"] = execution_pb2.Timings(**vars(execution.timings))
    return execution_pb2.Execution(**values)


def result_message(
    outputs: Mapping[str, TensorSpec], execution: Execution, digests: Mapping[str, bytes]
) -> operator_service_pb2.ExecuteResult:
    """Return a call's result without its data."""
    return operator_service_pb2.ExecuteResult(
        outputs=[
            spec_message(name, spec, digests.get(name, b"")) for name, spec in outputs.items()
        ],
        execution=execution_message(execution),
    )


def execution_from_message(message: execution_pb2.Execution) -> Execution:
    """Return the execution of a message."""
    timings = message.timings
    return Execution(
        request_id=message.request_id,
        worker=message.worker,
        device=message.device,
        backend=message.backend,
        soc_name=message.soc_name,
        cann_version=message.cann_version,
        operator_package=_package(message.operator_package),
        real_device=message.real_device,
        timings=Timings(
            queue_ns=timings.queue_ns,
            upload_ns=timings.upload_ns,
            host_to_device_ns=timings.host_to_device_ns,
            stage_one_ns=timings.stage_one_ns,
            kernel_ns=tuple(timings.kernel_ns),
            device_to_host_ns=timings.device_to_host_ns,
            download_ns=timings.download_ns,
        ),
        upload_bytes=message.upload_bytes,
        download_bytes=message.download_bytes,
        shared_memory=message.shared_memory,
    )


def plan_response(plan: Plan, request_id: str) -> operator_service_pb2.PlanResponse:
    """Return a plan as its message."""
    return operator_service_pb2.PlanResponse(
        outputs=[spec_message(name, spec) for name, spec in plan.outputs.items()],
        template=plan.template,
        tiling_key=plan.tiling_key,
        broadcast_axes=plan.broadcast_axes,
        workspace_bytes=plan.workspace_bytes,
        total_bytes=plan.total_bytes,
        request_id=request_id,
        device_workspace_bytes=plan.device_workspace_bytes,
        operator_package=None
        if plan.operator_package is None
        else _package_message(plan.operator_package),
    )


def plan_from_response(call: Call, response: operator_service_pb2.PlanResponse) -> Plan:
    """Return the plan that a server answered to *call*."""
    limits = LimitsConfig()
    return Plan(
        operator=call.operator,
        attributes=call.attributes,
        inputs=call.inputs,
        outputs={
            spec.name: spec_from_message(spec.name, spec, limits) for spec in response.outputs
        },
        broadcast_axes=tuple(response.broadcast_axes),
        template=response.template,
        tiling_key=response.tiling_key,
        workspace_bytes=response.workspace_bytes,
        device_workspace_bytes=response.device_workspace_bytes
        if response.HasField("device_workspace_bytes")
        else None,
        operator_package=_package(response.operator_package)
        if response.HasField("operator_package")
        else None,
    )


def server_info_message(info: ServerInfo) -> operator_service_pb2.GetServerInfoResponse:
    """Return a server's description as its message."""
    return operator_service_pb2.GetServerInfoResponse(
        opferry_version=info.opferry_version,
        backend=info.backend,
        real_device=info.real_device,
        serving=info.serving,
        operators=info.operators,
        operator_packages=[_package_message(package) for package in info.operator_packages],
        workers=[operator_service_pb2.WorkerInfo(**vars(worker)) for worker in info.workers],
        limits=operator_service_pb2.ServerLimits(**vars(info.limits)),
        versions=info.versions,
        reference_kernel=info.reference_kernel,
        lease_socket=info.lease_socket,
        server_id=info.server_id,
        tenant=info.tenant,
        role=info.role,
    )


def server_info_from_message(message: operator_service_pb2.GetServerInfoResponse) -> ServerInfo:
    """Return a server's description of a message."""
    return ServerInfo(
        opferry_version=message.opferry_version,
        backend=message.backend,
        real_device=message.real_device,
        serving=message.serving,
        operators=tuple(message.operators),
        operator_packages=tuple(_package(package) for package in message.operator_packages),
        workers=tuple(
            WorkerInfo(**{item.name: getattr(worker, item.name) for item in fields(WorkerInfo)})
            for worker in message.workers
        ),
        # limits that can be 0 are optional: a field that is not set is one that
        # the server does not know
        limits=LimitsConfig(**{field.name: value for field, value in message.limits.ListFields()}),
        versions=dict(message.versions),
        reference_kernel=message.reference_kernel,
        lease_socket=message.lease_socket,
        server_id=message.server_id,
        tenant=message.tenant,
        role=message.role,
    )


@lru_cache(KNOWN_COUNT)
def _package_message(package: OperatorPackage) -> execution_pb2.OperatorPackage:
    return execution_pb2.OperatorPackage(**vars(package))


def _package(message: execution_pb2.OperatorPackage) -> OperatorPackage:
    return _known_package(message.SerializeToString(deterministic=True))


@lru_cache(KNOWN_COUNT)
def _known_package(serialized: bytes) -> OperatorPackage:
    message = execution_pb2.OperatorPackage.FromString(serialized)
    return OperatorPackage(
        **{item.name: getattr(message, item.name) for item in fields(OperatorPackage)}
    )
