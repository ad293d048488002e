"""The packages of the PyTorch path: their environment, their import, what to do without them."""

from __future__ import annotations

import os
from importlib import import_module, metadata
from pathlib import Path
from types import ModuleType
from typing import Any

from opferry_server.backends.ascend import CUSTOM_PACKAGES, VISIBLE_DEVICES
from opferry_server.backends.base import BackendError, BackendSettings
from opferry_server.packages import LIBRARY

PACKAGES = {
    "torch": "install the release of torch that your torch_npu was built for",
    "torch_npu": "install the release of torch_npu that goes with your torch and your CANN",
    "cann_ops_transformer": "build its wheel in a checkout of CANN's ops-transformer "
    "(bash build.sh --torch_extension --soc=ascend950) and install that",
}
"""The packages in the order in which they are imported, and what to do if one is absent."""


def set_environment(settings: BackendSettings, number: str) -> None:
    """Set what the packages and CANN's libraries read when they are loaded.

    Args:
        settings: timeouts and package.
        number: the only device that is to be seen.
    """
    os.environ |= {
        VISIBLE_DEVICES: number,
        # how long torch_npu waits for a stream
        "ACL_STREAM_TIMEOUT": str(settings.sync_timeout_ms),
        # operators start on the calling thread: an error is raised by the call that made it, and
        # leaves no queue behind in which every later call fails
        "TASK_QUEUE_ENABLE": "0",
        # without it torch imports torch_npu, and speaks for it if that cannot be loaded
        "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
    }
    if settings.package_folder:
        os.environ[CUSTOM_PACKAGES] = settings.package_folder


def custom_package(settings: BackendSettings) -> Path | None:
    """Return the library of the custom package that is to run; None: the vendor's own.

    Raises:
        BackendError: if the folder does not have it.
    """
    if not settings.package_folder:
        return None
    library = Path(settings.package_folder, LIBRARY)
    if not library.is_file():
        raise BackendError(f"operator package {settings.package_folder} has no {library}")
    return library.resolve()


def imported(name: str) -> Any:
    """Import a package, or a module of one.

    Raises:
        BackendError: naming what is absent, the package or what it is made of, and what to do.
    """
    top = name.partition(".")[0]
    try:
        return import_module(name)
    except ModuleNotFoundError as err:
        if err.name == top:
            raise BackendError(f"the package {top} is not installed: {PACKAGES[top]}") from err
        raise BackendError(
            f"{name} needs the module {err.name}, which is not installed: {PACKAGES[top]}"
        ) from err
    except (ImportError, OSError, RuntimeError) as err:
        # with a library of CANN's missing, torch_npu raises ImportError or, from dlopen, OSError
        raise BackendError(
            f"{name} cannot be loaded: {err}; before the server is started, source CANN's "
            "set_env.sh, which sets LD_LIBRARY_PATH, and see that torch, torch_npu and CANN are "
            "releases that go together"
        ) from err


def function_of(ops: ModuleType, name: str) -> Any:
    """Return an operator's function.

    Args:
        ops: cann_ops_transformer.ops.
        name: the function's name.

    Raises:
        BackendError: if it is not there: the package leaves out what it could not load.
    """
    function = getattr(ops, name, None)
    if not callable(function):
        raise BackendError(
            f"{ops.__name__} has no function {name}: it was built without this operator, or could "
            "not compile or load it, for which see its own words above"
        )
    return function


def version_of(package: ModuleType) -> str:
    """Return a package's version, "unknown" if it does not say."""
    found = getattr(package, "__version__", None)
    if found is None:
        try:
            found = metadata.version(package.__name__)
        except metadata.PackageNotFoundError:
            found = "unknown"
    return str(found)


def mapped_files() -> set[Path]:
    """Return the files that this process has in its memory, among them all loaded libraries."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    # address, permissions, offset, device, inode, path
    parts = (line.split(maxsplit=5) for line in lines)
    return {Path(part[5]) for part in parts if len(part) == 6 and part[5].startswith("/")}
