"""What is said of a device node that cannot be opened: from what stat says, not from a node."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from opferry_server.doctor.nodes import (
    User,
    driver_check,
    may_read_and_write,
    mode_text,
    node_checks,
    node_paths,
    refusal,
)
from opferry_server.doctor.outcomes import Outcome

ALICE = User("alice", 1001, {1001: "alice", 27: "sudo"})
OWNER, GROUP = 54321, 54322


def status(mode: int) -> os.stat_result:
    """What stat says of a character device of nobody's that is known here."""
    return os.stat_result((stat.S_IFCHR | mode, 1, 1, 1, OWNER, GROUP, 0, 0, 0, 0))


def test_mode_owner_and_group_are_in_the_text() -> None:
    """By name where there is one, and by number."""
    assert (
        mode_text(status(0o660)) == f"crw-rw----, owner {OWNER} ({OWNER}), group {GROUP} ({GROUP})"
    )
    of_root = os.stat_result((stat.S_IFCHR | 0o600, 1, 1, 1, 0, 0, 0, 0, 0, 0))
    assert mode_text(of_root) == "crw-------, owner root (0), group root (0)"


@pytest.mark.parametrize(
    ("mode", "user", "may"),
    [
        (0o660, ALICE, False),
        (0o666, ALICE, True),
        (0o664, ALICE, False),
        (0o660, User("bob", 7, {7: "bob", GROUP: "npu"}), True),
        (0o640, User("bob", 7, {7: "bob", GROUP: "npu"}), False),
        (0o600, User("owner", OWNER, {7: "x"}), True),
        (0o066, User("owner", OWNER, {GROUP: "npu"}), False),
        (0o000, User("root", 0, {0: "root"}), True),
    ],
)
def test_who_may_open(mode: int, user: User, may: bool) -> None:
    """The first class that fits decides, as in the kernel."""
    assert may_read_and_write(status(mode), user) is may


@pytest.mark.parametrize(
    ("mode", "error", "user", "remedy"),
    [
        (0o660, errno.EACCES, ALICE, f"usermod -aG {GROUP} alice, then log in again"),
        (0o660, errno.EACCES, ALICE, f"--group-add {GROUP}"),
        (0o600, errno.EACCES, ALICE, f"run the server as {OWNER}"),
        (0o666, errno.EPERM, ALICE, "docker run --device /dev/davinci0"),
        (0o660, errno.EPERM, User("root", 0, {0: "root"}), "dropped capabilities"),
        (0o666, errno.ENXIO, ALICE, "load the driver"),
        (0o666, errno.EBUSY, ALICE, "dmesg"),
    ],
)
def test_the_remedy_fits_the_refusal(mode: int, error: int, user: User, remedy: str) -> None:
    """Mode, owner, group, the user's groups and the error are told; what to do depends on them."""
    found, said = refusal("/dev/davinci0", status(mode), user, error)
    assert remedy in said
    for part in (stat.filemode(stat.S_IFCHR | mode), os.strerror(error), user.text):
        assert part in found


def test_the_devices_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    """davinci10 comes after davinci2, and the manager is no device."""
    dev = tmp_path / "dev"
    dev.mkdir()
    for name in ("davinci10", "davinci2", "davinci_manager", "davincix"):
        (dev / name).touch()
    names = [path.name for path in node_paths(tmp_path)]
    assert names == ["davinci2", "davinci10", "davinci_manager", "devmm_svm", "hisi_hdc"]


def test_opening_decides_and_not_the_mode(tmp_path: Path) -> None:
    """An error, a hang, or nothing at all said of a node: it fails."""
    dev = tmp_path / "dev"
    dev.mkdir()
    for name in ("davinci0", "davinci1", "davinci2", "davinci_manager"):
        (dev / name).symlink_to("/dev/null")
    errors: dict[str, int | str | None] = {
        f"{dev}/davinci0": None,
        f"{dev}/davinci1": errno.EPERM,
        f"{dev}/davinci2": "opening it: did not return within 1 s",
    }
    checks = {Path(item.name).name: item for item in node_checks(tmp_path, errors, ALICE)}
    assert checks["davinci0"].outcome is Outcome.OK
    for name, words in (
        ("davinci1", "not permitted"),
        ("davinci2", "did not return"),
        ("davinci_manager", "not tried"),
        ("hisi_hdc", "absent"),
    ):
        assert checks[name].outcome is Outcome.FAILED
        assert words in checks[name].found


@pytest.mark.parametrize(
    ("file", "text", "found"),
    [
        ("usr/local/Ascend/driver/version.info", "Version=25.2.0\nother=1\n", "25.2.0"),
        ("etc/ascend_install.info", "Driver_Install_Path_Param=/usr/local/Ascend\n", "Driver_In"),
    ],
)
def test_the_driver_says_its_version(tmp_path: Path, file: str, text: str, found: str) -> None:
    """In one file or the other."""
    (tmp_path / file).parent.mkdir(parents=True)
    (tmp_path / file).write_text(text)
    check = driver_check(tmp_path)
    assert check.outcome is Outcome.OK
    assert check.found.startswith(found)
    assert str(tmp_path / file) in check.found


def test_no_driver_file_is_unknown(tmp_path: Path) -> None:
    """A container does not have it, so nothing failed."""
    assert driver_check(tmp_path).outcome is Outcome.UNKNOWN
