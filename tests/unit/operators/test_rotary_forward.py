"""The reference of ApplyRotaryPosEmb: formulas, modes, partial rotation, bits, plan."""

from __future__ import annotations

from math import prod
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from opferry.core.dtypes import DType, canonical_nan
from opferry.core.tensors import TensorSpec
from opferry.operators.apply_rotary_pos_emb import ApplyRotaryPosEmb
from opferry.operators.apply_rotary_pos_emb_grad import APPLY_ROTARY_POS_EMB_GRAD
from tests.support.rounding import ROUND

Array = NDArray[Any]
Arrays = dict[str, Array]

AXES = {1: "BSND", 2: "SBND", 3: "BNSD", 4: "TND"}
MODES = ("half", "interleave", "quarter")
F32 = DType.FLOAT32

BLOCKED, FUSED = ApplyRotaryPosEmb(), ApplyRotaryPosEmb()


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    FUSED.compile_reference(2)


class Sizes(NamedTuple):
    """The extents of a call; TND reads batch * length as T."""

    layout: int = 1
    batch: int = 2
    length: int = 3
    query_heads: int = 4
    key_heads: int = 2
    width: int = 16
    rotated: int = 16
    cos_batch: int = 1

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of an input."""
        table = name in ("cos", "sin")
        heads = 1 if table else self.key_heads if name == "key" else self.query_heads
        sizes = {
            "B": self.cos_batch if table else self.batch,
            "S": self.length,
            "T": self.batch * self.length,
            "N": heads,
            "D": self.rotated if table else self.width,
        }
        return tuple(sizes[axis] for axis in AXES[self.layout])

    def arrays(self, seed: int, dtype: DType = F32) -> Arrays:
        """Return normally distributed inputs; all of cos and sin is independent."""
        random = np.random.default_rng(seed)
        return {
            name: random.standard_normal(self.shape(name), np.float32).astype(dtype.numpy)
            for name in ("query", "key", "cos", "sin")
        }


def compute(
    arrays: Arrays, layout: int = 1, mode: str = "half", *, with_: Any = BLOCKED, **how: Any
) -> Arrays:
    """Check a call of arrays and return the reference's outputs."""
    specs = {
        name: TensorSpec(DType.of(array.dtype, name), array.shape) for name, array in arrays.items()
    }
    plan = with_.check(specs, with_.parse_attributes({"layout": layout, "rotary_mode": mode}))
    results: Arrays = with_.reference(arrays, plan, **how)
    return results


def rotated(x: Array, mode: str) -> Array:
    """Return rot(x), element by element as the vendor's formulas say."""
    width = x.shape[-1]
    result = np.empty_like(x)
    for i in range(width):
        if mode == "interleave":
            partner, sign = (i + 1, -1) if i % 2 == 0 else (i - 1, 1)
        else:
            step = width // (2 if mode == "half" else 4)
            first = i // step % 2 == 0
            partner, sign = (i + step, -1) if first else (i - step, 1)
        result[..., i] = sign * x[..., partner]
    return result


def expected(arrays: Arrays, mode: str) -> Arrays:
    """Return both outputs in float64."""
    wide = {name: array.astype(np.float64) for name, array in arrays.items()}
    width = wide["cos"].shape[-1]
    results = {}
    for name in ("query", "key"):
        x, tail = wide[name][..., :width], wide[name][..., width:]
        y = x * wide["cos"] + rotated(x, mode) * wide["sin"]
        results[f"{name}_out"] = np.concatenate((y, tail), -1)
    return results


SIZES = st.builds(
    Sizes,
    layout=st.integers(1, 4),
    batch=st.integers(1, 4),
    length=st.integers(1, 4),
    query_heads=st.integers(1, 5),
    key_heads=st.integers(1, 5),
    width=st.sampled_from([4, 8, 12, 64]),
).flatmap(
    lambda sizes: st.builds(
        sizes._replace,
        rotated=st.sampled_from(range(4, sizes.width + 1, 4)),
        cos_batch=st.sampled_from([1, sizes.batch]),
    )
)


@given(sizes=SIZES, mode=st.sampled_from(MODES), seed=st.integers(0, 2**31))
def test_the_formula(sizes: Sizes, mode: str, seed: int) -> None:
    """In float64 both outputs are what the vendor's formulas say, in each layout and mode."""
    arrays = sizes.arrays(seed)
    found = compute(arrays, sizes.layout, mode, promote=True)
    for name, array in expected(arrays, mode).items():
        np.testing.assert_array_equal(found[name], array)


@given(
    sizes=SIZES,
    mode=st.sampled_from(MODES),
    dtype=st.sampled_from(list(DType)),
    seed=st.integers(0, 2**31),
)
def test_the_compiled_loops_have_the_same_bits(
    sizes: Sizes, mode: str, dtype: DType, seed: int
) -> None:
    """Whatever the layout, mode and width."""
    arrays = sizes.arrays(seed, dtype)
    wanted = compute(arrays, sizes.layout, mode)
    for name, array in compute(arrays, sizes.layout, mode, with_=FUSED).items():
        assert array.tobytes() == wanted[name].tobytes()


@pytest.mark.parametrize("dtype", list(DType))
@pytest.mark.parametrize("mode", MODES)
@given(data=st.data())
def test_two_products_a_sum_and_one_rounding(dtype: DType, mode: str, data: Any) -> None:
    """For any bits, infinities, NaN and subnormals too, by both references; the tail is a copy."""
    number = np.dtype(f"u{dtype.itemsize}")
    bits = {"query": (2, 2, 12), "key": (2, 1, 12), "cos": (2, 1, 8), "sin": (2, 1, 8)}
    arrays = {
        name: data.draw(hnp.arrays(number, shape)).view(dtype.numpy) for name, shape in bits.items()
    }
    wide = {name: array.astype(np.float32) for name, array in arrays.items()}
    for operator in (BLOCKED, FUSED):
        found = compute(arrays, 4, mode, with_=operator)
        for name in ("query", "key"):
            x = wide[name][..., :8]
            with np.errstate(all="ignore"):
                # the sign of one factor: exact, and so the product's
                y = x * wide["cos"] + rotated(x, mode) * wide["sin"]
            result = np.ascontiguousarray(found[f"{name}_out"][..., :8])
            if dtype is F32:
                assert canonical_nan(result).tobytes() == canonical_nan(y).tobytes()
            else:
                rounded = [ROUND[dtype](value) for value in y.ravel()]
                assert canonical_nan(result).view(number).ravel().tolist() == rounded
            tail = found[f"{name}_out"].view(number)[..., 8:]
            np.testing.assert_array_equal(tail, arrays[name].view(number)[..., 8:])


@pytest.mark.parametrize(
    ("mode", "wanted"),
    [
        ("half", [-3, -4, 1, 2]),
        ("interleave", [-2, 1, -4, 3]),
        ("quarter", [-2, 1, -4, 3]),
    ],
)
def test_four_elements_by_hand(mode: str, wanted: list[float]) -> None:
    """With cos 0 and sin 1 what comes out is rot(1, 2, 3, 4)."""
    arrays = _row([1, 2, 3, 4], cos=[0] * 4, sin=[1] * 4)
    assert compute(arrays, 4, mode)["query_out"].ravel().tolist() == wanted


@pytest.mark.parametrize(
    ("mode", "wanted"),
    [
        ("half", [-5, -6, -7, -8, 1, 2, 3, 4]),
        ("interleave", [-2, 1, -4, 3, -6, 5, -8, 7]),
        ("quarter", [-3, -4, 1, 2, -7, -8, 5, 6]),
    ],
)
def test_the_modes_differ_from_eight_elements_on(mode: str, wanted: list[float]) -> None:
    """Who takes one mode for another is found out."""
    arrays = _row([1, 2, 3, 4, 5, 6, 7, 8], cos=[0] * 8, sin=[1] * 8)
    assert compute(arrays, 4, mode)["query_out"].ravel().tolist() == wanted


def test_the_halves_of_cos_and_sin_stay_apart() -> None:
    """Each element takes cos and sin of its own place; in the backward the halves of sin cross."""
    arrays = _row([3, 5], cos=[7, 11], sin=[13, 17])
    assert compute(arrays, 4)["query_out"].ravel().tolist() == [3 * 7 - 5 * 13, 5 * 11 + 3 * 17]


def test_a_short_cos_rotates_its_own_halves() -> None:
    """With R = 4 of D = 8, element 0 goes with 2, not with 4; what is behind is passed on."""
    arrays = _row([1, 2, 3, 4, 5, 6, 7, 8], cos=[0] * 4, sin=[1] * 4)
    found = compute(arrays, 4)["query_out"].ravel().tolist()
    assert found == [-3, -4, 1, 2, 5, 6, 7, 8]


@pytest.mark.parametrize("layout", [1, 2, 4])
def test_the_backward_is_its_transpose(layout: int) -> None:
    """<gradient, forward(x)> is <backward(gradient), x> in float64, for cos of unequal halves."""
    arrays = Sizes(layout).arrays(1)
    gradients = {f"grad_{name}_embed": Sizes(layout).arrays(2)[name] for name in ("query", "key")}
    given_ = {**gradients, "cos": arrays["cos"], "sin": arrays["sin"]}
    specs = {name: TensorSpec(F32, array.shape) for name, array in given_.items()}
    backward = APPLY_ROTARY_POS_EMB_GRAD
    plan = backward.check(specs, backward.parse_attributes({"layout": layout}))
    back = backward.reference(given_, plan, promote=True)
    out = compute(arrays, layout, promote=True)
    for name in ("query", "key"):
        forward = np.vdot(gradients[f"grad_{name}_embed"].astype(np.float64), out[f"{name}_out"])
        np.testing.assert_allclose(forward, np.vdot(back[f"grad_{name}"], arrays[name]), rtol=1e-12)


@pytest.mark.parametrize("operator", [BLOCKED, FUSED], ids=["blocked", "fused"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("layout", [1, 3])
def test_strides_do_not_change_a_bit(operator: Any, mode: str, layout: int) -> None:
    """Equal inputs give equal bits, however they lie in memory; given outputs are filled."""
    arrays = Sizes(layout, 3, 70, 33, 5, 64, 32).arrays(5)
    wanted = compute(arrays, layout, mode)
    for way in (_columns, _reversed, _gaps):
        views = {name: way(array) for name, array in arrays.items()}
        for view in views.values():
            view.flags.writeable = False
        outputs = {name: way(np.full_like(array, np.nan)) for name, array in wanted.items()}
        found = compute(views, layout, mode, with_=operator, outputs=outputs)
        for name, array in wanted.items():
            assert found[name] is outputs[name]
            assert found[name].tobytes() == array.tobytes()


@pytest.mark.parametrize("dtype", list(DType))
@pytest.mark.parametrize("special", [np.inf, -np.inf, np.nan, 1e-45, "largest"])
def test_special_values_do_not_warn(dtype: DType, special: Any) -> None:
    """Infinities, NaN, subnormals and overflow are data; a warning would fail this test."""
    value = ml_dtypes.finfo(dtype.numpy).max if special == "largest" else np.float32(special)
    sizes = Sizes()
    arrays = {
        name: np.full(sizes.shape(name), value).astype(dtype.numpy)
        for name in ("query", "key", "cos", "sin")
    }
    assert {output.dtype for output in compute(arrays).values()} == {dtype.numpy}


PLANS = {
    (1, 1): ("BAB", 20020),
    (1, 2): ("AB", 20030),
    (2, 1): ("AB", 20030),
    (2, 2): ("AB", 20030),
    (3, 1): ("BA", 20011),
    (3, 2): ("ABA", 20010),
    (4, 1): ("AB", 20030),
}


@pytest.mark.parametrize(("layout", "cos_batch"), PLANS)
def test_plans_by_the_vendors_tiling(layout: int, cos_batch: int) -> None:
    """Template and key by layout and the batches of cos; 16 MiB of workspace in all."""
    sizes = Sizes(layout, cos_batch=cos_batch, rotated=8)
    names = ("sin", "cos", "key", "query")
    specs = {name: TensorSpec(F32, sizes.shape(name)) for name in names}
    plan = BLOCKED.check(specs, BLOCKED.parse_attributes({"layout": layout}))
    assert (plan.template, plan.tiling_key) == PLANS[layout, cos_batch]
    assert plan.workspace_bytes == 16 * 2**20
    assert list(plan.inputs) == ["query", "key", "cos", "sin"]
    assert {name: spec.shape for name, spec in plan.outputs.items()} == {
        "query_out": sizes.shape("query"),
        "key_out": sizes.shape("key"),
    }
    assert plan.output_bytes == 4 * (prod(sizes.shape("query")) + prod(sizes.shape("key")))


def test_one_batch_of_bsnd_is_of_template_ab() -> None:
    """The vendor's tiling asks first whether cos has as many batches as query: one is as many."""
    specs = {name: TensorSpec(F32, Sizes(batch=1).shape(name)) for name in Sizes().arrays(0)}
    assert BLOCKED.check(specs, BLOCKED.parse_attributes({})).template == "AB"


def _row(x: list[float], cos: list[float], sin: list[float]) -> Arrays:
    """Return inputs of T = N = 1."""
    values = {"query": x, "key": x, "cos": cos, "sin": sin}
    return {name: np.array([[value]], np.float32) for name, value in values.items()}


def _columns(array: Array) -> Array:
    return np.ascontiguousarray(array.T).T


def _reversed(array: Array) -> Array:
    return np.ascontiguousarray(array[::-1])[::-1]


def _gaps(array: Array) -> Array:
    wide = np.zeros((*array.shape[:-1], array.shape[-1] + 3), array.dtype)
    wide[..., 2:-1] = array
    return wide[..., 2:-1]
