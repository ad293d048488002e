"""The worker process: opens its backend, then runs one request after the other from its socket.

As many threads as the backend takes requests receive from the same socket; each datagram goes to
one of them. A watching thread ends the process as soon as the front's end of the socket is gone,
whatever the others are doing, so that no worker outlives its front.
"""

from __future__ import annotations

import argparse
import contextlib
import mmap
import os
import select
import signal
import socket
import threading
import traceback
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import xxhash
from numpy.typing import NDArray

from opferry.core.problems import Problem, Reason
from opferry.core.tensors import TensorSpec, view_array
from opferry_server.backends.base import Backend, BackendError, DeviceProblem, open_backend
from opferry_server.workers import messages
from opferry_server.workers.begun import BegunJobs
from opferry_server.workers.determinism import execute
from opferry_server.workers.known_answer import with_known_answer
from opferry_server.workers.messages import MAX_TEXT_CHARACTERS, RunReply, RunRequest

ENDED_BY_FAULT = 3
"""The exit status of a worker that ended itself after a fault that it has reported."""


def main() -> None:
    """Run a worker; see `--help` for the options, which are the supervisor's affair."""
    parser = argparse.ArgumentParser(description="one opferry worker; started by the server")
    parser.add_argument("--socket-fd", type=int, required=True)
    parser.add_argument("--begun-fd", type=int, required=True)
    parser.add_argument("--backend", required=True)
    parser.add_argument("--settings", required=True)
    options = parser.parse_args()
    # Ctrl-C and a service manager signal the whole group; the front drains and ends its workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    control = socket.socket(fileno=options.socket_fd)
    threading.Thread(target=_end_with_front, args=(control,), daemon=True).start()
    try:
        backend = open_backend(options.backend, messages.decode_settings(options.settings))
        info = with_known_answer(backend, backend.info())
    except Exception as err:
        if isinstance(err, (BackendError, Problem)):
            broken = isinstance(err, DeviceProblem) and err.device_broken
            control.send(messages.encode_failed(str(err), device_broken=broken))
        else:
            traceback.print_exc()
            control.send(messages.encode_failed(f"{type(err).__name__}: {err}"))
        os._exit(1)
    worker = Worker(control, backend, BegunJobs(options.begun_fd), info.refused)
    control.send(messages.encode_ready(info))
    for thread in range(1, info.concurrency):
        threading.Thread(target=worker.serve, args=(thread,), daemon=True).start()
    worker.serve(0)


def _end_with_front(control: socket.socket) -> None:
    poll = select.poll()
    poll.register(control, select.POLLRDHUP | select.POLLHUP)
    poll.poll()
    os._exit(0)


class Worker:
    """One backend, its control socket and the arenas that it has seen."""

    def __init__(
        self,
        control: socket.socket,
        backend: Backend,
        begun: BegunJobs,
        refused: Mapping[str, str],
    ) -> None:
        """Serve *backend* over *control*, a SOCK_SEQPACKET socket; not what it has *refused*."""
        self._control = control
        self._begun = begun
        self._backend = backend
        self._refused = refused
        self._arenas: dict[int, mmap.mmap] = {}
        self._lock = threading.Lock()

    def serve(self, thread: int) -> None:
        """Run requests until the process ends with its front; *thread* counts from 0."""
        while True:
            message, fds, _, _ = socket.recv_fds(self._control, messages.MAX_MESSAGE_BYTES, 1)
            if not message:
                return
            kind, fields, work = messages.decode_for_worker(message)
            if kind == "run":
                request = RunRequest.decode(fields, work)
                self._begun.begin(thread, request.job_id)
                # a plan has an arena too, so that it is a request like any other
                self._learn(request, fds)
                reply = self._run(request)
                self._control.send(reply.encode())
                if reply.ends_worker:
                    # no cleaning up: free and destroy may block for ever
                    os._exit(ENDED_BY_FAULT)
            elif kind == "forget":
                # a backend that kept a view keeps the mapping, until it lets go
                with self._lock, contextlib.suppress(BufferError):
                    self._arenas.pop(fields["arena_id"]).close()
            elif kind == "end":
                self._end()

    def _end(self) -> None:
        """Release the device and end the process; the other threads wait for messages."""
        try:
            self._backend.close()
        except Exception:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)

    def _learn(self, request: RunRequest, fds: list[int]) -> None:
        for fd in fds:
            with self._lock:
                self._arenas[request.arena_id] = mmap.mmap(fd, request.arena_bytes)
            os.close(fd)

    def _run(self, request: RunRequest) -> RunReply:
        try:
            return self._execute(request)
        except Problem as problem:
            problem.message = problem.message[:MAX_TEXT_CHARACTERS]
            reply = RunReply(request.job_id, problem=problem.to_fields())
            if not isinstance(problem, DeviceProblem):
                return reply
            return replace(
                reply,
                ends_worker=problem.ends_worker,
                device_broken=problem.device_broken,
                probes_device=problem.probes_device,
            )
        except Exception as err:
            # The text may hold anything of the backend's; the log has the rest.
            traceback.print_exc()
            text = f"the backend raised {type(err).__name__}: {err}"[:MAX_TEXT_CHARACTERS]
            failed = Problem(Reason.OPERATOR_FAILED, text)
            return RunReply(request.job_id, problem=failed.to_fields())

    def _execute(self, request: RunRequest) -> RunReply:
        """Views of the arena live only in here, so that it can be unmapped between requests."""
        work = request.work
        call, place = work.call, work.placement
        if work.task is None:
            self._check_served(call.operator.name)
        if work.plan_only:
            return RunReply(request.job_id, workspace_bytes=self._backend.plan(call))
        with memoryview(self._arenas[request.arena_id]) as arena:
            if work.task is not None:
                # only judges need messages; a device's worker does without
                from opferry_server.judging.tasks import perform

                return RunReply(request.job_id, verdict=perform(request, work.task, arena))
            sources = _slices(arena, call.inputs, place.inputs, writable=False)
            targets = _slices(arena, work.outputs, place.outputs, writable=True)
            try:
                for name, digest in call.digests.items():
                    _check_digest(name, sources[name], digest)
                timings = execute(
                    self._backend,
                    call,
                    _arrays(call.inputs, sources),
                    self._cleared(_arrays(work.outputs, targets)),
                )
                digests = {
                    name: xxhash.xxh3_64_digest(view)
                    for name, view in targets.items()
                    if call.options.output_digests
                }
            finally:
                for view in (*sources.values(), *targets.values()):
                    view.release()
        return RunReply(request.job_id, timings, digests)

    def _check_served(self, operator: str) -> None:
        if operator in self._refused:
            raise Problem(
                Reason.OPERATOR_NOT_SUPPORTED,
                f"{operator} is not served: this device refused its known-answer case when the "
                f"worker started: {self._refused[operator]}",
                argument="operator",
                given=operator,
            )

    def _cleared(self, outputs: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        if not self._backend.writes_every_output:
            for array in outputs.values():
                array.fill(0)
        return outputs


def _slices(
    arena: memoryview, specs: Any, offsets: Any, *, writable: bool
) -> dict[str, memoryview]:
    views = {}
    for name, spec in specs.items():
        view = arena[offsets[name] : offsets[name] + spec.data_bytes]
        views[name] = view if writable else view.toreadonly()
    return views


def _arrays(specs: Any, views: dict[str, memoryview]) -> dict[str, NDArray[Any]]:
    arrays: dict[str, NDArray[Any]] = {}
    spec: TensorSpec
    for name, spec in specs.items():
        arrays[name] = view_array(spec, views[name])
    return arrays


def _check_digest(name: str, data: memoryview, expected: bytes) -> None:
    found = xxhash.xxh3_64_digest(data)
    if found != expected:
        raise Problem(
            Reason.CHECKSUM_MISMATCH,
            f"{name} arrived with the digest {found.hex()}; its header says {expected.hex()}: "
            "it was changed on the way, send it again",
            argument=name,
            given=found.hex(),
            allowed=expected.hex(),
        )
