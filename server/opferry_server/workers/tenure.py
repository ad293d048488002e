"""What makes a worker process give way to a successor, between two jobs: its files, its age."""

from __future__ import annotations

from opferry_server.backends.base import BackendInfo, BackendSettings
from opferry_server.packages import stamp
from opferry_server.workers.process import WorkerProcess
from opferry_server.workers.starts import Bounds


class Tenure:
    """One process's time in service, and what its predecessor leaves to it."""

    def __init__(self, bounds: Bounds) -> None:
        """Measure by *bounds*; `prepare` and `begin` come before each process."""
        self._bounds = bounds
        self._places: tuple[str, ...] = ()
        self._stamp = ""
        self._job_count = 0
        self._renewed = False

    def prepare(self, settings: BackendSettings) -> None:
        """Look at the files before the process reads them: what changes meanwhile is seen later."""
        self._look_at(settings.package_folder)

    def begin(self, info: BackendInfo) -> None:
        """Begin a time in service."""
        self._job_count = 0
        if not any(self._places):
            packages = (info.operator_package, *info.own_packages.values())
            self._look_at(*(package.library_file for package in packages))

    def count_job(self) -> None:
        """Note a job."""
        self._job_count += 1

    def changed_files(self) -> str:
        """Return why the process gives way, if its package's files have changed, else "".

        After that its successor serves at least one job: files that always change must not keep it
        from serving at all.
        """
        if (self._renewed and not self._job_count) or self._stamp_now() == self._stamp:
            return ""
        self._renewed = True
        return "the operator package's files have changed"

    def _look_at(self, *places: str) -> None:
        self._places = tuple(sorted(set(places)))
        self._stamp = self._stamp_now()

    def _stamp_now(self) -> str:
        return "".join(map(stamp, self._places))

    def old_age(self, process: WorkerProcess) -> str:
        """Return why the process gives way, if it has served for long enough, else ""."""
        if self._job_count >= self._bounds.job_count:
            return f"it has run {self._job_count} requests"
        if process.memory_bytes() > self._bounds.memory_bytes:
            return f"it holds more than {self._bounds.memory_bytes} bytes of memory"
        return ""
