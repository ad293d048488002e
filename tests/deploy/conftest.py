"""What several tests of deploy/ share."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.deploy.rendering import DEPLOY


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that deploy/certificates.sh makes."""
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl on this machine")
    folder = tmp_path_factory.mktemp("certificates")
    subprocess.run([DEPLOY / "certificates.sh", folder, "farm.example", "127.0.0.1"], check=True)
    return folder
