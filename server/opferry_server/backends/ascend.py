"""What the backends on Ascend devices share: which devices they run on, and which they see."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Iterable
from pathlib import Path

from opferry_server.backends.base import BackendError

VISIBLE_DEVICES = "ASCEND_RT_VISIBLE_DEVICES"
"""The variable that shows a process only some devices; set before any library is loaded."""

CUSTOM_PACKAGES = "ASCEND_CUSTOM_OPP_PATH"
"""The variable with the folders of custom operator packages, colons between them."""

SUPPORTED_SOCS = ("Ascend950PR", "Ascend950DT")
"""The systems on chip that have the operators."""

SIMULATED_SUFFIX = "-simulated"
"""What ends the name of a system on chip that is none."""


class UnsupportedDeviceError(BackendError):
    """The host's device does not have the operators."""


def check_soc(soc: str, operators: Iterable[str]) -> None:
    """Check that a device has the operators.

    Args:
        soc: the system on chip as the runtime names it.
        operators: their CANN names, for the error's text.

    Raises:
        UnsupportedDeviceError: naming the device and those that have them.
    """
    if not soc.startswith(SUPPORTED_SOCS):
        raise UnsupportedDeviceError(unsupported_text(soc, operators))


def unsupported_text(soc: str, operators: Iterable[str]) -> str:
    """Return a sentence on a system on chip that does not have the operators."""
    needed = ", ".join(SUPPORTED_SOCS)
    return f"the device is {soc or 'unknown'}; {', '.join(operators)} need one of {needed}"


def is_real(soc: str) -> bool:
    """Return whether a system on chip's name is that of a real one."""
    return not soc.endswith(SIMULATED_SUFFIX)


def visible_device(index: int) -> str:
    """Return the number of a worker's device, as the system counts.

    Where the server itself is shown only some devices, as a scheduler does, workers take those in
    their order; else worker N takes device N.

    Raises:
        UnsupportedDeviceError: if too few are shown.
    """
    shown = os.environ.get(VISIBLE_DEVICES)
    if shown is None:
        return str(index)
    numbers = [number.strip() for number in shown.split(",") if number.strip()]
    if len(set(numbers)) < len(numbers):
        raise UnsupportedDeviceError(f"{VISIBLE_DEVICES} is {shown!r}: it shows a device twice")
    if index >= len(numbers):
        raise UnsupportedDeviceError(
            f"{VISIBLE_DEVICES} is {shown!r}: there is no device for worker {index}"
        )
    return numbers[index]


def hold_device(folder: str, number: str) -> None:
    """Take a device for this process, for as long as it lives; two would disturb each other.

    Args:
        folder: where its lock file is; empty: nothing is taken.
        number: the device's, as the system counts.

    Raises:
        BackendError: if another process has it, which is named.
    """
    if not folder:
        return
    path = Path(folder, f"opferry-npu-{number}.lock")
    try:
        flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        try:
            lock = os.open(path, flags)
        except FileNotFoundError:
            lock = os.open(path, flags | os.O_CREAT, 0o666)
            # whoever comes next may be another user, whatever the umask says
            os.fchmod(lock, 0o666)
        if not stat.S_ISREG(os.fstat(lock).st_mode):
            raise OSError(errno.EINVAL, "it is no regular file", str(path))
    except OSError as err:
        raise BackendError(
            f"device {number}: its lock file cannot be opened: {err}; give another "
            "--device.lock-folder, the same to all servers of this host"
        ) from err
    try:
        # a record lock: what this process forks does not inherit it
        fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        holder = os.read(lock, 32).decode("ascii", "replace").strip()
        raise BackendError(
            f"device {number} is in use by process {holder} of an opferry server; choose others by "
            f"{VISIBLE_DEVICES}, or stop that server"
        ) from None
    # never closed: the lock goes with the process, however that ends
    os.ftruncate(lock, 0)
    os.write(lock, f"{os.getpid()}\n".encode())
