"""What is reported of a request that ran, or failed."""

from __future__ import annotations

from opferry.core.execution import Execution, Timings
from opferry.core.problems import Problem
from opferry_server.backends.base import BackendInfo
from opferry_server.jobs import Job
from opferry_server.workers.messages import RunReply


def describe_execution(job: Job, upload_s: float) -> Execution:
    """Return what is reported of a job that ran."""
    assert isinstance(job.outcome, RunReply)  # noqa: S101 - it ran
    assert job.worker is not None  # noqa: S101 - it ran there
    info = job.backend_info
    assert info is not None  # noqa: S101 - it ran there
    stages: Timings = job.outcome.timings
    return Execution(
        request_id=job.request_id,
        worker=job.worker.name,
        device=info.device,
        backend=info.backend,
        soc_name=info.soc_name,
        cann_version=info.cann_version,
        operator_package=info.package_of(job.checked.call.operator.name),
        real_device=info.real_device,
        timings=Timings(
            **{
                **vars(stages),
                "queue_ns": round(job.waited_s * 1e9),
                "upload_ns": round(upload_s * 1e9),
            }
        ),
        upload_bytes=job.checked.input_bytes,
        download_bytes=job.checked.output_bytes,
        shared_memory=job.lease is not None,
    )


def add_origin(problem: Problem, info: BackendInfo, operator: str) -> None:
    """Note in a problem what ran the operator that met it, where that is a device's library."""
    package = info.package_of(operator)
    if package.library_file:
        problem.soc = problem.soc or info.soc_name
        problem.cann_version = info.cann_version
        problem.operator_package = f"{package.name} sha256:{package.digest}"
        problem.library_file = package.library_file
