"""A client in Node.js, written from the schema alone, gets the same bytes from a real server."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.rpc import error_details_pb2, status_pb2

from opferry.core.dtypes import DType
from opferry.core.tensors import HostTensor, from_array, raw_bytes, view_array
from opferry.operators import operator_named
from opferry_server.testing import running_server

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
OPERATOR = operator_named("ApplyRotaryPosEmbGrad")

OFFLINE = re.compile(
    r"code (ENOTFOUND|EAI_AGAIN|ECONNREFUSED|ECONNRESET|ETIMEDOUT|EHOSTUNREACH|ENETUNREACH"
    r"|ERR_SOCKET_TIMEOUT|E5\d\d)"
)
"""What npm says when the registry, not the lock file, is at fault."""

Job = dict[str, Any]
Summary = dict[str, Any]


@pytest.fixture(scope="module")
def node_modules() -> Path:
    """The folder of the packages in the lock file, installed once for each lock file."""
    for program in ("node", "npm"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")
    lock = (HERE / "package-lock.json").read_bytes()
    folder = ROOT / ".cache" / "interop" / sha256(lock).hexdigest()[:16]
    done = folder / "installed"
    if not done.exists():
        folder.mkdir(parents=True, exist_ok=True)
        for name in ("package.json", "package-lock.json"):
            shutil.copy(HERE / name, folder)
        command = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--fetch-retries=1"]
        npm = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
        if npm.returncode and OFFLINE.search(npm.stderr):
            pytest.skip(f"the npm registry cannot be reached: {npm.stderr.strip()[:300]}")
        assert npm.returncode == 0, npm.stderr
        done.touch()
    return folder / "node_modules"


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """The address of a CPU server."""
    with running_server(backend="cpu", workers=1) as address:
        yield address


def _arrays(dtype: DType, *shapes: tuple[int, ...]) -> dict[str, np.ndarray]:
    """Return inputs of the given shapes: both gradients, cos, and query and key as wished."""
    random = np.random.default_rng(9)
    gq, gk, cos = shapes[:3]
    named = {"grad_query_embed": gq, "grad_key_embed": gk, "cos": cos, "sin": cos}
    named |= dict(zip(("query", "key"), shapes[3:], strict=False))
    return {
        name: random.standard_normal(shape, np.float32).astype(dtype.numpy)
        for name, shape in named.items()
    }


def _reference(tensors: dict[str, HostTensor], layout: int) -> dict[str, bytes]:
    specs = {name: tensor.spec for name, tensor in tensors.items()}
    plan = OPERATOR.check(specs, OPERATOR.parse_attributes({"layout": layout}))
    arrays = {name: view_array(tensor.spec, tensor.data) for name, tensor in tensors.items()}
    return {name: bytes(raw_bytes(x)) for name, x in OPERATOR.reference(arrays, plan).items()}


def _write_inputs(tensors: dict[str, HostTensor], folder: Path) -> list[Job]:
    """Write each tensor's bytes to a file and return what the client is to read."""
    inputs = []
    for name, tensor in tensors.items():
        file = folder / f"{name}.input"
        file.write_bytes(tensor.data)
        spec = {
            "name": name,
            "data_type": f"DATA_TYPE_{tensor.spec.dtype.name}",
            "shape": tensor.spec.shape,
            "strides": tensor.spec.strides or (),
            "storage_offset": tensor.spec.storage_offset,
            "storage_shape": tensor.spec.storage_shape or (),
            "data_bytes": tensor.spec.data_bytes,
        }
        inputs.append({"spec": spec, "file": str(file)})
    return inputs


def _run(node_modules: Path, folder: Path, job: Job) -> tuple[int, Summary]:
    """Run the client on a job and return its exit status and summary."""
    file = folder / "job.json"
    file.write_text(json.dumps(job))
    # the client of another language may know proxies; nothing on loopback goes through one
    environment = {**os.environ, "NODE_PATH": str(node_modules), "no_proxy": "127.0.0.1"}
    command = ["node", str(HERE / "client.js"), str(file)]
    node = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100)
    assert node.stdout, node.stderr
    return node.returncode, json.loads(node.stdout)


def _job(server: str, folder: Path, mode: str, tensors: dict[str, HostTensor], **more: Any) -> Job:
    return {
        "target": server,
        "protos": str(ROOT / "protos"),
        "mode": mode,
        "attributes": {"rotary_mode": "ROTARY_MODE_HALF", "layout": more["layout"]},
        "inputs": _write_inputs(tensors, folder),
        "output_folder": str(folder),
        "chunk_bytes": more.get("chunk_bytes", 1000),
    }


def _outputs(folder: Path, summary: Summary) -> dict[str, bytes]:
    return {spec["name"]: (folder / f"{spec['name']}.bin").read_bytes()
            for spec in summary["outputs"]}  # fmt: skip


FULL = pytest.mark.full
MODES = pytest.mark.parametrize("mode", ["unary", "stream"])
SHAPES = ((2, 5, 3, 64), (2, 5, 4, 64), (1, 5, 1, 64))


@FULL
@MODES
@pytest.mark.parametrize("dtype", list(DType))
@pytest.mark.parametrize("optional", [True, False])
def test_the_bytes_are_those_of_the_reference(
    server: str, node_modules: Path, tmp_path: Path, mode: str, dtype: DType, optional: bool
) -> None:
    """Unary and stream give the reference's bytes in every dtype, all outputs and no others."""
    arrays = _arrays(dtype, *SHAPES, *(SHAPES[:2] if optional else ()))
    tensors = {name: from_array(name, array) for name, array in arrays.items()}
    status, summary = _run(
        node_modules, tmp_path, _job(server, tmp_path, mode, tensors, layout="LAYOUT_BSND")
    )
    assert (status, summary.get("text")) == (0, None)
    assert _outputs(tmp_path, summary) == _reference(tensors, layout=1)
    assert {spec["data_type"] for spec in summary["outputs"]} == {f"DATA_TYPE_{dtype.name}"}
    assert summary["outputs"][0]["shape"] == ["2", "5", "3", "64"]
    assert summary["execution"]["backend"] == "cpu"
    assert summary["execution"]["request_id"]
    assert ("STATE_UPLOADING" in summary["states"]) == (mode == "stream")


@FULL
@MODES
def test_views_are_understood(server: str, node_modules: Path, tmp_path: Path, mode: str) -> None:
    """Strides, an offset and a storage larger than the view mean what the schema says."""
    arrays = _arrays(DType.BFLOAT16, (4, 6, 8), (4, 3, 8), (4, 1, 8))
    arrays["grad_query_embed"] = arrays["grad_query_embed"][:, ::2]
    arrays["sin"] = np.broadcast_to(arrays["sin"][2:3], (4, 1, 8))
    tensors = {name: from_array(name, x, keep_strides=True) for name, x in arrays.items()}
    assert tensors["grad_query_embed"].spec.strides == (48, 16, 1)
    status, summary = _run(
        node_modules, tmp_path, _job(server, tmp_path, mode, tensors, layout="LAYOUT_TND")
    )
    assert (status, summary.get("text")) == (0, None)
    assert _outputs(tmp_path, summary) == _reference(tensors, layout=4)


@FULL
def test_large_tensors_travel_in_chunks_of_any_size(
    server: str, node_modules: Path, tmp_path: Path
) -> None:
    """Tensors over gRPC's message limit pass in a stream, in chunks that cut elements apart."""
    big = (3, 700, 8, 128)
    tensors = {
        name: from_array(name, array)
        for name, array in _arrays(DType.FLOAT16, big, big, (3, 700, 1, 128), big, big).items()
    }
    job = _job(server, tmp_path, "stream", tensors, layout="LAYOUT_BSND", chunk_bytes=2**20 + 13)
    status, summary = _run(node_modules, tmp_path, job)
    assert (status, summary.get("text")) == (0, None)
    outputs = _outputs(tmp_path, summary)
    assert len(outputs["grad_query"]) > 4 * 2**20
    assert outputs == _reference(tensors, layout=1)


@FULL
@MODES
def test_errors_arrive_with_their_details(
    server: str, node_modules: Path, tmp_path: Path, mode: str
) -> None:
    """The reserved layout is refused with the canonical code, and the details say why."""
    tensors = {
        name: from_array(name, array) for name, array in _arrays(DType.FLOAT32, *SHAPES).items()
    }
    status, summary = _run(
        node_modules, tmp_path, _job(server, tmp_path, mode, tensors, layout="LAYOUT_BNSD")
    )
    assert (status, summary["code"]) == (1, "INVALID_ARGUMENT")
    assert "layout 3 (BNSD) is reserved" in summary["text"]
    rich = status_pb2.Status.FromString(base64.b64decode(summary["details"]))
    assert (rich.code, rich.message) == (3, summary["text"])
    info = error_details_pb2.ErrorInfo()
    assert rich.details[0].Unpack(info)
    assert (info.domain, info.reason) == ("opferry", "LAYOUT_NOT_SUPPORTED")
    assert info.metadata["argument"] == "layout"
    assert info.metadata["aclnn_status"] == "161002"
    assert info.metadata["request_id"]


def test_the_lock_file_names_no_registry() -> None:
    """The lock file pins versions and digests, and leaves the registry to whoever installs."""
    lock = json.loads((HERE / "package-lock.json").read_text())
    packages = {name: package for name, package in lock["packages"].items() if name}
    assert packages
    for package in packages.values():
        assert package["integrity"].startswith("sha512-")
        assert "resolved" not in package
    pinned = json.loads((HERE / "package.json").read_text())["dependencies"]
    assert all(re.fullmatch(r"\d+\.\d+\.\d+", version) for version in pinned.values())
