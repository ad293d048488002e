"""What is looked at when somebody asks: the parts of a server, as they are at that moment."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from opferry.core.execution import ServerInfo
from opferry_server.admission import Admission
from opferry_server.device_leases import DeviceLease
from opferry_server.jobs import Job
from opferry_server.judging.kept import KeptData
from opferry_server.leases import Leases
from opferry_server.workers.arena import ArenaPool
from opferry_server.workers.supervisor import Worker


@dataclass(frozen=True)
class View:
    """The parts of a server."""

    describe: Callable[[], ServerInfo]
    """Returns what the server is now."""
    admission: Callable[[], Admission | None]
    """Returns the lines; None before the workers are ready."""
    address: Callable[[], str]
    """Returns where the server listens; "" as long as it does not."""
    workers: Sequence[Worker]
    """Who runs requests."""
    pool: ArenaPool
    """The memory of requests."""
    leases: Leases
    """What of it clients on this host have leased."""
    kept: KeptData
    """Data of validations."""

    def jobs(self) -> tuple[Job, ...]:
        """Return the requests inside: those that run, then the others, as they are served."""
        admission = self.admission()
        return () if admission is None else admission.jobs()

    def device_leases(self) -> tuple[DeviceLease, ...]:
        """Return the leases of devices, granted and waiting."""
        admission = self.admission()
        return () if admission is None else admission.device_leases.all()

    def used_bytes(self) -> int:
        """Return what memory requests have, without what is leased."""
        return self.pool.total_bytes - self.pool.idle_bytes - self.leases.leased_bytes

    def place_count(self) -> int:
        """Return how many requests a tenant may have inside that has no limit of its own."""
        admission = self.admission()
        return 0 if admission is None else admission.place_count
