"""`opferry run`, `plan`, `info` and the help texts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from tests.cli.test_validate import opferry
from tests.support import servers
from tests.support.calls import forward_arrays, reference, tnd

COMMANDS = ["validate", "report", "diff", "cases", "run", "plan", "info"]


def arrays_of(arguments: dict[str, Any]) -> dict[str, np.ndarray]:
    return {name: a for name, a in arguments.items() if isinstance(a, np.ndarray)}


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_run_on_safetensors(cpu_server: str, tmp_path: Path, dtype: Any) -> None:
    """Tensors in, gradients out, in all three dtypes, bit for bit."""
    arguments = tnd(dtype=dtype)
    source, target = tmp_path / "in.safetensors", tmp_path / "out.safetensors"
    save_file(arrays_of(arguments), source)
    words = ["-i", source, "-o", target, "--layout", "TND", "--checksum"]
    done = opferry("run", *words, "--target", cpu_server)
    assert done.returncode == 0, done.stderr
    assert "ran on cpu:0" in done.stdout
    found, expected = load_file(target), reference(arguments)
    assert list(found) == sorted(expected) or set(found) == set(expected)
    for name, array in expected.items():
        assert found[name].tobytes() == array.tobytes()


def test_run_on_npz(cpu_server: str, tmp_path: Path) -> None:
    """Two gradients without query and key; --json tells shapes and the execution."""
    arguments = tnd(dtype=np.float16, with_query=False)
    source, target = tmp_path / "in.npz", tmp_path / "out.npz"
    np.savez(source, **arrays_of(arguments))
    words = ["-i", source, "-o", target, "--layout", "4", "--repeat", "2", "--json"]
    done = opferry("run", *words, "--target", cpu_server)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert list(said["outputs"]) == ["grad_query", "grad_key"]
    assert len(said["execution"]["timings"]["kernel_ns"]) == 2
    with np.load(target) as found:
        for name, array in reference(arguments).items():
            assert found[name].tobytes() == array.tobytes()


def test_raw_elements_of_npz_need_a_word(cpu_server: str, tmp_path: Path) -> None:
    """Numpy's format has no bfloat16: --dtype says what two raw bytes are."""
    arguments = tnd(dtype=ml_dtypes.bfloat16, with_query=False)
    source, target = tmp_path / "in.npz", tmp_path / "out.safetensors"
    np.savez(source, **{n: a.view(np.uint16) for n, a in arrays_of(arguments).items()})
    words = ["run", "-i", source, "-o", target, "--layout", "4", "--target", cpu_server]
    refused = opferry(*words)
    assert refused.returncode == 2
    assert "--dtype bfloat16" in refused.stderr
    done = opferry(*words, "--dtype", "bf16")
    assert done.returncode == 0, done.stderr
    for name, array in reference(arguments).items():
        assert load_file(target)[name].tobytes() == array.tobytes()
    into_npz = opferry("run", "-i", source, "-o", tmp_path / "out.npz", "--dtype", "bf16")
    assert into_npz.returncode == 2
    assert "cannot hold bfloat16" in into_npz.stderr


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"grad_query_embed": np.ones((2, 2, 8), np.float32)}, "grad_key_embed is missing"),
        ({**arrays_of(tnd()), "quary": np.ones(3, np.float32)}, "quary"),
        ({n: a.astype(np.float64) for n, a in arrays_of(tnd()).items()}, "float64"),
    ],
)
def test_a_wrong_input_file_is_exit_2(
    tmp_path: Path, arrays: dict[str, np.ndarray], words: str
) -> None:
    """One line, and no server is started for it."""
    source = tmp_path / "in.npz"
    np.savez(source, **arrays)
    done = opferry("run", "-i", source, "-o", tmp_path / "out.npz", "--layout", "TND")
    assert done.returncode == 2
    assert words in done.stderr
    assert "embedded" not in done.stderr


@pytest.mark.parametrize("name", ["in.npz", "in.safetensors", "in.txt"])
def test_a_broken_input_file_is_exit_2(tmp_path: Path, name: str) -> None:
    """A file that is not what its name says is refused in one clear text."""
    source = tmp_path / name
    source.write_bytes(b"neither one nor the other")
    done = opferry("run", "-i", source, "-o", tmp_path / "out.npz")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert name in done.stderr


def test_run_names_another_operator(cpu_server: str, tmp_path: Path) -> None:
    """The forward, in a mode and by a word for its layout that the backward does not have."""
    arrays = forward_arrays(rotated=8)
    source, target = tmp_path / "in.npz", tmp_path / "out.npz"
    np.savez(source, **arrays)
    words = ["--operator", "ApplyRotaryPosEmb", "--layout", "BSH", "--rotary-mode", "quarter"]
    done = opferry("run", "-i", source, "-o", target, *words, "--target", cpu_server)
    assert done.returncode == 0, done.stderr
    expected = reference({**arrays, "rotary_mode": "quarter"})
    with np.load(target) as found:
        assert set(found) == set(expected)
        for name, array in expected.items():
            assert found[name].tobytes() == array.tobytes()


@pytest.mark.parametrize("where", ["local", "server"])
def test_plan_names_another_operator(cpu_server: str, where: str) -> None:
    """The key is like the query unless it is given; sin is like cos."""
    target = ["--target", cpu_server] if where == "server" else []
    words = ["--operator", "apply_rotary_pos_emb", "--query", "3,4,5,8", "--cos", "1,1,5,4"]
    done = opferry("plan", *words, "--layout", "BNSD", "--json", *target)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert {name: spec["shape"] for name, spec in found["outputs"].items()} == {
        "query_out": [3, 4, 5, 8],
        "key_out": [3, 4, 5, 8],
    }
    assert (found["template"], found["tiling_key"]) == ("BA", 20011)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--query", "1,2,3,4"], "apply_rotary_pos_emb_grad needs --grad-query-embed"),
        (["--operator", "ApplyRotaryPosEmb"], "apply_rotary_pos_emb needs --query"),
        (
            ["--operator", "ApplyRotaryPosEmb", "--query", "1,2", "--grad-key-embed", "1,2"],
            "apply_rotary_pos_emb has no input grad_key_embed",
        ),
        (["--operator", "Softmax"], "operator 'Softmax' is not known here"),
    ],
)
def test_a_plan_without_its_shapes_is_exit_2(words: list[str], said: str) -> None:
    """What is missing, or is another operator's, is named."""
    done = opferry("plan", *words, "--cos", "1,2,1,4")
    assert done.returncode == 2
    assert said in done.stderr


@pytest.mark.parametrize("where", ["local", "server"])
def test_plan(cpu_server: str, where: str) -> None:
    """The contract alone, and a server, say the same."""
    target = ["--target", cpu_server] if where == "server" else []
    shapes = ["--grad-query-embed", "4,2,3,8", "--grad-key-embed", "4,2,5,8", "--cos", "1,2,1,8"]
    done = opferry("plan", *shapes, "--query-and-key", "--dtype", "bf16", "--json", *target)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["template"] == "BAB"
    assert found["tiling_key"] == 203
    assert found["broadcast_axes"] == [0, 2]
    assert found["workspace_bytes"] == 4 * 2 * 5 * 8 * 4 * 2
    assert found["outputs"]["grad_cos"] == {"dtype": "bfloat16", "shape": [1, 2, 1, 8]}
    assert ("planned by the contract alone" in done.stderr) == (where == "local")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--grad-query-embed", "4,2,3,7", "--cos", "4,2,1,7"], "even"),
        (["--grad-query-embed", "4,2,3,8", "--cos", "4,2,1,8", "--layout", "3"], "reserved"),
        (["--grad-query-embed", "4,2,3,8", "--cos", "4,2,1,8", "--layout", "XYZ"], "BSND"),
        (["--grad-query-embed", "4,x", "--cos", "4,2,1,8"], "shape"),
        (["--grad-query-embed", "4,2,3,8", "--cos", "4,2,1,8", "--dtype", "fp64"], "float32"),
        (["--grad-query-embed", "4,2,3,8", "--cos", "4,2,1,8", "--layuot", "1"], "layuot"),
    ],
)
def test_a_plan_that_breaks_a_rule_is_exit_2(words: list[str], said: str) -> None:
    """The rule is named on one line."""
    done = opferry("plan", *words)
    assert done.returncode == 2
    assert said in done.stderr


def test_info(cpu_server: str) -> None:
    """What the server is, for people and for programs."""
    done = opferry("info", "--target", cpu_server, "--json")
    assert done.returncode == 0
    found = json.loads(done.stdout)
    assert found["serving"] is True
    assert found["real_device"] is False
    assert found["limits"]["queue_count"] == 64
    assert "numpy-blocked" in opferry("info", "--target", cpu_server).stdout


def test_info_without_a_server_is_exit_3() -> None:
    """A health check fails where nobody answers."""
    done = opferry("info", "--target", f"127.0.0.1:{servers.free_port()}")
    assert done.returncode == 3
    assert "UNAVAILABLE" in done.stderr


def test_a_wrong_target_is_exit_2() -> None:
    """A target is host:port, and the text says so."""
    done = opferry("info", "--target", "localhost")
    assert done.returncode == 2
    assert "host:port" in done.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_is_explained(command: str) -> None:
    """--help names every option with a sentence."""
    done = opferry(command, "--help")
    assert done.returncode == 0
    options = [line for line in done.stdout.splitlines() if line.startswith("  -")]
    assert len(options) >= 3
    for position, line in enumerate(done.stdout.splitlines()):
        if line.startswith("  -") and len(line.split("  ")) < 3:
            assert done.stdout.splitlines()[position + 1].startswith("      "), line


def test_the_version_is_the_packages() -> None:
    """--version agrees with the installed package."""
    from importlib.metadata import version

    assert version("opferry") in opferry("--version").stdout
