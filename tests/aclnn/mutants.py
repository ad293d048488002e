"""The backend with one mistake made on purpose, on the simulator, in a process of its own.

    python -m tests.aclnn.mutants NAME [OPERATOR]

Prints one JSON object: which violations the simulator recorded, what the caller was told, whether
the results were right, and how often the mistake was made. A mistake that was never made is an
error: what it changes is gone, so the mutant proves nothing until it is mended.
"""

from __future__ import annotations

import inspect
import json
import sys
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from opferry.core.problems import Problem
from opferry_server.backends.aclnn.backend import AclnnBackend
from opferry_server.backends.aclnn.library import Library
from opferry_server.backends.aclnn.memory import Block, Pool
from opferry_server.backends.aclnn.operators import BINDINGS
from tests.aclnn import in_process
from tests.support.calls import GRAD, SUBJECTS

STAGE_ONE = {subject.stages[0]: subject.operator.name for subject in SUBJECTS.values()}
"""Each operator's first function, and the operator."""

STAGE_TWO = {subject.stages[1] for subject in SUBJECTS.values()}

TENSORS = ("input", "output", "in place")
"""The kinds of arguments that are tensors."""

Call = Callable[..., None]


class Mutant:
    """Changes what the backend calls, and counts how often."""

    def __init__(self) -> None:
        self.made = 0

    def change(self, backend: AclnnBackend) -> None:
        """Change an open backend, before its first request."""
        original = Library.call
        expected = ["self", "function", "arguments", "stage", "checked"]
        assert list(inspect.signature(original).parameters) == expected

        def call(library: Library, function: str, *arguments: Any, **rest: Any) -> None:
            self.call(library, original, function, *arguments, **rest)

        Library.call = call  # type: ignore[assignment]

    def call(
        self, library: Library, original: Call, function: str, *arguments: Any, **rest: Any
    ) -> None:
        """Call what the backend calls; a mutant does more or less."""
        original(library, function, *arguments, **rest)


class FreeBeforeSynchronise(Mutant):
    """Gives the workspace back to the runtime as soon as stage two has returned."""

    def call(
        self, library: Library, original: Call, function: str, *arguments: Any, **rest: Any
    ) -> None:
        original(library, function, *arguments, **rest)
        if function in STAGE_TWO:
            workspace = arguments[0]
            assert workspace
            self.made += 1
            library.status("aclrtFree", workspace)


class ReleaseBeforeSynchronise(Mutant):
    """Releases blocks into a pool that keeps none, without having waited for the stream."""

    def change(self, backend: AclnnBackend) -> None:
        super().change(backend)
        leased: list[tuple[Pool, Block]] = []
        lease = Pool.lease

        def noted(pool: Pool, *arguments: Any) -> Block:
            block = lease(pool, *arguments)
            leased.append((pool, block))
            return block

        Pool.lease = noted  # type: ignore[method-assign]
        self._leased = leased

    def call(
        self, library: Library, original: Call, function: str, *arguments: Any, **rest: Any
    ) -> None:
        original(library, function, *arguments, **rest)
        if function in STAGE_TWO:
            # of this request's blocks the last one that is not pinned: the workspace
            pool, block = next(
                (pool, block) for pool, block in reversed(self._leased) if "device" in pool.kind
            )
            self.made += 1
            pool.release(block)
            pool.trim()


class ExecutorTwice(Mutant):
    """Calls stage two a second time with the executor that the first call has freed."""

    def call(
        self, library: Library, original: Call, function: str, *arguments: Any, **rest: Any
    ) -> None:
        original(library, function, *arguments, **rest)
        if function in STAGE_TWO:
            self.made += 1
            original(library, function, *arguments, **rest)


class TensorDestroyedEarly(Mutant):
    """Destroys the tensors after stage two, but before the synchronisation."""

    def call(
        self, library: Library, original: Call, function: str, *arguments: Any, **rest: Any
    ) -> None:
        if function in STAGE_ONE:
            kinds = [item.kind for item in BINDINGS[STAGE_ONE[function]].arguments]
            pairs = zip(kinds, arguments, strict=False)
            self._tensors = [value for kind, value in pairs if kind in TENSORS]
        original(library, function, *arguments, **rest)
        if function in STAGE_TWO:
            assert self._tensors
            self.made += 1
            original(library, "aclDestroyTensor", self._tensors[0], stage="release")


class ContextNotSet(Mutant):
    """Does not make the context current on the threads that run requests."""

    def call(
        self, library: Library, original: Call, function: str, *arguments: Any, **rest: Any
    ) -> None:
        if function == "aclrtSetCurrentContext":
            self.made += 1
            return
        original(library, function, *arguments, **rest)


class AnotherThreadsStream(Mutant):
    """Keeps one launcher for all threads: the second uses the first one's stream, unbound."""

    def change(self, backend: AclnnBackend) -> None:
        own = [name for name, value in vars(backend).items() if isinstance(value, threading.local)]
        assert len(own) == 1, f"the backend keeps {own} per thread"
        setattr(backend, own[0], SimpleNamespace())
        self.made += 1


class WorkspaceTooSmall(Mutant):
    """Takes stage one's answer for half of what it is."""

    def call(
        self, library: Library, original: Call, function: str, *arguments: Any, **rest: Any
    ) -> None:
        original(library, function, *arguments, **rest)
        if function in STAGE_ONE:
            size = arguments[-2]._obj
            assert size.value > 1
            size.value //= 2
            self.made += 1


MUTANTS: dict[str, type[Mutant]] = {
    "none": Mutant,
    "free-before-synchronise": FreeBeforeSynchronise,
    "release-before-synchronise": ReleaseBeforeSynchronise,
    "executor-twice": ExecutorTwice,
    "tensor-destroyed-early": TensorDestroyedEarly,
    "context-not-set": ContextNotSet,
    "another-threads-stream": AnotherThreadsStream,
    "workspace-too-small": WorkspaceTooSmall,
}


def main(name: str, operator: str = GRAD.name) -> None:
    """Run a request on each of two threads and print what came of it."""
    mutant = MUTANTS[name]()
    backend = in_process.open_backend()
    mutant.change(backend)
    told: list[str] = []
    right: list[bool] = []

    def request() -> None:
        call, arrays = in_process.known_call(SUBJECTS[operator])
        try:
            outputs, _ = in_process.run(backend, call, arrays)
            right.append(in_process.is_right(outputs, arrays, call))
        except Problem as problem:
            told.append(problem.message)

    # one after the other, so that the second could not get away with it by chance
    for _ in range(2):
        thread = threading.Thread(target=request)
        thread.start()
        thread.join()
    violations = in_process.Simulator().violations()
    print(json.dumps({"made": mutant.made, "violations": violations, "told": told, "right": right}))


if __name__ == "__main__":
    main(*sys.argv[1:])
