"""The life of a server, top to bottom."""

from __future__ import annotations

import asyncio
import json
import os
import platform
import re
import resource
import secrets
import signal
import socket
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from typing import Any

import google.protobuf
import grpc
import structlog

from opferry import wire
from opferry.core.execution import ServerInfo
from opferry.operators import OPERATORS
from opferry_server import malloc
from opferry_server.access.authentication import Authentication, least_role
from opferry_server.access.credentials import CredentialsError
from opferry_server.access.files import WatchedFiles
from opferry_server.access.options import open_authentication
from opferry_server.access.tls import ServerTls, TlsError
from opferry_server.admission import Admission
from opferry_server.config import ConfigError, ServerConfig
from opferry_server.farm import FarmService
from opferry_server.judging.judges import Judges
from opferry_server.judging.kept import KeptData
from opferry_server.lease_socket import LeaseSocket
from opferry_server.leases import Leases
from opferry_server.open_services import (
    CONNECTION_CHECKS,
    HEALTH_NAME,
    Health,
    reflection_handlers,
)
from opferry_server.requests import ErrorTexts, Requests
from opferry_server.seeing.seeing import Seeing, SeeingError
from opferry_server.seeing.view import View
from opferry_server.service import OperatorService
from opferry_server.tenants import Tenants
from opferry_server.workers.arena import Arena, ArenaPool
from opferry_server.workers.running import WorkerStartError
from opferry_server.workers.supervisor import Worker

log = structlog.get_logger()

TRIM_PERIOD_S = 1.0
"""How often idle memory is looked at, and files of certificates and tokens."""

LARGE_BYTES = 16 * 2**20
"""While arenas hold so much, as they do for half a minute after a request for it, the next request
for it is expected, and the heap keeps what such requests need."""

LAST_WORDS_S = 0.5
"""How long replies that are on their way get when everything else is done."""

WINDOW_BYTES = 8 * 2**20
"""What a client may have on its way on one stream, unread."""

THREAD_COUNT = 2
"""The threads beside the event loop's: for starting processes, and for digests."""


VERSION = version("opferry")
"""The version of opferry that runs here."""


class StartError(Exception):
    """The server cannot start; the text says why."""


LIVE_OPTIONS = ("tenants", "device_lease_s")
"""What of a changed configuration is in force at once; all else takes another start."""


async def serve(config: ServerConfig, load: Callable[[], ServerConfig]) -> None:
    """Run a server until SIGTERM, SIGINT, or the end of the process that started it.

    Args:
        config: the configuration.
        load: returns it as it is now, or raises a ConfigError.

    Raises:
        StartError: if the workers do not get ready, the address cannot be had, or the backend has
            no operator packages and some are given, or certificates or credentials are wrong.
    """
    if config.packages and config.backend == "cpu":
        raise StartError("packages: the backend cpu is the reference and has none")
    malloc.tune()
    asyncio.get_running_loop().set_default_executor(_threads())
    stop = _stop_event(config)
    app = App(config, load)
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, app.reload)
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

    def __init__(self, config: ServerConfig, load: Callable[[], ServerConfig]) -> None:
        """Compose a server; nothing runs yet.

        Args:
            config: the configuration.
            load: returns it as it is now, or raises a ConfigError.
        """
        self._config = config
        self._load = load
        self._limits = config.limits_config
        self._tenants = Tenants(config.tenant_limits)
        self._server_id = config.server_id or _own_id()
        self._seeing = _seeing(config, self._server_id)
        self._packages = config.operator_packages
        self._workers = [
            Worker(
                config.backend,
                config.backend_settings(device, self._packages),
                config.bounds,
                self._workers_changed,
                on_fault=self._seeing.faulted,
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
        self._health = Health(
            ("", wire.SERVICE_NAME, wire.FARM_SERVICE_NAME), self._limits.stream_idle_ms
        )
        self._trimmer: asyncio.Task[None] | None = None
        self._serving = False
        self._address = ""
        self._tls: ServerTls | None = None
        self._authentication: Authentication | None = None
        self._watched: list[WatchedFiles] = []

    async def start(self) -> None:
        """Open the admin port and start the workers; the first start of each must succeed."""
        self._open_access()
        await self._open_admin()
        try:
            await _all_or_none([worker.start() for worker in self._workers])
        except WorkerStartError as err:
            raise StartError(f"the backend did not start: {err}") from err
        slots = sum(worker.free_slots for worker in self._workers)
        self._admission = Admission(
            self._limits,
            self._pool,
            self._workers,
            slots,
            self._tenants,
            self._config.device_lease_s,
            self._server_id,
        )
        self._admission.observers.append(self._seeing.finished)
        self._trimmer = asyncio.create_task(self._trim())

    async def listen(self) -> str:
        """Open the address and answer calls; return "host:port"."""
        assert self._admission is not None  # noqa: S101 - started
        assert self._authentication is not None  # noqa: S101 - started
        texts = ErrorTexts()
        requests = Requests(
            texts,
            self._server_id,
            self._authentication.identify,
            least_role,
            self._seeing.watchers,
            call_count=self._limits.call_count,
        )
        service = OperatorService(
            self._limits,
            self._admission,
            texts,
            requests,
            self.describe,
            self._packages,
            self._judges,
            self._kept,
            self._leases,
            slot_count=sum(worker.slots for worker in self._workers),
            plans=any(worker.info is not None and worker.info.plans for worker in self._workers),
        )
        connections = self._config.connections
        server = grpc.aio.server(
            # for nobody but those whom nobody knows, who may ask for the server's health alone
            maximum_concurrent_rpcs=2 * self._limits.call_count
            + CONNECTION_CHECKS * connections.count,
            options=(
                *connections.channel_options(),
                ("grpc.max_receive_message_length", self._limits.message_bytes),
                ("grpc.max_send_message_length", self._limits.message_bytes),
                ("grpc.max_concurrent_streams", self._limits.stream_count),
                # two servers must not share a port without knowing
                ("grpc.so_reuseport", 0),
                # an explicit window: the one that gRPC works out by itself grows to a gigabyte
                # when the front, or its host, stands still for a moment
                ("grpc.http2.bdp_probe", 0),
                ("grpc.http2.lookahead_bytes", WINDOW_BYTES),
            ),
        )
        idle_ms = self._limits.stream_idle_ms
        farm = FarmService(self._admission, requests, self._server_id, idle_ms)
        names = (wire.SERVICE_NAME, wire.FARM_SERVICE_NAME, HEALTH_NAME)
        server.add_generic_rpc_handlers(
            (
                service.handlers(),
                farm.handlers(),
                self._health.handlers(),
                reflection_handlers(names, requests, idle_ms),
            )
        )
        try:
            port = (
                server.add_insecure_port(self._config.address)
                if self._tls is None
                else server.add_secure_port(self._config.address, self._tls.credentials())
            )
        except RuntimeError as err:
            raise StartError(f"cannot listen on {self._config.address}: {err}") from err
        self._offer_leases()
        await server.start()
        self._server = server
        self._serving = True
        self._set_health()
        address = self._config.address
        if not address.startswith("unix:"):
            address = f"{address.rpartition(':')[0]}:{port}"
        self._address = address
        return address

    async def close(self) -> None:
        """End in order: refuse, let what runs end, end the workers."""
        self._serving = False
        if self._admission is not None:
            self._set_health()
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
        await self._seeing.close()

    def reload(self) -> None:
        """Look again at what may have changed outside, as SIGHUP asks."""
        self._look_at_files()
        self._seeing.reload()
        try:
            config = self._load()
        except ConfigError as err:
            log.error("not read", what="configuration", why=str(err))
            return
        before, now = self._config.model_dump(), config.model_dump()
        changed = [name for name in now if now[name] != before[name]]
        self._config = self._config.model_copy(
            update={name: getattr(config, name) for name in LIVE_OPTIONS}
        )
        self._tenants.limits = config.tenant_limits
        if self._admission is not None:
            self._admission.device_leases.longest_s = config.device_lease_s
        log.info(
            "read again",
            what="configuration",
            changed=[name for name in changed if name in LIVE_OPTIONS],
            after_restart=[name for name in changed if name not in LIVE_OPTIONS],
        )

    def _look_at_files(self) -> None:
        """Read certificates and credentials again where they have changed."""
        for files in self._watched:
            files.look()

    def describe(self) -> ServerInfo:
        """Return what the server is now."""
        infos = [worker.info for worker in self._workers if worker.info is not None]
        first = infos[0] if infos else None
        # of all packages: a worker has one loaded at a time, and changes it when it is asked to
        known = [names for worker in self._workers for names in worker.operators.values()]
        served = {name for names in known for name in names}
        versions = {
            "python": platform.python_version(),
            "grpcio": grpc.__version__,
            "protobuf": google.protobuf.__version__,
        }
        return ServerInfo(
            opferry_version=VERSION,
            backend=self._config.backend if first is None else first.backend,
            real_device=first is not None and first.real_device,
            serving=self._takes_calls,
            operators=tuple(name for name in OPERATORS if not known or name in served),
            operator_packages=tuple(map(self._packages.describe, self._packages.names)),
            workers=tuple(worker.describe() for worker in self._workers),
            limits=self._limits,
            versions={**versions, **({} if first is None else first.versions)},
            reference_kernel="" if first is None else first.reference_kernel,
            lease_socket=self._lease_socket.path,
            server_id=self._server_id,
        )

    def _open_access(self) -> None:
        """Read certificates and credentials.

        Raises:
            StartError: if they cannot be used.
        """
        try:
            self._tls = self._config.tls.open()
            self._authentication = open_authentication(self._config.tls, self._config.auth)
        except (TlsError, CredentialsError) as err:
            raise StartError(str(err)) from err
        if self._tls is not None:
            self._watched.append(self._tls.files)
        if self._authentication.files is not None:
            self._watched.append(self._authentication.files)

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
            self._set_health()

    @property
    def _takes_calls(self) -> bool:
        return self._serving and self._able

    async def _open_admin(self) -> None:
        view = View(
            describe=self.describe,
            admission=lambda: self._admission,
            address=lambda: self._address,
            workers=self._workers,
            pool=self._pool,
            leases=self._leases,
            kept=self._kept,
        )
        try:
            address = await self._seeing.open(view, lambda: self._takes_calls)
        except OSError as err:
            raise StartError(f"cannot listen on {self._config.admin_address}: {err}") from err
        if address:
            log.info("admin port", address=address)

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

    def _set_health(self) -> None:
        self._health.set(self._takes_calls)

    async def _trim(self) -> None:
        while True:
            await asyncio.sleep(TRIM_PERIOD_S)
            self._look_at_files()
            self._pool.trim()
            if self._pool.total_bytes < LARGE_BYTES:
                malloc.trim()
            if self._memory_is_short():
                self._lease_socket.recall()
            if self._admission is not None:
                # memory that could not be had for want of descriptors may be there now
                self._admission.workers_changed()


def _seeing(config: ServerConfig, server_id: str) -> Seeing:
    try:
        return Seeing(config, server_id, VERSION)
    except SeeingError as err:
        raise StartError(str(err)) from err


def _own_id() -> str:
    """Return an id of this server: its host's name, and what tells servers of a host apart."""
    host = re.sub("[^A-Za-z0-9-]", "-", socket.gethostname().partition(".")[0])[:40]
    return f"{host or 'server'}-{secrets.token_hex(2)}"


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
