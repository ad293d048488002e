"""What the status page shows, as plain values: the server at one moment."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

from opferry.core.execution import ServerInfo
from opferry_server.backends.aclnn.status import MEANINGS
from opferry_server.device_leases import DeviceLease
from opferry_server.jobs import Job, JobState
from opferry_server.seeing.faults import Faults
from opferry_server.seeing.gauges import STATES
from opferry_server.seeing.history import History
from opferry_server.seeing.view import View
from opferry_server.workers.faults import Fault
from opferry_server.workers.supervisor import Worker

SHOWN_JOBS = 200
"""How many requests are shown one by one."""

TEXT_CHARACTERS = 300
"""How much is shown of a text of a backend's, or of a name."""


class Snapshots:
    """Makes the page's snapshots."""

    def __init__(self, view: View, history: History, faults: Faults, *, private: bool) -> None:
        """Look at a server.

        Args:
            view: its parts.
            history: of its last seconds.
            faults: the last ones.
            private: whether only people on this host see it: then ids of requests, with which they
                could be ended, and the names of credentials are in it.
        """
        self._view = view
        self._history = history
        self._faults = faults
        self._private = private
        self._started_s = time.time()

    def take(self) -> dict[str, Any]:
        """Return the server as it is now."""
        info, jobs, now_s = self._view.describe(), self._view.jobs(), time.monotonic()
        leases = {lease.worker: lease for lease in self._view.device_leases()}
        pool, leased_bytes = self._view.pool, self._view.leases.leased_bytes
        return {
            "now_s": time.time(),
            "server": self._server(info),
            "history": self._history.seconds(),
            "requests": self._history.total_count,
            "failed": self._history.failed_count,
            "memory": {
                "used": self._view.used_bytes(),
                "leased": leased_bytes,
                "idle": pool.idle_bytes,
                "limit": info.limits.memory_bytes,
            },
            "queue": {
                "places": self._view.place_count(),
                "states": Counter(STATES[job.state] for job in jobs),
            },
            "tenants": _tenants(jobs),
            "devices": [
                _device(worker, leases.get(worker), jobs, now_s) for worker in self._view.workers
            ],
            "packages": [
                {
                    "name": package.name,
                    "digest": package.digest,
                    "known_answer": package.known_answer,
                    "is_default": at == 0,
                    "workers": [w.name for w in info.workers if w.operator_package == package.name],
                }
                for at, package in enumerate(info.operator_packages)
            ],
            "jobs": [self._job(job, now_s) for job in jobs[:SHOWN_JOBS]],
            "jobs_more": max(0, len(jobs) - SHOWN_JOBS),
            "faults": [_fault(fault) for fault in self._faults.last()],
        }

    def _server(self, info: ServerInfo) -> dict[str, Any]:
        return {
            "id": info.server_id,
            "version": info.opferry_version,
            "backend": info.backend,
            "real_device": info.real_device,
            "serving": info.serving,
            "address": self._view.address(),
            "started_s": self._started_s,
        }

    def _job(self, job: Job, now_s: float) -> dict[str, Any]:
        inputs = job.checked.call.inputs
        first = next(iter(inputs.values()), None)
        shown = {
            "key": job.id,
            "state": STATES[job.state],
            "state_s": now_s - job.since_s,
            "inside_s": now_s - job.entered_s,
            "tenant": job.tenant[:TEXT_CHARACTERS],
            "operator": job.checked.call.operator.name,
            "dtype": "" if first is None else first.dtype.value,
            "shape": [] if first is None else list(first.shape),
            "bytes": job.checked.input_bytes + job.checked.output_bytes,
            "package": job.package.name,
            "priority": job.priority.value,
            "worker": "" if job.worker is None else job.worker.name,
            "position": job.position,
            "expected_wait_s": job.expected_wait_s,
        }
        if self._private:
            shown |= {"request_id": job.request_id, "subject": job.subject[:TEXT_CHARACTERS]}
        return shown


def _tenants(jobs: tuple[Job, ...]) -> list[dict[str, Any]]:
    found: dict[str, Counter[str]] = {}
    for job in jobs:
        found.setdefault(job.tenant, Counter())[STATES[job.state]] += 1
    return [
        {"name": name[:TEXT_CHARACTERS], "states": states} for name, states in sorted(found.items())
    ]


def _device(
    worker: Worker, lease: DeviceLease | None, jobs: tuple[Job, ...], now_s: float
) -> dict[str, Any]:
    about = worker.describe()
    running = [job for job in jobs if job.worker is worker and job.state is JobState.RUNNING]
    return {
        "worker": about.name,
        "device": about.device,
        "ready": about.ready,
        "quarantined": about.quarantined,
        "package": about.operator_package,
        "slots": worker.slots,
        "restarts": about.restart_count,
        "memory": worker.memory_bytes,
        "leased_by": "" if lease is None else lease.tenant[:TEXT_CHARACTERS],
        "lease_left_s": 0.0 if lease is None else lease.left_s,
        "trouble": about.trouble[:TEXT_CHARACTERS],
        "ready_s": now_s - worker.ready_since_s if about.ready else None,
        "running": [
            {
                "key": job.id,
                "tenant": job.tenant[:TEXT_CHARACTERS],
                "operator": job.checked.call.operator.name,
                "state_s": now_s - job.since_s,
            }
            for job in running
        ],
    }


def _fault(fault: Fault) -> dict[str, Any]:
    meaning = MEANINGS.get(int(fault.acl_error)) if fault.acl_error else None
    return {**vars(fault), "name": "" if meaning is None else meaning.name}
