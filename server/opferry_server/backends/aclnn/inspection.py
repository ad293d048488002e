"""Looks at CANN's libraries without giving up at the first thing that is missing.

Only for a process of its own: a library may crash or hang when it is loaded or initialised.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import c_int32, c_uint32
from pathlib import Path
from typing import Any, Literal, NamedTuple

from opferry_server.backends.aclnn.library import bound, custom_libraries, file_of
from opferry_server.backends.aclnn.operators import BINDINGS
from opferry_server.backends.aclnn.status import problem_of
from opferry_server.backends.aclnn.symbols import LIBRARIES, SYMBOLS, VALUES, Symbol
from opferry_server.backends.base import BackendError

Group = Literal["runtime", "nnopbase", "custom", "operators"]

STAGES: tuple[Symbol, ...] = tuple(
    stage for binding in BINDINGS.values() for stage in binding.stages
)
"""The operators' own functions."""


class Candidate(NamedTuple):
    """One library that the backend would load."""

    name: str
    """What the linker is asked for: a file name, or the path of a custom one."""
    group: Group
    """What it is for."""

    @property
    def symbols(self) -> tuple[Symbol, ...]:
        """What the backend looks for in it."""
        if self.group in ("custom", "operators"):
            return STAGES
        return tuple(symbol for symbol in SYMBOLS if symbol.library == self.group)


def candidates(package: Path | None) -> list[Candidate]:
    """Return the libraries in the order in which the backend loads them.

    Args:
        package: the folder of the operator package to run; None: those of the environment and the
            vendor's.
    """
    found = [Candidate(name, "runtime") for name in LIBRARIES["runtime"]]
    found += [Candidate(name, "nnopbase") for name in LIBRARIES["nnopbase"]]
    found += [Candidate(str(path), "custom") for path in custom_libraries(package)]
    if package is None:
        found += [Candidate(name, "operators") for name in LIBRARIES["operators"]]
    return found


def load(candidate: Candidate) -> dict[str, Any]:
    """Load a library and look up its symbols.

    Returns:
        "symbols": the file that supplies each symbol, "" where none does.

    Raises:
        OSError: what the linker says against it.
    """
    everywhere = candidate.group in ("runtime", "nnopbase")
    mode = ctypes.RTLD_GLOBAL if everywhere else ctypes.DEFAULT_MODE
    library = ctypes.CDLL(candidate.name, mode)
    functions = {symbol.name: bound(library, symbol) for symbol in candidate.symbols}
    return {
        "symbols": {
            name: "" if function is None else file_of(function)
            for name, function in functions.items()
        }
    }


class Runtime:
    """The runtime alone, in the steps in which a worker starts it."""

    def __init__(self) -> None:
        """Load it.

        Raises:
            OSError: what the linker says against it.
        """
        self._library = ctypes.CDLL(LIBRARIES["runtime"][0], ctypes.RTLD_GLOBAL)
        self._symbols = {symbol.name: symbol for symbol in SYMBOLS if symbol.library == "runtime"}

    def initialise(self) -> dict[str, Any]:
        """Call aclInit.

        Raises:
            BackendError: it is missing.
            AclProblem: it refused.
        """
        self._call("aclInit", None, allowed=(VALUES["ACL_ERROR_REPEAT_INITIALIZE"],))
        return {}

    def device_count(self) -> dict[str, Any]:
        """Return "count": how many devices this process sees."""
        count = c_uint32()
        self._call("aclrtGetDeviceCount", ctypes.byref(count))
        return {"count": count.value}

    def soc(self) -> dict[str, Any]:
        """Return "name": the system on chip, "" where the runtime does not say."""
        name: bytes | None = self._function("aclrtGetSocName")()
        return {"name": (name or b"").decode("ascii", "replace")}

    def version(self) -> dict[str, Any]:
        """Return "version": of the runtime, as three numbers with dots."""
        parts = (c_int32(), c_int32(), c_int32())
        self._call("aclrtGetVersion", *(ctypes.byref(part) for part in parts))
        return {"version": ".".join(str(part.value) for part in parts)}

    def _call(self, name: str, *arguments: Any, allowed: tuple[int, ...] = ()) -> None:
        code: int = self._function(name)(*arguments)
        if code == 0 or code in allowed:
            return
        said: bytes | None = self._function("aclGetRecentErrMsg")()
        text = (said or b"").decode("utf-8", "replace").strip()
        raise problem_of(code, name, "init", text, checked=True, soc="")

    def _function(self, name: str) -> Callable[..., Any]:
        function: Callable[..., Any] | None = bound(self._library, self._symbols[name])
        if function is None:
            raise BackendError(f"symbol {name} is missing in {self._library._name}")
        return function
