"""A real server on simulated devices, with what the simulator knows of each worker process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import opferry
from opferry.embedded import EmbeddedServer, embedded_server
from tests.simulator.build import read_counters
from tests.support import event_log, simulator
from tests.support.event_log import Interval


class Simulated:
    """A server, a client of it, and the simulator's files in a folder."""

    def __init__(self, server: EmbeddedServer, client: opferry.Client, folder: Path) -> None:
        self.server = server
        self.client = client
        self.folder = folder
        self.hold = folder / "hold"
        """The file that holds what a rule with {hold} strikes, until it is gone."""

    @property
    def address(self) -> str:
        """The server's address."""
        return self.server.address

    def intervals(self) -> list[Interval]:
        """Return what ran on the streams of the one worker process that there has been."""
        (log,) = self.folder.glob("events-*.jsonl")
        return event_log.read(log)

    def running(self, what: str) -> list[Interval]:
        """Return what is on the streams now, of one kind."""
        return [one for one in self.intervals() if not one.ended and one.what == what]

    def counters(self) -> list[dict[str, int]]:
        """Return the counters of each worker process that there has been, dead or alive."""
        found = [read_counters(path) for path in sorted(self.folder.glob("counters-*"))]
        assert found, "no worker process has left its counters"
        return found

    def total(self, name: str) -> int:
        """Return the sum of a counter over all worker processes."""
        return sum(counters[name] for counters in self.counters())

    def set_rules(self, *rules: str) -> None:
        """Set fault rules from here on, in place of those before; {hold} is the file that holds."""
        if any("{hold}" in rule for rule in rules):
            self.hold.touch()
        fresh = self.folder / "rules.new"
        fresh.write_text("\n".join(rules).format(hold=self.hold) + "\n")
        # never half a file for who looks in between
        fresh.rename(self.folder / "rules")


@contextmanager
def simulated(
    folder: Path,
    workers: int = 1,
    faults: str = "",
    options: dict[str, str] | None = None,
    limits: dict[str, int] | None = None,
    **settings: str,
) -> Iterator[Simulated]:
    """Run a server on simulated devices for the length of a `with` block.

    Args:
        folder: an empty folder, for the simulator's files.
        workers: the number of devices.
        faults: fault rules from the start on.
        options: options of the server.
        limits: limits of the server.
        settings: the simulator's, without their prefix OPFERRY_SIM_, in lower case.
    """
    (folder / "rules").touch()
    files = {
        "log": str(folder / "events-%d.jsonl"),
        "counters": str(folder / "counters-%d"),
        "faults_file": str(folder / "rules"),
        "device_count": str(max(2, workers)),
    }
    with (
        embedded_server(
            backend="aclnn",
            workers=workers,
            options=options,
            limits=limits,
            environment=simulator.environment(faults, **{**files, **settings}),
        ) as running,
        opferry.connect(running.address, timeout=100) as client,
    ):
        found = Simulated(running, client, folder)
        try:
            yield found
        finally:
            found.hold.unlink(missing_ok=True)
