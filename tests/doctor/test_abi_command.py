"""`opferry-server doctor --abi`: the real command on small trees of headers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.doctor.trees import META, STAGE_ONE, STAGE_TWO, write_tree

DOCUMENTED = {
    "aclSetAclOpExecutorRepeatable",
    "aclDestroyAclOpExecutor",
    "aclnnApplyRotaryPosEmbGradGetWorkspaceSize",
    "aclnnApplyRotaryPosEmbGrad",
    "aclnnApplyRotaryPosEmbV2GetWorkspaceSize",
    "aclnnApplyRotaryPosEmbV2",
}


def abi(*words: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "opferry_server", "doctor", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def fields(*words: object) -> tuple[int, dict[str, Any]]:
    done = abi(*words, "--json")
    assert done.stderr == ""
    found: dict[str, Any] = json.loads(done.stdout)
    return done.returncode, found


def of(found: dict[str, Any], agreement: str, kind: str = "function") -> set[str]:
    return {
        entry["name"]
        for entry in found["entries"]
        if entry["agreement"] == agreement and entry["kind"] == kind
    }


def test_headers_as_documented_verify_everything(tmp_path: Path) -> None:
    """The functions known from documents agree, with all others: exit status 0."""
    status, found = fields("--abi", write_tree(tmp_path))
    assert status == 0
    assert found["verified"]
    assert of(found, "agrees") >= DOCUMENTED
    assert of(found, "differs") == of(found, "not found") == set()
    assert of(found, "not found", "constant") == set()
    assert found["counts"]["document"] == {"agrees": 6, "not found": 8}
    assert set(found["counts"]["typedef"]) == {"agrees"}


@pytest.mark.parametrize(
    ("changes", "name", "theirs"),
    [
        (
            {"stage_one": STAGE_ONE.replace("const aclTensor *queryOptional, ", "")},
            "aclnnApplyRotaryPosEmbGradGetWorkspaceSize",
            "pointer, pointer, pointer, pointer, pointer, char*, int64",
        ),
        (
            {"stage_one": STAGE_ONE.replace("int64_t layout", "int32_t layout")},
            "aclnnApplyRotaryPosEmbGradGetWorkspaceSize",
            "char*, int32, pointer",
        ),
        (
            {"stage_two": STAGE_TWO.replace("uint64_t workspaceSize", "int workspaceSize")},
            "aclnnApplyRotaryPosEmbGrad",
            "int32 aclnnApplyRotaryPosEmbGrad(pointer, int32, pointer, pointer)",
        ),
        (
            {"meta": META.replace("Repeatable(aclOpExecutor *", "Repeatable(aclOpExecutor **")},
            "aclSetAclOpExecutorRepeatable",
            "int32 aclSetAclOpExecutorRepeatable(pointer*)",
        ),
        (
            {"meta": META.replace("VISIBLE aclnnStatus\n", "VISIBLE void\n")},
            "aclDestroyAclOpExecutor",
            "void aclDestroyAclOpExecutor(pointer)",
        ),
        (
            {"stage_two": STAGE_TWO.replace("aclrtStream", "aclrtStreamV2")},
            "aclnnApplyRotaryPosEmbGrad",
            "type aclrtStreamV2 is not known",
        ),
        (
            {"more": "int aclInit(const char *configPath, int flags);"},
            "aclInit",
            "int32 aclInit(char*, int32)",
        ),
    ],
    ids=["count", "width", "type", "pointer", "result", "unknown-type", "second-declaration"],
)
def test_a_difference_is_shown_with_both_prototypes(
    tmp_path: Path, changes: dict[str, str], name: str, theirs: str
) -> None:
    """Ours, theirs in the same words, and theirs as it stands there: exit status 1."""
    done = abi("--abi", write_tree(tmp_path, **changes))
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    (at,) = [index for index, line in enumerate(lines) if line.startswith("  differs")]
    assert lines[at].split()[1] == name
    shown = "\n".join(lines[at : at + 6])
    assert f"ours:    int32 {name}(" in shown
    assert theirs in shown
    assert f"not verified; 1 differ: {name}" in lines[-1]


def test_what_no_header_declares_is_not_verified(tmp_path: Path) -> None:
    """Without an operator's header its two functions are not found, and that is no success."""
    done = abi("--abi", write_tree(tmp_path, stage_one="", stage_two=""))
    assert done.returncode == 1
    assert "2 were not found: aclnnApplyRotaryPosEmbGradGetWorkspaceSize" in done.stdout


def test_a_constant_with_another_value_differs(tmp_path: Path) -> None:
    """One value among right ones is enough."""
    status, found = fields("--abi", write_tree(tmp_path, more="enum { ACL_BF16 = 26 };"))
    assert status == 1
    assert of(found, "differs", "constant") == {"ACL_BF16"}


def test_a_status_of_the_documents_is_compared_where_it_is_found(tmp_path: Path) -> None:
    """No header need have it; one that has it with another number is a difference."""
    right = "constexpr aclnnStatus ACLNN_ERR_PARAM_INVALID = 161002;"
    status, found = fields("--abi", write_tree(tmp_path / "right", more=right))
    assert status == 0
    assert "ACLNN_ERR_PARAM_INVALID" in of(found, "agrees", "status")
    wrong = right.replace("161002", "161003")
    status, found = fields("--abi", write_tree(tmp_path / "wrong", more=wrong))
    assert status == 1
    assert of(found, "differs", "status") == {"ACLNN_ERR_PARAM_INVALID"}


def test_several_folders_are_read_as_one(tmp_path: Path) -> None:
    """A custom package has its header elsewhere."""
    write_tree(tmp_path / "cann", stage_one="", stage_two="")
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "operator.h").write_text(STAGE_ONE + STAGE_TWO)
    status, _ = fields("--abi", tmp_path / "cann", "--abi", tmp_path / "package")
    assert status == 0


@pytest.mark.parametrize("what", ["nothing", "empty"])
def test_a_folder_without_headers_is_a_wrong_word(tmp_path: Path, what: str) -> None:
    """Exit status 2, and the folder's name."""
    (tmp_path / "empty").mkdir()
    done = abi("--abi", tmp_path / what)
    assert done.returncode == 2
    assert str(tmp_path / what) in done.stderr
    assert done.stdout == ""
