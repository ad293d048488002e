"""Tensors of cases as files, named as TTK names them.

    <testcase_name>_<phase>_<index>.<format>      phase: input, output or golden
    <testcase_name>_<phase>.safetensors           all tensors of the phase by name

The index counts the operator's inputs, or its outputs, from 0. The row's dump_file_prefix, if it
has one, stands in place of its name; what is dumped because the case failed has "_fail" behind it,
and where another row already has files of that name "_row" and the row.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from opferry.core.dtypes import DType
from opferry.core.problems import Problem, Reason
from opferry.core.tensors import HostTensor, raw_bytes, view_array
from opferry.validation._golden_files import goldens_of_files
from opferry.validation._making import data_of
from opferry.validation.case import Case
from opferry.validation.inputs import digest
from opferry.validation.outcome import (
    GOLDEN_PREFIX,
    CaseResult,
    CaseStatus,
    GoldenMode,
    RunSettings,
)

KINDS = ("in", "out", "golden")
"""What can be dumped."""

FORMATS = ("bin", "npy", "pt", "safetensors")
"""As what it can be dumped: bin is the raw bytes, of an input its whole storage."""

_PHASES = {"in": "input", "out": "output", "golden": "golden"}


class Tensor(NamedTuple):
    """One tensor to be written."""

    name: str
    """The operator's parameter or output."""
    array: NDArray[Any]
    """Its view."""
    data: memoryview
    """Its storage's bytes."""
    dtype: DType | None
    """Its dtype; None: float64."""


class DumpWriter:
    """Writes the tensors of cases to a folder."""

    def __init__(
        self,
        folder: str | os.PathLike[str],
        kinds: frozenset[str],
        file_format: str,
        *,
        on_fail: bool,
        settings: RunSettings,
    ) -> None:
        """Write to a folder, which is made when it is needed.

        Args:
            folder: the folder.
            kinds: what is dumped of every case, of `KINDS`.
            file_format: one of `FORMATS`; "pt" needs PyTorch.
            on_fail: whether everything is dumped of a case that fails.
            settings: the settings of the run; they make the inputs.

        Raises:
            Problem: ATTRIBUTE_INVALID if the format cannot be written here.
        """
        self._folder = Path(folder)
        self._kinds = kinds
        self._on_fail = on_fail
        self._settings = settings
        self._stems: dict[str, int] = {}
        self._save = _saver(file_format)

    @property
    def wants_outputs(self) -> bool:
        """Whether outputs of cases must come back."""
        return self._on_fail or "out" in self._kinds

    @property
    def wants_goldens(self) -> bool:
        """Whether goldens of cases must come back."""
        return self._on_fail or "golden" in self._kinds

    @property
    def only_on_fail(self) -> bool:
        """Whether nothing needs to come back of a case that passes."""
        return self._on_fail and not self._kinds & {"out", "golden"}

    def write(self, result: CaseResult) -> list[Path]:
        """Write what is to be dumped of a case and return the files.

        Raises:
            OSError: if they cannot be written.
        """
        ran = result.status in (CaseStatus.PASS, CaseStatus.FAIL, CaseStatus.EXECUTED)
        if not ran or result.execution is None:
            return []
        files = self._write(result, self._kinds, "")
        if self._on_fail and result.status is CaseStatus.FAIL:
            files += self._write(result, frozenset(KINDS), "_fail")
        return files

    def _write(self, result: CaseResult, kinds: frozenset[str], mark: str) -> list[Path]:
        files: list[Path] = []
        case = result.case
        prefix = case.columns.get("dump_file_prefix", "").strip()
        stem = (prefix if prefix not in ("", "None") else case.name) + mark
        if os.sep in stem or stem in (".", ".."):
            stem = stem.replace(os.sep, "_")
        if self._stems.setdefault(stem, case.row) != case.row:
            stem += f"_row{case.row}"  # another row has files of that name
        for kind in KINDS:
            if kind not in kinds:
                continue
            tensors = self._inputs(result) if kind == "in" else self._returned(result, kind)
            if tensors:
                self._folder.mkdir(parents=True, exist_ok=True)
                files += self._save(self._folder / f"{stem}_{_PHASES[kind]}", tensors)
        return files

    def _returned(self, result: CaseResult, kind: str) -> dict[int, Tensor]:
        """Return outputs or goldens: those that came, and goldens that did not, made here."""
        case = result.case
        prefix = GOLDEN_PREFIX if kind == "golden" else ""
        names = [output.name for output in case.operator.outputs]
        arrays = {
            name: result.dumped[prefix + name] for name in names if prefix + name in result.dumped
        }
        if kind == "golden":
            missing = self._settings.golden_mode is not GoldenMode.DISABLE and not arrays
            arrays = {**(self._goldens(case) if missing else arrays), **goldens_of_files(case)}
        found = {}
        for position, declared in enumerate(case.operator.outputs):
            array = arrays.get(declared.name)
            if array is not None:
                wide = array.dtype == np.float64
                dtype = None if wide else case.inputs[declared.like].dtype
                found[position] = Tensor(declared.name, array, raw_bytes(array), dtype)
        return found

    def _goldens(self, case: Case) -> Mapping[str, NDArray[Any]]:
        arrays = {
            name: view_array(spec, data_of(case, self._settings, name).data)
            for name, spec in case.inputs.items()
        }
        plan = case.operator.check(case.inputs, case.attributes)
        promote = self._settings.golden_mode is GoldenMode.PROMOTE
        return case.operator.reference(arrays, plan, promote=promote)

    def _inputs(self, result: CaseResult) -> dict[int, Tensor]:
        """Return the inputs, made here once more: they are those that the server says it had."""
        case, found = result.case, {}
        for position, declared in enumerate(case.operator.inputs):
            if declared.name not in case.inputs:
                continue
            tensor = data_of(case, self._settings, declared.name)
            _check(declared.name, tensor, result)
            found[position] = Tensor(
                declared.name, view_array(tensor.spec, tensor.data), tensor.data, tensor.spec.dtype
            )
        return found


Save = Callable[[Path, Mapping[int, Tensor]], "list[Path]"]


def _check(name: str, tensor: HostTensor, result: CaseResult) -> None:
    wanted = result.input_digests.get(name)
    if wanted is not None and digest(tensor) != wanted:
        raise Problem(
            Reason.RECIPE_MISMATCH,
            f"{name} has the digest {digest(tensor).hex()} here and {wanted.hex()} on the server: "
            "run with --inputs client, and report it with both numpy versions and processors",
            argument=name,
        )


def _saver(file_format: str) -> Save:
    if file_format == "pt":
        try:
            import torch  # noqa: F401
        except ImportError:
            raise Problem(
                Reason.ATTRIBUTE_INVALID,
                "dump-format is pt, and PyTorch is not installed; without it bin, npy and "
                "safetensors are served",
                argument="dump-format",
                given="pt",
                allowed="bin, npy, safetensors",
            ) from None
    return {"bin": _save_bin, "npy": _save_npy, "pt": _save_pt, "safetensors": _save_safetensors}[
        file_format
    ]


def _save_bin(stem: Path, tensors: Mapping[int, Tensor]) -> list[Path]:
    files = []
    for position, tensor in tensors.items():
        path = stem.with_name(f"{stem.name}_{position}.bin")
        path.write_bytes(tensor.data)
        files.append(path)
    return files


def _save_npy(stem: Path, tensors: Mapping[int, Tensor]) -> list[Path]:
    files = []
    for position, tensor in tensors.items():
        path = stem.with_name(f"{stem.name}_{position}.npy")
        array = np.ascontiguousarray(tensor.array)
        # numpy's format has no bfloat16: its raw bits go
        np.save(path, array.view(np.uint16) if tensor.dtype is DType.BFLOAT16 else array)
        files.append(path)
    return files


def _save_pt(stem: Path, tensors: Mapping[int, Tensor]) -> list[Path]:
    import torch

    files = []
    for position, tensor in tensors.items():
        path = stem.with_name(f"{stem.name}_{position}.pt")
        array = np.ascontiguousarray(tensor.array)
        if tensor.dtype is DType.BFLOAT16:
            found = torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
        else:
            found = torch.from_numpy(array)
        torch.save(found, path)
        files.append(path)
    return files


def _save_safetensors(stem: Path, tensors: Mapping[int, Tensor]) -> list[Path]:
    from safetensors.numpy import save_file

    path = stem.with_name(f"{stem.name}.safetensors")
    save_file(
        {tensor.name: np.ascontiguousarray(tensor.array) for tensor in tensors.values()}, path
    )
    return [path]


def kinds_of(text: str) -> frozenset[str]:
    """Return what is to be dumped, of TTK's word for it.

    Args:
        text: "full", or some of "in", "out" and "golden", separated by commas.

    Raises:
        Problem: ATTRIBUTE_INVALID for another word.
    """
    words = {word.strip() for word in text.split(",") if word.strip()}
    if "full" in words:
        words = words - {"full"} | set(KINDS)
    wrong = sorted(words - set(KINDS))
    if wrong or not words:
        raise Problem(
            Reason.ATTRIBUTE_INVALID,
            f"dump is {text[:40]!r}; allowed is full, or some of {', '.join(KINDS)}",
            argument="dump",
            given=text[:40],
            allowed=f"full, {', '.join(KINDS)}",
        )
    return frozenset(words)
