"""The device nodes and the driver: what the kernel side of an NPU host shows in the file system."""

from __future__ import annotations

import errno
import grp
import os
import pwd
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from opferry_server.doctor.outcomes import Check, Outcome

GROUP = "device nodes"
MANAGERS = ("davinci_manager", "devmm_svm", "hisi_hdc")
"""The nodes in /dev that every process needs, beside those of the devices."""

DRIVER_FILES = ("usr/local/Ascend/driver/version.info", "etc/ascend_install.info")
"""Where the driver's installation says what it is."""

_IN_CONTAINER = "in a container, pass it in (docker run --device {path})"


@dataclass(frozen=True)
class User:
    """Whom the server would run as."""

    name: str
    """The name, or the number as text where it has none."""
    uid: int
    """The effective number."""
    groups: Mapping[int, str]
    """Names of all groups by number."""

    @property
    def text(self) -> str:
        """The user and his groups, in words."""
        groups = ", ".join(f"{name} ({number})" for number, name in self.groups.items())
        return f"user {self.name} ({self.uid}), in the groups {groups}"


def current_user() -> User:
    """Return the user of this process, with its effective numbers."""
    numbers = [os.getegid(), *(number for number in os.getgroups() if number != os.getegid())]
    groups = {number: group_name(number) for number in numbers}
    return User(user_name(os.geteuid()), os.geteuid(), groups)


def user_name(number: int) -> str:
    """Return a user's name, its number as text where it has none."""
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)


def group_name(number: int) -> str:
    """Return a group's name, its number as text where it has none."""
    try:
        return grp.getgrgid(number).gr_name
    except KeyError:
        return str(number)


def node_paths(root: Path) -> list[Path]:
    """Return the nodes that there are or must be: the devices by number, then the managers."""
    devices = [path for path in root.glob("dev/davinci*") if re.fullmatch(r"davinci\d+", path.name)]
    devices.sort(key=lambda path: int(path.name.removeprefix("davinci")))
    return [*devices, *(root / "dev" / name for name in MANAGERS)]


def mode_text(status: os.stat_result) -> str:
    """Return mode, owner and group: `crw-rw---- HwHiAiUser (1000) : HwHiAiUser (1000)`."""
    owner, group = user_name(status.st_uid), group_name(status.st_gid)
    mode = stat.filemode(status.st_mode)
    return f"{mode}, owner {owner} ({status.st_uid}), group {group} ({status.st_gid})"


def refusal(path: str, status: os.stat_result, user: User, error: int) -> tuple[str, str]:
    """Return what was found and the remedy where a node cannot be opened.

    Args:
        path: the node.
        status: what stat says of it.
        user: who tried.
        error: the errno of opening it for reading and writing.
    """
    found = f"{mode_text(status)}; opening it: {os.strerror(error)}; {user.text}"
    may = may_read_and_write(status, user)
    if error in (errno.EACCES, errno.EPERM) and may:
        remedy = (
            "the mode lets this user in, so something else does not: a container that was not "
            f"given the device (docker run --device {path}), or dropped capabilities"
        )
    elif error in (errno.EACCES, errno.EPERM):
        group = group_name(status.st_gid)
        remedy = f"run the server as a member of the group {group}"
        if status.st_mode & 0o060 == 0o060:
            remedy += f": usermod -aG {group} {user.name}, then log in again"
            remedy += f" (in a container: docker run --group-add {status.st_gid})"
        else:
            remedy = f"run the server as {user_name(status.st_uid)}, who alone may open the device"
    elif error in (errno.ENXIO, errno.ENODEV):
        remedy = "the node is there, its device is not: load the driver (npu-smi info), reboot"
    else:
        remedy = "see dmesg and npu-smi info"
    return found, remedy


def may_read_and_write(status: os.stat_result, user: User) -> bool:
    """Return whether the mode bits let a user read and write; root always may."""
    if user.uid == 0:
        return True
    if user.uid == status.st_uid:
        bits = status.st_mode >> 6
    elif status.st_gid in user.groups:
        bits = status.st_mode >> 3
    else:
        bits = status.st_mode
    return bits & 0o6 == 0o6


def node_checks(root: Path, errors: Mapping[str, int | str | None], user: User) -> list[Check]:
    """Return a line for each node.

    Args:
        root: the folder in which dev/ lies, "/" but in tests.
        errors: by path, what came of opening it: None, an errno, or why it could not be tried.
        user: who tried.
    """
    paths = node_paths(root)
    checks = []
    if len(paths) == len(MANAGERS):
        checks.append(
            Check(
                GROUP,
                f"{root / 'dev'}/davinci[0-9]*",
                Outcome.FAILED,
                "no device node",
                "install the NPU's driver and firmware, or load them (npu-smi info shows the "
                f"devices); {_IN_CONTAINER.format(path='/dev/davinci0')}",
            )
        )
    for path in paths:
        checks.append(_node_check(path, errors.get(str(path), "it was not tried"), user))
    return checks


def _node_check(path: Path, error: int | str | None, user: User) -> Check:
    name = str(path)
    try:
        status = path.stat()
    except FileNotFoundError:
        remedy = f"load the driver; {_IN_CONTAINER.format(path=name)}"
        return Check(GROUP, name, Outcome.FAILED, "absent", remedy)
    except OSError as err:
        return Check(GROUP, name, Outcome.FAILED, str(err), f"make {path.parent} readable")
    facts = {"mode": stat.filemode(status.st_mode), "owner": status.st_uid, "group": status.st_gid}
    if not stat.S_ISCHR(status.st_mode):
        found = f"{mode_text(status)}: no character device"
        return Check(
            GROUP, name, Outcome.FAILED, found, f"remove {name} and load the driver", facts
        )
    if isinstance(error, str):
        found = f"{mode_text(status)}; {error}"
        return Check(GROUP, name, Outcome.FAILED, found, "see dmesg and npu-smi info", facts)
    if error is not None:
        found, remedy = refusal(name, status, user, error)
        return Check(GROUP, name, Outcome.FAILED, found, remedy, facts)
    return Check(GROUP, name, Outcome.OK, f"{mode_text(status)}; can be opened", "", facts)


def driver_check(root: Path) -> Check:
    """Return what the driver's installation says of its version."""
    for file in DRIVER_FILES:
        path = root / file
        try:
            text = path.read_text(errors="replace")
        except OSError:
            continue
        lines = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
        version = next((lines[name] for name in lines if name.lower() == "version"), "")
        said = version.strip() or "; ".join(f"{name}={value}" for name, value in lines.items())
        if said:
            return Check(GROUP, "driver", Outcome.OK, f"{said} ({path})", facts=dict(lines))
    places = " and ".join(str(root / file) for file in DRIVER_FILES)
    found = f"{places} cannot be read or say nothing"
    remedy = "npu-smi info shows the driver's version; a container often does not have the files"
    return Check(GROUP, "driver", Outcome.UNKNOWN, found, remedy)
