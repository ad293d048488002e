"""Records of runs, made from real comparisons of arrays with faults in them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from itertools import pairwise
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from opferry.core.dtypes import DType
from opferry.validation import Comparison, compare
from opferry.validation.records import FORMAT, CaseRecord, InputRecord, OutputRecord, RunRecord
from opferry.validation.rounding import FORMATS

Array = NDArray[Any]

MOST_BINS = (16, 8, 16)
"""The bins of a heat map's axes, at most."""

SHAPE = (2, 64, 8, 64)
"""An output's extents: batch, token, head and dim."""


def run_record(**changes: Any) -> RunRecord:
    """Return a run's first line; *changes* replace values of it, also such as server__backend."""
    record: dict[str, Any] = {
        "kind": "run",
        "format": FORMAT,
        "opferry_version": "0.1.0",
        "started": "2026-03-01T09:30:00+00:00",
        "case_file": "cases/rotary.csv",
        "case_file_sha256": "ab" * 32,
        "row_count": 1,
        "command": ["opferry", "validate", "-i", "cases/rotary.csv", "--seed", "7"],
        "reproduce": ["opferry", "validate", "-i", "cases/rotary.csv", "--seed", "7"],
        "target": "127.0.0.1:50051",
        "server": {
            "opferry_version": "0.1.0",
            "backend": "cpu",
            "real_device": False,
            "reference_kernel": "numpy-blocked",
            "versions": {"numpy": "2.4.6", "python": "3.11.7"},
            "workers": [{"name": "worker-0", "device": "cpu:0"}],
        },
        "settings": {
            "seed": 7,
            "standard": "mixed",
            "edition": "current",
            "golden_mode": "Enable",
            "repeat": 3,
            "warmup": 0,
            "exclusive": False,
            "deterministic": False,
            "check": True,
            "operator_package": "",
            "inputs": "client",
        },
    }
    for name, value in changes.items():
        outer, _, inner = name.partition("__")
        if inner:
            record[outer][inner] = value
        else:
            record[outer] = value
    return record  # type: ignore[return-value]


def output_record(
    actual: Array,
    golden: Array,
    *,
    name: str = "grad_query",
    short_name: str = "dq",
    standard: str = "mixed",
) -> OutputRecord:
    """Return the record of an output, judged by a real comparison.

    Args:
        actual: the output.
        golden: its golden, of the same dtype and shape.
        name: the output's name.
        short_name: the name by which users know it.
        standard: the comparison standard.
    """
    dtype = DType.of(actual.dtype, "actual")
    found = compare(actual, golden, standard, dtype=dtype)
    a, g = actual.astype(np.float64), golden.astype(np.float64)
    with np.errstate(all="ignore"):
        relative = np.abs(a - g) / (np.abs(g) + 1e-7)
        ulps = np.abs(_ordered(actual, dtype) - _ordered(golden, dtype))
        finite = np.isfinite(a) & np.isfinite(g)
        passing = np.abs(a - g) <= 2**-16 + 2**-10 * np.abs(g)
    failing = ~np.where(finite, passing, np.isnan(a) & np.isnan(g))
    return {
        "name": name,
        "short_name": short_name,
        "status": "PASS" if found.passed else "FAIL",
        "reason": found.reason,
        "dtype": dtype.value,
        "shape": list(actual.shape),
        "digest": xxhash.xxh3_64_hexdigest(actual.tobytes()),
        "golden_digest": xxhash.xxh3_64_hexdigest(golden.tobytes()),
        "thresholds": {key: _number(value) for key, value in found.thresholds.items()},
        "figures": _figures(found),
        "worst": _worst(a, g, ulps, finite),
        "relative_errors": _histogram(relative[finite]),
        "ulp_distances": _histogram(ulps[finite]),
        "statistics": {
            "max_rel_error": found.max_rel_error,
            "mean_rel_error": found.mean_rel_error,
            "rmse": float(np.sqrt(np.mean((a - g)[finite] ** 2))),
            "small_error_count": 0,
        },
        "heat_map": None if found.passed else _heat_map(failing),
        "failing_slice": None if found.passed else _slice(a, g, failing),
    }  # type: ignore[typeddict-item]


def case_record(
    row: int = 2,
    name: str = "case",
    status: str = "PASS",
    reason: str = "",
    outputs: Iterable[OutputRecord] = (),
    **changes: Any,
) -> CaseRecord:
    """Return the record of a case; *changes* replace figures."""
    listed = list(outputs)
    figures: dict[str, Any] = {
        "precision_status": status,
        "reason": reason,
        "standard": "mixed",
        "edition": "current",
        "golden_mode": "Enable",
        "seed": 7,
    }
    for output in listed:
        figures |= {f"{output['name']}_{key}": value for key, value in output["figures"].items()}
    if listed:
        figures |= {
            "request_id": f"{row:032x}",
            "run_count": 3,
            "worker": "worker-0",
            "device": "cpu:0",
            "backend": "cpu",
            "real_device": False,
            "soc_name": "",
            "cann_version": "",
            "operator_package": "built-in",
            "package_digest": "",
            "known_answer": "PASSED",
            "library_file": "",
            "queue_us": 21.4,
            "upload_us": 310.0,
            "host_to_device_us": 0.0,
            "stage_one_us": 0.0,
            "kernel_us": 812.5,
            "kernel_min_us": 790.1,
            "kernel_max_us": 955.0,
            "device_to_host_us": 0.0,
            "download_us": 120.0,
            "upload_bytes": 2**20,
            "download_bytes": 2**19,
            "total_us": 2400.75,
        }
    return {
        "kind": "case",
        "row": row,
        "name": name,
        "operator": "apply_rotary_pos_emb_grad",
        "columns": {"testcase_name": name, "api_name": "aclnnApplyRotaryPosEmbGrad", "remark": ""},
        "groups": {"dtype": "float32", "layout": "BSND", "template": "AB"},
        "attributes": {"layout": "BSND", "rotary_mode": "half"},
        "inputs": [input_record("grad_query_embed", row), input_record("cos", row)],
        "figures": {**figures, **changes},
        "outputs": listed,
    }


def input_record(name: str, number: int, **changes: Any) -> InputRecord:
    """Return the record of an input."""
    record: dict[str, Any] = {
        "name": name,
        "dtype": "float32",
        "shape": list(SHAPE),
        "strides": None,
        "storage_offset": 0,
        "storage_shape": None,
        "range": [-2.0, 2.0],
        "distribution": "uniform",
        "digest": xxhash.xxh3_64_hexdigest(f"{name} {number}".encode()),
    }
    return {**record, **changes}  # type: ignore[typeddict-item]


def golden(seed: int = 0, shape: tuple[int, ...] = SHAPE) -> Array:
    """Return values as a golden may have them."""
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def rounded_off(values: Array, seed: int = 1) -> Array:
    """Return values of which a third are a few units in the last place off."""
    random = np.random.default_rng(seed)
    off = random.integers(-3, 4, values.shape) * (random.random(values.shape) < 1 / 3)
    return (values + off * np.spacing(np.abs(values))).astype(values.dtype)


def wrong_last_head(values: Array) -> Array:
    """Return values whose last head is that of another computation in some of its dims."""
    wrong = rounded_off(values)
    half = values.shape[-1] // 2
    wrong[..., -1, half:] = np.roll(values[..., -1, half:], 1, axis=-1)
    return wrong


def with_nan(values: Array) -> Array:
    """Return values of which three are not finite."""
    wrong = values.copy()
    wrong.reshape(-1)[[5, 77]] = np.nan
    wrong.reshape(-1)[500] = np.inf
    return wrong


def every_verdict() -> list[CaseRecord]:
    """Return a case of each verdict, two of them failing."""
    right = golden()
    passing = output_record(rounded_off(right), right)
    wrong = output_record(wrong_last_head(right), right)
    broken = output_record(with_nan(right), right, name="grad_key", short_name="dk")
    suppressed: Any = {
        **output_record(right, right, name="grad_cos", short_name="dcos"),
        "status": "SUPPRESSED",
        "reason": "",
        "digest": "",
        "golden_digest": "",
        "thresholds": {},
        "figures": {},
        "worst": [],
        "statistics": {},
        "relative_errors": {"exact_count": 0, "counts": {}},
        "ulp_distances": {"exact_count": 0, "counts": {}},
    }
    cases = [
        case_record(2, "bsnd_fp32_passes", outputs=[passing, suppressed]),
        case_record(
            3,
            "bsnd_fp32_wrong_last_head",
            "FAIL",
            f"grad_query: {wrong['reason']}",
            [wrong, broken, suppressed],
        ),
        case_record(4, "tnd_fp16_refused", "ERROR", "cos: shape [3] is not allowed"),
        case_record(5, "tnd_fp16_not_run", "NOT RUN", "the run stopped at row 4"),
        case_record(6, "tnd_fp16_disabled", "DISABLED", "is_enabled is False"),
        case_record(7, "tnd_fp16_nan", "FAIL", f"grad_key: {broken['reason']}", [broken]),
    ]
    for case in cases[2:]:
        case["groups"] = {"dtype": "float16", "layout": "TND", "template": ""}
    view = input_record("sin", 3, strides=[8192, 64, 0, 1], storage_offset=16)
    cases[1]["inputs"].append({**view, "storage_shape": [16400], "range": ["-inf", "inf", "nan"]})
    return cases


def write_record(path: Path, *lines: Any) -> Path:
    """Write a record; bytes and texts as they are, anything else as a line of JSON."""
    with path.open("wb") as stream:
        for line in lines:
            if isinstance(line, bytes):
                stream.write(line)
            else:
                text = line if isinstance(line, str) else json.dumps(line, allow_nan=False)
                stream.write(text.encode() + b"\n")
    return path


def write_run(path: Path, cases: Iterable[CaseRecord], **changes: Any) -> Path:
    """Write a record of a run with some cases."""
    listed = list(cases)
    return write_record(path, run_record(**{"row_count": len(listed), **changes}), *listed)


def _number(value: float) -> Any:
    return value if isfinite(value) else str(value)


def _figures(found: Comparison) -> dict[str, Any]:
    names = ("element_count", "passing_count", "share", "max_abs_error", "mean_rel_error")
    figures = {name: getattr(found, name) for name in (*names, "max_rel_error", "mismatch_count")}
    return {name: _number(value) for name, value in figures.items()}


def _ordered(values: Array, dtype: DType) -> Array:
    """Return the place of each value among all of its dtype."""
    bits = values.view(f"u{dtype.itemsize}").astype(np.int64)
    top = 1 << (8 * dtype.itemsize - 1)
    assert FORMATS[dtype].bits(-1.0) & top
    return np.where(bits & top, top - bits, bits)


def _worst(a: Array, g: Array, ulps: Array, finite: Array) -> list[dict[str, Any]]:
    badness = np.where(finite, np.abs(a - g), np.where(np.isnan(g), -1.0, np.inf))
    places = np.argsort(-badness, axis=None, kind="stable")[:8]
    found = []
    for place in places:
        index = np.unravel_index(place, a.shape)
        if badness[index] > 0:
            found.append(
                {
                    "index": [int(i) for i in index],
                    "actual": _number(float(a[index])),
                    "golden": _number(float(g[index])),
                    "abs_error": _number(float(abs(a[index] - g[index]))),
                    "ulps": int(ulps[index]) if finite[index] else None,
                }
            )
    return found


def _histogram(errors: Array) -> dict[str, Any]:
    present = errors[errors > 0].astype(np.float64)
    exponents, counts = np.unique(np.frexp(present)[1] - 1, return_counts=True)
    return {
        "exact_count": int((errors == 0).sum()),
        "counts": {str(e): int(n) for e, n in zip(exponents, counts, strict=True)},
    }


def _heat_map(failing: Array) -> Mapping[str, list[int]]:
    flat = failing.reshape(-1, *failing.shape[-2:])
    bins = tuple(map(min, flat.shape, MOST_BINS))
    edges = [
        list(pairwise(i * n // k for i in range(k + 1)))
        for n, k in zip(flat.shape, bins, strict=True)
    ]
    counts = [
        int(flat[slice(*p), slice(*h), slice(*d)].sum())
        for p in edges[0]
        for h in edges[1]
        for d in edges[2]
    ]
    return {"extents": list(flat.shape), "bins": list(bins), "failing": counts}


def _slice(a: Array, g: Array, failing: Array) -> dict[str, list[Any]]:
    index = np.unravel_index(int(failing.argmax()), a.shape)[:-1]
    return {
        "index": [*(int(i) for i in index), 0],
        "actual": [_number(float(value)) for value in a[index]],
        "golden": [_number(float(value)) for value in g[index]],
    }
