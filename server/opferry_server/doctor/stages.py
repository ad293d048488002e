"""The child process: tries what may crash or hang, and tells its parent before and after each step.

    python -m opferry_server.doctor.stages STAGE --facts-fd N --settings JSON

A line of JSON for each event goes to the descriptor: stdout and stderr belong to the libraries.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

from opferry_server.backends.aclnn.inspection import Runtime, candidates, load
from opferry_server.backends.base import BackendError, BackendSettings, open_backend
from opferry_server.workers.known_answer import with_known_answer
from opferry_server.workers.messages import decode_settings

Step = tuple[str, Callable[[], dict[str, Any]]]
"""A name, and what to do; it returns facts and raises what is wrong."""


def main() -> None:
    """Run one stage and report it."""
    parser = argparse.ArgumentParser(description="one stage of opferry-server doctor")
    parser.add_argument("stage", choices=STAGES)
    parser.add_argument("--facts-fd", type=int, required=True)
    parser.add_argument("--settings", required=True)
    parser.add_argument("--item", action="append", default=[])
    parser.add_argument("--without", action="append", default=[])
    options = parser.parse_args()
    os.set_inheritable(options.facts_fd, False)
    make, goes_on = STAGES[options.stage]

    def tell(**event: Any) -> None:
        os.write(options.facts_fd, (json.dumps(event) + "\n").encode())

    for name, work in make(decode_settings(options.settings), options.item):
        if name in options.without:
            continue
        tell(begin=name)
        started = monotonic()
        try:
            facts = work()
        except Exception as err:
            sys.stderr.flush()
            text = str(err)
            if not isinstance(err, (BackendError, OSError)) and not hasattr(err, "reason"):
                traceback.print_exc()
                text = f"{type(err).__name__}: {err}"
            number = err.errno if isinstance(err, OSError) else None
            tell(failed=name, text=text, errno=number, seconds=monotonic() - started)
            if not goes_on:
                break
        else:
            tell(done=name, facts=facts, seconds=monotonic() - started)
    tell(end=True)
    # as a worker ends: without the libraries' own cleaning up, which may block
    os._exit(0)


def _nodes(settings: BackendSettings, items: list[str]) -> Iterator[Step]:
    """Open each node, and close it at once."""

    def try_open(path: str) -> dict[str, Any]:
        os.close(os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC))
        return {}

    for item in items:
        yield item, partial(try_open, item)


def _libraries(settings: BackendSettings, items: list[str]) -> Iterator[Step]:
    """Load each library and look up its symbols."""
    folder = settings.package_folder
    for candidate in candidates(Path(folder) if folder else None):
        if candidate.group != "custom" or Path(candidate.name).is_file():
            yield candidate.name, partial(load, candidate)


def _runtime(settings: BackendSettings, items: list[str]) -> Iterator[Step]:
    """Start the runtime, and ask it for what it says without a device."""
    runtime = Runtime()
    yield "aclInit", runtime.initialise
    yield "device count", runtime.device_count
    yield "SoC", runtime.soc
    yield "CANN version", runtime.version


def _device(settings: BackendSettings, items: list[str]) -> Iterator[Step]:
    """Do with one device what a worker does before it is ready."""
    backend: Any = None

    def opened() -> dict[str, Any]:
        nonlocal backend
        backend = open_backend("aclnn", settings)
        info = backend.info()
        return {
            "operator_timeout_ms": info.versions["operator_timeout_ms"],
            "concurrency": info.concurrency,
        }

    def memory() -> dict[str, Any]:
        free, total = backend.memory_bytes()
        return {"free_bytes": free, "total_bytes": total}

    def known_answer() -> dict[str, Any]:
        found = with_known_answer(backend, backend.info())
        return {"answer": found.operator_package.known_answer, "refused": dict(found.refused)}

    yield "open", opened
    yield "known answer", known_answer
    yield "memory", memory


STAGES: dict[str, tuple[Callable[[BackendSettings, list[str]], Iterator[Step]], bool]] = {
    "nodes": (_nodes, True),
    "libraries": (_libraries, True),
    "runtime": (_runtime, False),
    "device": (_device, False),
}
"""What there is, and whether a step that failed leaves sense in the next."""


if __name__ == "__main__":
    main()
