"""Compares the simulator's operators with their contracts and references.

A program, for the libraries' state is the process's:

    python -m tests.simulator.congruence BUILD_FOLDER

Ends with 1 and says where they differ, or prints how much was compared.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from opferry.core.dtypes import DType, canonical_nan
from opferry.core.problems import Problem
from opferry.core.tensors import TensorSpec
from opferry.operators import OPERATORS
from opferry.operators.base import Operator
from opferry.validation.compare import compare
from tests.simulator.direct import SIGNATURES, CallError, Direct

SEED = 20260729
CALLS = 120
MUTATIONS = 1500
DETERMINISM_RUNS = 20

Specs = dict[str, TensorSpec]
Storages = dict[str, NDArray[Any]]

AXES = {1: "BSND", 2: "SBND", 3: "BNSD", 4: "TND"}


class Subject(NamedTuple):
    """An operator, and what its calls are made of."""

    operator: Operator
    """The operator."""
    layouts: tuple[int, ...]
    """The layouts that it serves."""
    modes: tuple[str, ...]
    """The rotary modes that it serves."""
    partial: bool
    """Whether cos may be narrower than query."""

    @property
    def names(self) -> tuple[str, ...]:
        """All inputs."""
        return tuple(spec.name for spec in self.operator.inputs)

    @property
    def required(self) -> tuple[str, ...]:
        """The inputs that must be there."""
        return tuple(spec.name for spec in self.operator.inputs if not spec.optional)


SUBJECTS = (
    Subject(OPERATORS["ApplyRotaryPosEmbGrad"], (1, 2, 4), ("half",), partial=False),
    Subject(
        OPERATORS["ApplyRotaryPosEmb"],
        (1, 2, 3, 4),
        ("half", "interleave", "quarter"),
        partial=True,
    ),
)


def draw_shapes(
    random: np.random.Generator, subject: Subject
) -> tuple[int, str, dict[str, tuple[int, ...]]]:
    """Return a layout, a mode and the shapes of the inputs of a good call."""
    layout, mode = int(random.choice(subject.layouts)), str(random.choice(subject.modes))
    batch, length = int(random.integers(1, 4)), int(random.integers(1, 6))
    heads = {"query": int(random.choice([1, 2, 5])), "key": int(random.choice([1, 3]))}
    step = 4 if mode == "quarter" else 2
    width = step * int(random.choice([1, 2, 3, 16, 32, 48]))
    rotated = step * int(random.integers(1, width // step + 1)) if subject.partial else width
    cos_batch = int(random.choice([1, batch]))
    shapes = {}
    for name in subject.names:
        table = name in ("cos", "sin")
        sizes = {
            "B": cos_batch if table else batch,
            "S": length,
            "T": length,
            "N": 1 if table else heads["key" if "key" in name else "query"],
            "D": rotated if table else width,
        }
        shapes[name] = tuple(sizes[axis] for axis in AXES[layout])
    return layout, mode, shapes


def draw_spec(
    random: np.random.Generator, dtype: DType, shape: tuple[int, ...], *, written: bool = False
) -> TensorSpec:
    """Return a spec of that shape: contiguous, or a view with gaps, swapped axes or stride 0.

    One that is written has no stride 0.
    """
    kind = random.choice(["dense", "gaps", "swapped", *([] if written else ["broadcast"])])
    if kind == "dense":
        return TensorSpec(dtype, shape)
    order = list(range(len(shape)))
    if kind == "swapped":
        random.shuffle(order)
    strides, step = [0] * len(shape), 1
    for axis in reversed(order):
        strides[axis] = step
        step *= shape[axis] + (int(random.integers(0, 3)) if kind == "gaps" else 0)
    if kind == "broadcast":
        strides[int(random.integers(0, len(shape)))] = 0
    offset = int(random.integers(0, 4))
    reach = sum((extent - 1) * stride for extent, stride in zip(shape, strides, strict=True))
    return TensorSpec(dtype, shape, tuple(strides), offset, (offset + reach + 1,))


def draw_storage(random: np.random.Generator, spec: TensorSpec, special: bool) -> NDArray[Any]:
    """Return a storage with normal values, or with the whole range of bit patterns."""
    if special:
        integer = np.uint32 if spec.dtype is DType.FLOAT32 else np.uint16
        bits = random.integers(0, 2 ** (8 * spec.dtype.itemsize), spec.storage_count, integer)
        return bits.view(spec.dtype.numpy)
    values = random.standard_normal(spec.storage_count, np.float32)
    return values.astype(spec.dtype.numpy)


def view(spec: TensorSpec, storage: NDArray[Any]) -> NDArray[Any]:
    """Return the array that a spec sees in a storage."""
    item = spec.dtype.itemsize
    return np.ndarray(
        spec.shape,
        spec.dtype.numpy,
        storage,
        spec.storage_offset * item,
        tuple(stride * item for stride in spec.full_strides),
    )


def compare_results(direct: Direct, random: np.random.Generator, subject: Subject) -> Iterator[str]:
    """Run good calls and yield what differs from the reference."""
    operator = subject.operator
    signature = SIGNATURES[operator.name]
    overwritten = set(signature.outputs.values()) if signature.in_place else set()
    for number in range(CALLS):
        layout, mode, shapes = draw_shapes(random, subject)
        dtype = list(DType)[number % 3]
        names = subject.names if number % 4 else subject.required
        special = number % 5 == 0
        specs = {
            name: draw_spec(random, dtype, shapes[name], written=name in overwritten)
            for name in names
        }
        storages = {name: draw_storage(random, specs[name], special) for name in names}
        attributes = operator.parse_attributes({"layout": layout, "rotary_mode": mode})
        plan = operator.check(specs, attributes)
        wanted = operator.reference({n: view(specs[n], storages[n]) for n in names}, plan)
        found = direct.run(operator.name, specs, storages, layout, mode)
        if found.keys() != wanted.keys():
            yield f"call {number}: outputs {sorted(found)}, expected {sorted(wanted)}"
            continue
        for name, golden in wanted.items():
            if signature.in_place:
                # the view holds the output, and what it does not show is as it was
                like = signature.outputs[name]
                expected = storages[like].copy()
                view(specs[like], expected)[...] = golden
                golden = expected
            same = canonical_nan(found[name]).tobytes() == canonical_nan(golden).tobytes()
            sums = name in ("grad_cos", "grad_sin")
            # a sum of any bit patterns overflows in one order and not in another
            close = sums and (special or compare(found[name], golden, dtype=dtype).passed)
            if not same and not close:
                yield f"call {number}: {name}, {dtype.value}, {mode}, layout {layout}, {specs}"


def compare_plans(direct: Direct, random: np.random.Generator, subject: Subject) -> Iterator[str]:
    """Ask for good and mutated calls and yield where contract and stage one disagree."""
    optional = set(subject.names) - set(subject.required)
    for number in range(MUTATIONS):
        layout, mode, shapes = draw_shapes(random, subject)
        dtypes = dict.fromkeys(subject.names, list(DType)[number % 3])
        names = list(subject.names if number % 3 else subject.required)
        for _ in range(int(random.integers(0, 3))):
            name = str(random.choice(names))
            shape = list(shapes[name])
            mutation = random.integers(0, 6)
            if mutation == 0:
                shape[int(random.integers(0, len(shape)))] = int(random.choice([0, 1, 2, 7, 1026]))
            elif mutation == 1:
                shape.insert(0, 1) if random.integers(0, 2) else shape.pop(0)
            elif mutation == 2:
                dtypes[name] = DType.FLOAT16
            elif mutation == 3:
                layout = int(random.choice([-1, 0, 1, 2, 3, 4, 5]))
            elif mutation == 4 and name in optional:
                names.remove(name)
            elif mutation == 5:
                mode = str(random.choice(["half", "interleave", "HALF"]))
            shapes[name] = tuple(shape)
        specs = {name: TensorSpec(dtypes[name], shapes[name]) for name in names}
        expected = _contract(subject.operator, specs, layout, mode)
        found = _stage_one(direct, subject.operator, specs, layout, mode)
        if expected != found:
            yield f"plan {number}: contract {expected}, stage one {found}: {layout} {mode} {specs}"


def _contract(operator: Operator, specs: Specs, layout: int, mode: str) -> tuple[str, int]:
    try:
        attributes = operator.parse_attributes({"layout": layout, "rotary_mode": mode})
        return ("workspace", operator.check(specs, attributes).workspace_bytes)
    except Problem as problem:
        return ("status", problem.aclnn_status or 0)


def _stage_one(
    direct: Direct, operator: Operator, specs: Specs, layout: int, mode: str
) -> tuple[str, int]:
    try:
        return ("workspace", direct.plan(operator.name, specs, layout, mode))
    except CallError as err:
        return ("status", err.args[0])


def compare_runs(direct: Direct, random: np.random.Generator, subject: Subject) -> Iterator[str]:
    """Run one call many times and yield a difference between the runs."""
    shapes = dict.fromkeys(subject.names, (2, 9, 7, 64))
    shapes |= dict.fromkeys(("cos", "sin"), (1, 9, 1, 64))
    specs = {name: TensorSpec(DType.BFLOAT16, shapes[name]) for name in subject.names}
    storages = {name: draw_storage(random, specs[name], special=False) for name in subject.names}
    runs = [direct.run(subject.operator.name, specs, storages, 1) for _ in range(DETERMINISM_RUNS)]
    for name in runs[0]:
        if len({run[name].tobytes() for run in runs}) != 1:
            yield f"{name} differs between runs"


def main(build: Path) -> int:
    """Compare all and return the program's exit status."""
    direct = Direct(build)
    random = np.random.default_rng(SEED)
    with np.errstate(all="ignore"):
        differences = [
            f"{subject.operator.name}, {line}"
            for subject in SUBJECTS
            for compared in (compare_results, compare_plans, compare_runs)
            for line in compared(direct, random, subject)
        ]
    broken = direct.close()
    for line in differences[:10]:
        print(line)
    print(f"{CALLS} calls, {MUTATIONS} plans, {len(differences)} differences, {broken} violations")
    return 1 if differences or broken else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
