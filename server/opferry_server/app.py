"""The life of a server, top to bottom."""

from __future__ import annotations

import asyncio
import json
import os
import platform
import resource
import signal
import socket
import threading
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from typing import Any

import google.protobuf
import grpc
import structlog
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from opferry import wire
from opferry.core.execution import ServerInfo
from opferry.operators import OPERATORS
from opferry_server import malloc
from opferry_server.admission import Admission
from opferry_server.config import ServerConfig
from opferry_server.judging.judges import Judges
from opferry_server.judging.kept import KeptData
from opferry_server.lease_socket import LeaseSocket
from opferry_server.leases import Leases
from opferry_server.requests import ErrorTexts
from opferry_server.service import OperatorService
from opferry_server.workers.arena import Arena, ArenaPool
from opferry_server.workers.running import WorkerStartError
from opferry_server.workers.supervisor import Worker

log = structlog.get_logger()

TRIM_PERIOD_S = 1.0
"""How often idle memory is looked at."""

LARGE_BYTES = 16 * 2**20
"""While arenas hold so much, as they do for half a minute after a request for it, the next request
for it is expected, and the heap keeps what such requests need."""

LAST_WORDS_S = 0.5
"""How long replies that are on their way get when everything else is done."""

WINDOW_BYTES = 8 * 2**20
"""What a client may have on its way on one stream, unread."""

THREAD_COUNT = 2
"""The threads beside the event loop's: for starting processes, and for digests."""

MIN_PING_MS = 10_000
"""The shortest period of a client's keepalive pings; the SDK's is longer."""


VERSION = version("opferry")
"""The version of opferry that runs here."""


class StartError(Exception):
    """The server cannot start; the text says why."""


async def serve(config: ServerConfig) -> None:
    """Run a server until SIGTERM, SIGINT, or the end of the process that started it.

    Raises:
        StartError: if the workers do not get ready, the address cannot be had, or the backend has
            no operator packages and some are given.
    """
    if config.packages and config.backend == "cpu":
        raise StartError("packages: the backend cpu is the reference and has none")
    malloc.tune()
    asyncio.get_running_loop().set_default_executor(_threads())
    stop = _stop_event(config)
    app = App(config)
    stopped = asyncio.ensure_future(stop.wait())
    start = asyncio.ensure_future(app.start())
    try:
        await asyncio.wait((start, stopped), return_when=asyncio.FIRST_COMPLETED)
        if start.done():
            start.result()
            address = await app.listen()
            log.info(
                "serving", address=address, backend=config.backend, workers_count=config.workers
            )
            _tell_parent(config, address)
            await stopped
    finally:
        start.cancel()
        await asyncio.gather(start, return_exceptions=True)
        await app.close()
    log.info("ended")


class App:
    """The parts of a server, and the order in which they start and end."""

    def __init__(self, config: ServerConfig) -> None:
        """Compose a server; nothing runs yet."""
        self._config = config
        self._limits = config.limits_config
        self._packages = config.operator_packages
        self._workers = [
            Worker(
                config.backend,
                config.backend_settings(device, self._packages),
                config.bounds,
                self._workers_changed,
            )
            for device in range(config.workers)
        ]
        self._pool = ArenaPool(
            self._limits.memory_bytes, self._limits.idle_memory_bytes, self._forget
        )
        self._judges = Judges(config.judge_settings, config.bounds)
        self._kept = KeptData(self._limits.kept_bytes, self._limits.client_kept_bytes)
        self._leases = Leases(self._limits, self._pool, self._memory_is_short)
        self._lease_socket = LeaseSocket(self._leases, frozenset(config.shm_users))
        self._admission: Admission | None = None
        self._server: grpc.aio.Server | None = None
        self._health = health.aio.HealthServicer()
        self._trimmer: asyncio.Task[None] | None = None
        self._serving = False
        self._health_tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Start the workers; the first start of each must succeed."""
        try:
            await _all_or_none([worker.start() for worker in self._workers])
        except WorkerStartError as err:
            raise StartError(f"the backend did not start: {err}") from err
        slots = sum(worker.free_slots for worker in self._workers)
        self._admission = Admission(self._limits, self._pool, self._workers, slots)
        self._trimmer = asyncio.create_task(self._trim())

    async def listen(self) -> str:
        """Open the address and answer calls; return "host:port"."""
        assert self._admission is not None  # noqa: S101 - started
        texts = ErrorTexts()
        service = OperatorService(
            self._limits,
            self._admission,
            texts,
            self.describe,
            self._packages,
            self._judges,
            self._kept,
            self._leases,
            slot_count=sum(worker.slots for worker in self._workers),
            plans=any(worker.info is not None and worker.info.plans for worker in self._workers),
        )
        server = grpc.aio.server(
            maximum_concurrent_rpcs=self._limits.call_count,
            options=(
                ("grpc.max_receive_message_length", self._limits.message_bytes),
                ("grpc.max_send_message_length", self._limits.message_bytes),
                ("grpc.max_concurrent_streams", self._limits.stream_count),
                # two servers must not share a port without knowing
                ("grpc.so_reuseport", 0),
                # an explicit window: the one that gRPC works out by itself grows to a gigabyte
                # when the front, or its host, stands still for a moment
                ("grpc.http2.bdp_probe", 0),
                ("grpc.http2.lookahead_bytes", WINDOW_BYTES),
                ("grpc.http2.min_recv_ping_interval_without_data_ms", MIN_PING_MS),
                ("grpc.keepalive_permit_without_calls", 1),
            ),
        )
        server.add_generic_rpc_handlers((service.handlers(),))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        names = (wire.SERVICE_NAME, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, server)
        try:
            port = server.add_insecure_port(self._config.address)
        except RuntimeError as err:
            raise StartError(f"cannot listen on {self._config.address}: {err}") from err
        self._offer_leases()
        await server.start()
        self._server = server
        self._serving = True
        await self._set_health()
        address = self._config.address
        return address if address.startswith("unix:") else f"{address.rpartition(':')[0]}:{port}"

    async def close(self) -> None:
        """End in order: refuse, let what runs end, end the workers."""
        self._serving = False
        if self._admission is not None:
            await self._set_health()
            self._admission.drain()
            await self._admission.wait_empty(self._config.grace_s)
        if self._server is not None:
            # what is still open runs no operator: watchers of health, streams without a header
            await self._server.stop(LAST_WORDS_S)
        if self._trimmer is not None:
            self._trimmer.cancel()
        await asyncio.gather(*(worker.close() for worker in self._workers), self._judges.close())
        self._kept.close()
        # in this order: who loses the connection keeps the results that it has
        self._leases.close()
        self._lease_socket.close()
        self._pool.trim(0.0)

    def describe(self) -> ServerInfo:
        """Return what the server is now."""
        infos = [worker.info for worker in self._workers if worker.info is not None]
        first = infos[0] if infos else None
        versions = {
            "python": platform.python_version(),
            "grpcio": grpc.__version__,
            "protobuf": google.protobuf.__version__,
        }
        return ServerInfo(
            opferry_version=VERSION,
            backend=self._config.backend if first is None else first.backend,
            real_device=first is not None and first.real_device,
            serving=self._serving and self._able,
            operators=tuple(OPERATORS),
            operator_packages=tuple(map(self._packages.describe, self._packages.names)),
            workers=tuple(worker.describe() for worker in self._workers),
            limits=self._limits,
            versions={**versions, **({} if first is None else first.versions)},
            reference_kernel="" if first is None else first.reference_kernel,
            lease_socket=self._lease_socket.path,
        )

    @property
    def _able(self) -> bool:
        """Whether a worker is ready, or will be in a moment."""
        return any(worker.info is not None or not worker.failing for worker in self._workers)

    def _workers_changed(self) -> None:
        for worker in self._workers:
            if worker.info is not None:
                self._packages.learn(worker.info.operator_package)
        if self._admission is not None:
            self._admission.workers_changed()
            task = asyncio.ensure_future(self._set_health())
            self._health_tasks.add(task)
            task.add_done_callback(self._health_tasks.discard)

    def _memory_is_short(self) -> bool:
        return self._admission is not None and self._admission.memory_is_short

    def _offer_leases(self) -> None:
        if self._config.shm and self._leases.offered:
            try:
                self._lease_socket.open()
            except OSError as err:
                log.warning("no shared memory", why=str(err))

    def _forget(self, arena: Arena) -> None:
        for worker in self._workers:
            worker.forget(arena)
        self._judges.forget(arena)

    async def _set_health(self) -> None:
        states = health_pb2.HealthCheckResponse
        state = states.SERVING if self._serving and self._able else states.NOT_SERVING
        for name in ("", wire.SERVICE_NAME):
            await self._health.set(name, state)

    async def _trim(self) -> None:
        while True:
            await asyncio.sleep(TRIM_PERIOD_S)
            self._pool.trim()
            if self._pool.total_bytes < LARGE_BYTES:
                malloc.trim()
            if self._memory_is_short():
                self._lease_socket.recall()
            if self._admission is not None:
                # memory that could not be had for want of descriptors may be there now
                self._admission.workers_changed()


def _threads() -> ThreadPoolExecutor:
    """Return the threads beside the event loop's, all of them there from the start."""
    threads, met = ThreadPoolExecutor(THREAD_COUNT), threading.Barrier(THREAD_COUNT)
    for _ in range(THREAD_COUNT):
        threads.submit(met.wait)
    return threads


async def _all_or_none(starts: list[Coroutine[Any, Any, None]]) -> None:
    """Run all; after the first that fails the others are ended, and waited for."""
    tasks = [asyncio.ensure_future(start) for start in starts]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def raise_descriptor_limit() -> None:
    """Use as many descriptors as the system allows: each arena and each connection takes some."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _stop_event(config: ServerConfig) -> asyncio.Event:
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    if config.parent_fd is not None:
        # The parent writes nothing: readable means that it is gone.
        def parent_gone() -> None:
            loop.remove_reader(config.parent_fd or 0)
            stop.set()

        loop.add_reader(config.parent_fd, parent_gone)
    return stop


def _tell_parent(config: ServerConfig, address: str) -> None:
    if config.parent_fd is not None:
        with socket.socket(fileno=os.dup(config.parent_fd)) as parent:
            parent.sendall(json.dumps({"address": address}).encode() + b"\n")
