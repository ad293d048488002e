"""A request that a handler serves, for whoever watches: metrics, the audit log, traces."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from opferry.core.problems import Problem, StatusCode
from opferry_server.identity import ANYONE, Identity

if TYPE_CHECKING:
    from opferry_server.jobs import Job


@dataclass(eq=False, slots=True)  # two are never the same
class Served:
    """One request, from its beginning to its end."""

    request_id: str
    """The server's id of it."""
    method: str
    """The method that it came by."""
    event: str
    """What it is: a "request", a "call" of a stream of many, or a "case" of a validation."""
    context: Any
    """The gRPC context that it came by."""
    started_s: float
    """When it began, on the monotonic clock."""
    parent: Served | None = None
    """The stream that a call or a case came by."""
    identity: Identity | None = None
    """Whose it is; None: nobody knows, its credential was refused."""
    operator: str = ""
    """The operator that it asks for, "" as long as nobody knows, or for none."""
    job: Job | None = None
    """It as a job, once all that it asks for has been found right."""
    ended_s: float = 0.0
    """When it ended, on the monotonic clock."""
    outcome: str = ""
    """OK, CANCELLED, CLIENT_GONE, or the reason of the problem that it ended with."""
    status: StatusCode = StatusCode.OK
    """The gRPC status that it ended with."""
    reason: str = ""
    """The reason of the problem that it ended with; "" for none."""
    verdict: str = ""
    """Of a case that was judged, PASS or FAIL."""
    task: asyncio.Task[Any] | None = None
    """What serves it, if it is no part of a stream."""
    called_off: bool = False
    """Whether somebody who may has ended it."""
    span: Any = None
    """Its span, where somebody traces."""

    @property
    def package(self) -> str:
        """The name of the operator package that it asks for, "" as long as nobody knows."""
        return "" if self.job is None else self.job.package.name

    def fail(self, problem: Problem) -> None:
        """Note the problem that it ends with."""
        self.outcome = self.reason = problem.reason.value
        self.status = problem.status


class Watcher(Protocol):
    """Somebody who is told of each request."""

    def begun(self, served: Served) -> None:
        """Hear of a request that begins, in its own context."""

    def ended(self, served: Served) -> None:
        """Hear of a request that has ended, after its reply."""


Watchers = Sequence[Watcher]
"""All who are told."""

_served: ContextVar[Served] = ContextVar("served")


def current_served() -> Served:
    """Return the request that the running handler serves."""
    return _served.get()


def set_served(served: Served) -> None:
    """Let the running handler, and the tasks that it starts, serve a request."""
    _served.set(served)


def current_identity() -> Identity:
    """Return who the request is from that the running handler serves."""
    return _served.get().identity or ANYONE
