"""Starting the backend torch-npu on stand-ins: what is absent is said, what runs is named."""

from __future__ import annotations

import json
import shutil
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from xxhash import _xxhash

from opferry import errors
from opferry.embedded import embedded_server
from opferry.operators import OPERATORS
from tests.support import torch_npu
from tests.support.calls import tnd

pytestmark = pytest.mark.full  # each starts a server


def packages(folder: Path, **sources: str) -> Path:
    """Return a folder with the stand-ins, except that some packages have the given source."""
    for name in ("torch_npu", "cann_ops_transformer"):
        if name not in sources:
            (folder / name).symlink_to(torch_npu.STAND_INS / name)
    for name, source in sources.items():
        if source:
            (folder / name).mkdir()
            (folder / name / "__init__.py").write_text(source)
    return folder


def refused_start(capfd: pytest.CaptureFixture[str], **arguments: Any) -> str:
    """Return what a server says that does not start."""
    with (
        pytest.raises(errors.ServerError, match="did not start"),
        embedded_server(backend="torch-npu", **arguments),
    ):
        pass
    said = capfd.readouterr().err
    assert "Traceback" not in said
    return said


ABSENT = {
    "torch": (
        {"torch": "raise ModuleNotFoundError('No module named torch', name='torch')"},
        "the package torch is not installed: install the release of torch",
    ),
    "torch_npu": ({"torch_npu": ""}, "the package torch_npu is not installed: install"),
    "cann_ops_transformer": (
        {"cann_ops_transformer": ""},
        "the package cann_ops_transformer is not installed: build its wheel",
    ),
    "a part of torch_npu": (
        {"torch_npu": "import yaml_that_is_absent"},
        "torch_npu needs the module yaml_that_is_absent",
    ),
    "CANN, as the linker says it": (
        {"torch_npu": "import ctypes\nctypes.CDLL('libhccl.so')"},
        "torch_npu cannot be loaded: libhccl.so: cannot open shared object file",
    ),
    "CANN, as Python says it": (
        {"torch_npu": "raise ImportError('libascend_hal.so: cannot open shared object file')"},
        "source CANN's set_env.sh",
    ),
    "the operator": (
        {"cann_ops_transformer": "import sys, types\nsys.modules[__name__ + '.ops'] = "
         "types.ModuleType(__name__ + '.ops')"},
        "cann_ops_transformer.ops has no function apply_rotary_pos_emb_grad",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", ABSENT)
def test_what_is_absent_is_named(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], what: str
) -> None:
    """One sentence that says which package it is and what to do; no server."""
    sources, words = ABSENT[what]
    environment = torch_npu.environment(packages(tmp_path, **sources))
    assert words in refused_start(capfd, environment=environment)


def test_another_device_is_refused(capfd: pytest.CaptureFixture[str]) -> None:
    """The operator is not there on older devices."""
    said = refused_start(capfd, environment=torch_npu.environment(soc="Ascend910B3"))
    operators = ", ".join(OPERATORS)
    assert f"the device is Ascend910B3; {operators} need one of Ascend950PR" in said


def test_the_order_of_timeouts_is_checked(capfd: pytest.CaptureFixture[str]) -> None:
    """Operator < synchronisation < run, or the server does not start."""
    options = {"device.sync-timeout-ms": "100", "device.operator-timeout-ms": "200"}
    said = refused_start(capfd, options=options, environment=torch_npu.environment())
    assert "each must be less than the next" in said


@pytest.fixture
def custom(tmp_path: Path) -> Path:
    """A folder of a custom operator package; its library is any that can be loaded.

    It has the names of the backward's functions in it, as one with the functions would.
    """
    library = tmp_path / "op_api" / "lib" / "libcust_opapi.so"
    library.parent.mkdir(parents=True)
    shutil.copy(_xxhash.__file__, library)
    with library.open("ab") as file:
        file.write(b"\0aclnnApplyRotaryPosEmbGrad\0")
    return tmp_path


def test_the_wrappers_extension_is_named(tmp_path: Path) -> None:
    """Where the wrapper has a shared library in the process, that is what replies name."""
    extension = tmp_path / "apply_rotary_pos_emb_grad.so"
    shutil.copy(_xxhash.__file__, extension)
    with torch_npu.server(extension=str(extension)) as (_, client):
        (package,) = client.server_info().operator_packages
    assert package.library_file == str(extension)
    assert package.digest == sha256(extension.read_bytes()).hexdigest()


def test_a_custom_package_is_named_with_its_library(custom: Path) -> None:
    """CANN is told the folder, and replies name the library in it."""
    options = {"packages": f"mine={custom}", "default-package": "mine"}
    with torch_npu.server(options, calls=str(custom / "calls")) as (_, client):
        package = client.apply_rotary_pos_emb_grad(**tnd()).execution.operator_package
        line = json.loads((custom / "calls").read_text().splitlines()[-1])
    assert line["environment"]["ASCEND_CUSTOM_OPP_PATH"] == str(custom)
    assert package.name == "mine"
    assert package.library_file == str(custom / "op_api" / "lib" / "libcust_opapi.so")
    assert len(package.digest) == 64


def test_a_custom_package_runs_the_operators_that_it_has(custom: Path) -> None:
    """CANN would run its own build of the others, under the package's name."""
    options = {"packages": f"mine={custom}", "default-package": "mine"}
    arrays = {name: np.ones((1, 2, 1, 8), np.float32) for name in ("query", "key", "cos", "sin")}
    with torch_npu.server(options) as (_, client):
        assert client.server_info().operators == ("ApplyRotaryPosEmbGrad",)
        with pytest.raises(errors.NotSupportedError, match="is not in operator package mine"):
            client.apply_rotary_pos_emb(**arrays)


def test_a_custom_package_that_is_not_loaded_is_not_served(
    custom: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Results of another library must not go out under the package's name."""
    options = {"packages": f"mine={custom}", "default-package": "mine"}
    with (
        pytest.raises(errors.ServerError, match="did not start"),
        torch_npu.server(options, without_packages="1"),
    ):
        pass
    assert "so it was not the package mine that ran" in capfd.readouterr().err


def test_a_folder_without_a_library_is_refused(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """It is looked for before anything is imported."""
    said = refused_start(
        capfd, options={"packages": f"mine={tmp_path}"}, environment=torch_npu.environment()
    )
    assert f"packages.mine: {tmp_path} has no op_api/lib/libcust_opapi.so" in said
