"""CANN's libraries: where they are found, which file supplied each symbol, and how to call them."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from opferry_server.backends.aclnn.operators import BINDINGS, Binding
from opferry_server.backends.aclnn.status import problem_of
from opferry_server.backends.aclnn.symbols import (
    LIBRARIES,
    SYMBOLS,
    Symbol,
)
from opferry_server.backends.ascend import CUSTOM_PACKAGES
from opferry_server.backends.base import BackendError
from opferry_server.packages import LIBRARY


class LibraryError(BackendError):
    """A library or a symbol is missing; the text lists where it was looked for."""


class _DlInfo(ctypes.Structure):
    """Dl_info of dlfcn.h."""

    _fields_ = [
        ("dli_fname", ctypes.c_char_p),
        ("dli_fbase", ctypes.c_void_p),
        ("dli_sname", ctypes.c_char_p),
        ("dli_saddr", ctypes.c_void_p),
    ]


def custom_libraries(package: Path | None) -> list[Path]:
    """Return where a custom operator library may be, in the order in which it is looked for.

    Args:
        package: the folder of the package to run; None: those of the environment, as CANN has
            them: ASCEND_CUSTOM_OPP_PATH, then vendors under ASCEND_OPP_PATH.
    """
    if package is not None:
        return [package / LIBRARY]
    folders = [Path(part) for part in os.environ.get(CUSTOM_PACKAGES, "").split(":") if part]
    if root := os.environ.get("ASCEND_OPP_PATH"):
        folders += sorted(Path(root, "vendors").glob("*"))
    return [folder / LIBRARY for folder in folders]


class Library:
    """The loaded libraries, with every function bound by its argument types."""

    def __init__(self, package: Path | None) -> None:
        """Load the libraries.

        Args:
            package: the folder of a custom operator package, whose library then must exist.

        Raises:
            LibraryError: naming what is missing and where it was looked for.
        """
        self.files: dict[str, str] = {}
        """The file that supplied each symbol, by its name."""
        self._functions: dict[str, Any] = {}
        self._runtime = [_load_first(LIBRARIES["runtime"], ctypes.RTLD_GLOBAL)]
        self._nnopbase = [_load_first(LIBRARIES["nnopbase"], ctypes.RTLD_GLOBAL)]
        for symbol in SYMBOLS:
            self._bind(symbol, self._runtime if symbol.library == "runtime" else self._nnopbase)
        searched = custom_libraries(package)
        if package is not None and not searched[0].is_file():
            raise LibraryError(f"operator package {package} has no {searched[0]}")
        self._operators = _load_operators(searched, vendor=package is None)
        self._custom = {os.path.realpath(path) for path in searched}
        names = [str(path) for path in searched]
        if package is None:
            names += LIBRARIES["operators"]
        self.bindings = self._bind_operators(names, package)
        """The operators that the libraries have, by their CANN names."""

    def is_custom(self, binding: Binding) -> bool:
        """Return whether a custom package, and not CANN's own library, supplies an operator."""
        return any(self.files[stage.name] in self._custom for stage in binding.stages)

    def call(self, function: str, *arguments: Any, stage: str, checked: bool = True) -> None:
        """Call a function that returns a status, and check it.

        Args:
            function: its name.
            arguments: as its argument types say.
            stage: where the request is, for the problem.
            checked: whether the request passed the contract.

        Raises:
            AclProblem: for any status but 0.
        """
        self.check(self._functions[function](*arguments), function, stage, checked=checked)

    def check(self, code: int, function: str, stage: str, *, checked: bool = True) -> None:
        """Check a status that a function has just returned on this thread.

        Raises:
            AclProblem: for any status but 0.
        """
        if code == 0:
            return
        # at once: the text is the thread's own, and the next call drops it
        text = self._functions["aclGetRecentErrMsg"]() or b""
        raise problem_of(
            code,
            function,
            stage,
            text.decode("utf-8", "replace").strip(),
            checked=checked,
            soc=self.soc_name,
        )

    def status(self, function: str, *arguments: Any) -> int:
        """Call a function and return its status unchecked."""
        code: int = self._functions[function](*arguments)
        return code

    def value(self, function: str, *arguments: Any) -> Any:
        """Call a function that returns a value."""
        return self._functions[function](*arguments)

    @property
    def soc_name(self) -> str:
        """The system on chip, "" where the runtime does not say."""
        name: bytes | None = self._functions["aclrtGetSocName"]()
        return (name or b"").decode("ascii", "replace")

    def _bind_operators(self, searched: Sequence[str], package: Path | None) -> dict[str, Binding]:
        """Bind both stages of each operator that is there: nobody has to build all of them.

        Raises:
            LibraryError: if there is none, saying what is missing of each.
        """
        found, missing = {}, []
        for name, binding in BINDINGS.items():
            try:
                for symbol in binding.stages:
                    self._bind(symbol, self._operators, searched)
                    file = self.files[symbol.name]
                    if package is not None and file != os.path.realpath(searched[0]):
                        # the linker looks into what the library is linked to as well
                        raise LibraryError(
                            f"operator package {package} has no {symbol.name} of its own: the one "
                            f"that {Path(searched[0]).name} leads to is in {file}"
                        )
                found[name] = binding
            except LibraryError as err:
                missing.append(str(err))
        if not found:
            raise LibraryError("; ".join(missing))
        return found

    def _bind(
        self, symbol: Symbol, libraries: Iterable[ctypes.CDLL], searched: Sequence[str] = ()
    ) -> None:
        for library in libraries:
            function = bound(library, symbol)
            if function is not None:
                self._functions[symbol.name] = function
                self.files[symbol.name] = file_of(function)
                return
        where = searched or LIBRARIES[symbol.library]
        raise LibraryError(f"symbol {symbol.name} was not found in {', '.join(where)}")


def bound(library: ctypes.CDLL, symbol: Symbol) -> Any:
    """Return a function of a library with its types set; None if the library has no such symbol."""
    function = getattr(library, symbol.name, None)
    if function is not None:
        function.restype = symbol.restype
        function.argtypes = symbol.argtypes
    return function


def _load_first(names: Sequence[str], mode: int) -> ctypes.CDLL:
    said = []
    for name in names:
        try:
            return ctypes.CDLL(name, mode)
        except OSError as err:
            said.append(str(err))
    raise LibraryError(
        f"{' or '.join(names)} cannot be loaded: {'; '.join(said)}; before the server is "
        "started, source CANN's set_env.sh, which sets LD_LIBRARY_PATH"
    )


def _load_operators(custom: Sequence[Path], *, vendor: bool) -> list[ctypes.CDLL]:
    loaded = [ctypes.CDLL(str(path)) for path in custom if path.is_file()]
    if vendor:
        for name in LIBRARIES["operators"]:
            try:
                loaded.append(ctypes.CDLL(name))
            except OSError:  # an older CANN has the one, a newer the other
                continue
    return loaded


def file_of(function: Any) -> str:
    """Return the file from which a function was loaded, "" if the linker does not know."""
    dladdr = ctypes.CDLL(None).dladdr
    dladdr.argtypes = (ctypes.c_void_p, ctypes.POINTER(_DlInfo))
    dladdr.restype = ctypes.c_int
    found = _DlInfo()
    if not dladdr(ctypes.cast(function, ctypes.c_void_p), ctypes.byref(found)):
        return ""
    return os.path.realpath(os.fsdecode(found.dli_fname or b""))
