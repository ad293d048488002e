"""The Dockerfile, read and rehearsed: no image is built here."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import opferry
from opferry_server.config import load_config
from tests.packaging.dockerfile import Rehearsal, Stage, is_ignored, read_dockerfile
from tests.packaging.environments import clean_variables
from tests.packaging.interpreters import find_shared_interpreter
from tests.packaging.project import project, python_versions, tracked_files
from tests.support import calls
from tests.support.processes import eventually
from tests.support.servers import ROOT, free_port

TEXT = (ROOT / "Dockerfile").read_text()
STAGES = read_dockerfile(TEXT)
BY_NAME = {stage.name: stage for stage in STAGES}
IMAGE, DEVICE_IMAGE = BY_NAME["cpu"], BY_NAME["npu"]
OFFICIAL = [BY_NAME["build"], IMAGE]
"""What the image of the CPU server is made of."""

both_images = pytest.mark.parametrize("image", [IMAGE, DEVICE_IMAGE], ids=lambda stage: stage.name)
PATTERNS = (ROOT / ".dockerignore").read_text().splitlines()

OUTCOME_UNREACHABLE = 3
"""The exit status of `opferry info` where no server answers."""


def copied(stages: list[Stage]) -> list[str]:
    """Return the sources of every COPY from the builder's context."""
    lines = [item.words for stage in stages for item in stage.all("COPY")]
    return [source for words in lines if "--from" not in words[0] for source in words[:-1]]


def belongs(path: str) -> bool:
    """Return whether a file is copied, by itself or with its folder."""
    return any(path == source or path.startswith(f"{source}/") for source in copied(STAGES))


@pytest.mark.parametrize("source", copied(STAGES))
def test_every_copied_source_is_in_the_repository(source: str) -> None:
    """Each COPY names a tracked file or folder, of which the builder is sent every file."""
    found = [name for name in tracked_files() if name == source or name.startswith(f"{source}/")]
    assert found
    assert [name for name in found if is_ignored(name, PATTERNS)] == []


def test_nothing_else_is_sent() -> None:
    """What is not copied, and what Python leaves beside its sources, stays with the user."""
    others = [name for name in tracked_files() if not belongs(name)]
    others += [".git/config", ".venv/bin/python", "client/opferry/__pycache__/client.pyc"]
    assert [name for name in others if not is_ignored(name, PATTERNS)] == []


@pytest.mark.parametrize(
    ("path", "patterns", "ignored"),
    [
        ("a/b/c", ["a"], True),
        ("a/b/c", ["b"], False),
        ("a/b/c", ["**/b"], True),
        ("a/b", ["*", "!a"], False),
        ("a/b.pyc", ["*", "!a", "**/*.py[co]"], True),
        ("a/b.py", ["*", "!a", "**/*.py[co]"], False),
        ("a/b", ["# a", ""], False),
        ("ab", ["a?", "!*b"], False),
    ],
)
def test_the_reader_of_dockerignore(path: str, patterns: list[str], ignored: bool) -> None:
    """The last pattern that matches a file or a folder above it decides."""
    assert is_ignored(path, patterns) is ignored


def test_base_images_are_official_and_pinned() -> None:
    """What is no device's starts from the official slim image of one version that we support."""
    assert [stage.base for stage in STAGES if stage not in OFFICIAL] == ["CANN_IMAGE"] * 2
    for stage in OFFICIAL:
        found = re.fullmatch(r"python:(3\.\d+)-slim", stage.base)
        assert found, stage.base
        assert found[1] in python_versions()
    assert len({stage.base for stage in OFFICIAL}) == 1
    base_name = IMAGE.pairs("LABEL")["org.opencontainers.image.base.name"]
    assert base_name == f"docker.io/library/{IMAGE.base}"


def test_the_image_of_cann_is_pinned_and_may_be_chosen() -> None:
    """The argument has a default with a version, and stands before the first stage."""
    before = TEXT[: TEXT.index("\nFROM ")]
    assert re.search(r"^ARG CANN_IMAGE=[a-z./]+:\d+\.\d+\.\d+-950-\S+$", before, re.MULTILINE)


def test_a_build_that_names_no_target_makes_the_cpu_image() -> None:
    """The last stage is the one that runs anywhere."""
    assert STAGES[-1] is IMAGE


def test_nothing_is_bound_to_an_architecture() -> None:
    """No platform and no processor is named."""
    assert not re.search(r"--platform|amd64|x86|i386|aarch64|arm64", TEXT)


@both_images
def test_labels_agree_with_the_project(image: Stage) -> None:
    """Version and license of the image are those of pyproject.toml."""
    labels = image.pairs("LABEL")
    prefix = "org.opencontainers.image"
    assert labels[f"{prefix}.version"] == project()["version"]
    assert labels[f"{prefix}.licenses"] == project()["license"]
    assert labels[f"{prefix}.title"]
    assert labels[f"{prefix}.description"]


@both_images
def test_user_is_a_number_and_not_root(image: Stage) -> None:
    """The server runs as a numeric user and group, neither of them root's."""
    user, group = image.one("USER").text.split(":")
    assert int(user) > 0
    assert int(group) > 0
    kinds = [item.keyword for item in image.instructions]
    assert "RUN" not in kinds[kinds.index("USER") :]


@both_images
def test_entry_point_and_health_check_agree(image: Stage) -> None:
    """The programs are the wheel's, the default command is valid, and all name the same port."""
    assert image.one("ENTRYPOINT").words[-1] == "opferry-server"
    assert image.health_check()[:2] == ["opferry", "info"]
    assert {"opferry-server", "opferry"} <= set(project()["scripts"])
    config = load_config(image.one("CMD").words)
    port = image.one("EXPOSE").text
    assert config.address == f"0.0.0.0:{port}"
    assert f"127.0.0.1:{port}" in image.health_check()


@pytest.mark.parametrize("place", ["ascend-toolkit", "cann", None])
def test_the_device_image_starts_with_the_environment_of_cann(
    place: str | None, tmp_path: Path
) -> None:
    """Its entry point reads CANN's script where there is one, and hands over all arguments."""
    shell, flag, script, name = DEVICE_IMAGE.one("ENTRYPOINT").words
    (tmp_path / "opferry-server").write_text('#!/bin/sh\necho "$CANN" "$@"\n')
    (tmp_path / "opferry-server").chmod(0o755)
    if place is not None:
        (tmp_path / place).mkdir()
        (tmp_path / place / "set_env.sh").write_text("export CANN=here\n")
    script = script.replace("/usr/local/Ascend", str(tmp_path))
    done = subprocess.run(
        [shell, flag, script, name, "--workers", "two words"],
        env={"PATH": f"{tmp_path}:{os.environ['PATH']}", "CANN": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == f"{'here ' if place else ''}--workers two words"


def test_the_lack_of_credentials_is_said() -> None:
    """The comment above the default command says what --insecure means."""
    above = TEXT[: TEXT.rindex("\nCMD [")].rpartition("\nENTRYPOINT")[2]
    assert "--insecure" in above
    assert "NO CREDENTIALS" in above


class Container:
    """What the rehearsed image would run, as its user."""

    def __init__(self, rehearsal: Rehearsal, read_only_root: bool) -> None:
        self._rehearsal = rehearsal
        self._port = free_port()
        self.address = f"127.0.0.1:{self._port}"
        self.user, group = (int(word) for word in IMAGE.one("USER").text.split(":"))
        self._become = ["setpriv", f"--reuid={self.user}", f"--regid={group}"]
        self._become += ["--clear-groups", "--no-new-privs"]
        if read_only_root:
            freeze = 'mount -o remount,bind,ro / && exec "$@"'
            self._become = ["unshare", "--mount", "sh", "-c", freeze, "sh", *self._become]
        # no cache, no temporary file and no home is needed: none of these can be written
        self._variables = clean_variables(HOME="/", TMPDIR="/", XDG_CACHE_HOME="/")
        for name, value in IMAGE.pairs("ENV").items():
            outer = value.replace(f"${name}", os.environ.get(name, ""))
            self._variables[name] = rehearsal.located(outer)

    def start(self) -> subprocess.Popen[bytes]:
        """Start what ENTRYPOINT and CMD say."""
        words = [*IMAGE.one("ENTRYPOINT").words, *IMAGE.one("CMD").words]
        return subprocess.Popen(self._command(words), cwd="/", env=self._variables)

    def health(self) -> int:
        """Return the exit status of the health check."""
        command = self._command(IMAGE.health_check())
        said = subprocess.run(
            command, cwd="/", env=self._variables, capture_output=True, text=True, timeout=60
        )
        assert "Traceback" not in said.stderr, said.stderr
        return said.returncode

    def _command(self, words: list[str]) -> list[str]:
        port = IMAGE.one("EXPOSE").text
        return [*self._become, *(word.replace(port, str(self._port)) for word in words)]


def sandbox_reason(read_only_root: bool) -> str | None:
    """Return why the machine does not allow the rehearsal, or None."""
    if os.geteuid() != 0:
        return "only root can become the image's user"
    if shutil.which("setpriv") is None:
        return "there is no setpriv on this machine"
    freeze = ["unshare", "--mount", "mount", "-o", "remount,bind,ro", "/"]
    if read_only_root and subprocess.run(freeze, capture_output=True).returncode != 0:
        return "mounting is not permitted here"
    return None


@pytest.fixture(scope="module")
def rehearsal() -> Iterator[Rehearsal]:
    """All stages, done with what the builder is sent and nothing else."""
    if (reason := sandbox_reason(read_only_root=False)) is not None:
        pytest.skip(reason)
    user = int(IMAGE.one("USER").text.partition(":")[0])
    python = find_shared_interpreter(IMAGE.base.removeprefix("python:").removesuffix("-slim"), user)
    if python is None:
        pytest.skip("there is no Python with pip that another user can run")
    with tempfile.TemporaryDirectory(prefix="opferry-image-") as name:
        # not pytest's own folder: that is closed to other users
        folder = Path(name)
        folder.chmod(0o755)
        context, root = folder / "context", folder / "root"
        root.mkdir()
        for path in tracked_files("--cached", "--others", "--exclude-standard"):
            if not is_ignored(path, PATTERNS) and (ROOT / path).exists():
                (context / path).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / path, context / path)
        done = Rehearsal(context, root, python)
        done.perform(OFFICIAL)
        shutil.rmtree(context)
        for path in (root, *root.rglob("*")):
            if not path.is_symlink():
                path.chmod(path.stat().st_mode & ~0o222)
        yield done


@pytest.mark.full
@pytest.mark.timeout(900)
@pytest.mark.parametrize("read_only_root", [False, True], ids=["own files", "root file system"])
def test_the_image_would_serve(rehearsal: Rehearsal, read_only_root: bool) -> None:
    """As an unprivileged user on read-only files it serves, is healthy, and ends with status 0."""
    if (reason := sandbox_reason(read_only_root)) is not None:
        pytest.skip(reason)
    container = Container(rehearsal, read_only_root)
    assert container.health() == OUTCOME_UNREACHABLE
    process = container.start()
    try:
        assert eventually(lambda: container.health() == 0, within_s=60)
        status = Path(f"/proc/{process.pid}/status").read_text()
        assert f"Uid:\t{container.user}\t{container.user}" in status
        arguments = calls.tnd()
        with opferry.connect(container.address, timeout=60) as client:
            result = client.apply_rotary_pos_emb_grad(**arguments)
        calls.assert_same_bits(result, calls.reference(arguments))
        process.terminate()
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
    assert container.health() == OUTCOME_UNREACHABLE
