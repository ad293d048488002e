"""An operator that overwrites its inputs: what it gets, and what the caller keeps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from opferry import errors
from opferry.core.dtypes import DType
from opferry.core.tensors import TensorSpec
from opferry_server.backends.aclnn.in_place import Overwritten
from tests.aclnn.test_backend import server
from tests.support import simulator
from tests.support.calls import assert_same_bits, forward_arrays, reference

Array = NDArray[Any]

STAGE_TWO = "aclnnApplyRotaryPosEmbV2"
HYGIENE = {"device.hygiene": ""}


def _gaps(array: Array) -> Array:
    wide = np.full((*array.shape[:-1], array.shape[-1] + 3), 9, array.dtype)
    wide[..., 1:-2] = array
    return wide[..., 1:-2]


WAYS: dict[str, Callable[[Array], Array]] = {
    "compact": lambda array: array,
    "swapped": lambda array: np.ascontiguousarray(array.swapaxes(0, 1)).swapaxes(0, 1),
    "with gaps": _gaps,
    "every other": lambda array: np.repeat(array, 2, axis=-1)[..., ::2],
    "expanded": lambda array: np.broadcast_to(array[:1], array.shape),
}
"""How the inputs lie in memory."""


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("hygiene", [False, True])
def test_each_run_sees_the_inputs_as_they_came(way: str, hygiene: bool) -> None:
    """Warmed up and repeated, views kept: the reference's bits, and the caller's data untouched."""
    arrays = {name: WAYS[way](array) for name, array in forward_arrays(rotated=8).items()}
    before = {name: array.copy() for name, array in arrays.items()}
    with server(options=HYGIENE if hygiene else None) as (_, client):
        result = client.apply_rotary_pos_emb(**arrays, keep_strides=True, warmup=2, repeat=3)
        assert_same_bits(result, reference(arrays))
        assert len(result.execution.timings.kernel_ns) == 3
    for name, array in before.items():
        assert (arrays[name] == array).all()


def test_a_try_that_failed_has_changed_nothing() -> None:
    """The device broke when the kernel had run: the next try has the inputs as they were."""
    arrays = forward_arrays()
    # the first is the known-answer case
    with server(f"{STAGE_TWO}:3:507015") as (_, client):
        with pytest.raises(errors.DeviceFaultError):
            client.apply_rotary_pos_emb(**arrays, repeat=3)
        assert_same_bits(client.apply_rotary_pos_emb(**arrays), reference(arrays))


@pytest.mark.parametrize("output", ["query_out", "key_out"])
def test_writing_behind_an_output_is_found(output: str) -> None:
    """With --device.hygiene the guards lie around what is overwritten, too."""
    number = ("query_out", "key_out").index(output)
    with server(f"{STAGE_TWO}:2:overrun:{number}", options=HYGIENE) as (_, client):
        with pytest.raises(errors.OperatorError, match=r"wrote outside of it.*behind") as caught:
            client.apply_rotary_pos_emb(**forward_arrays())
        assert caught.value.argument == output


def test_writing_between_the_elements_of_a_view_is_found() -> None:
    """The 64 bytes behind the query's last element are its storage's, which its view leaves out."""
    arrays = forward_arrays()
    wide = np.zeros((*arrays["query"].shape[:1], 8, *arrays["query"].shape[2:]), np.float32)
    view = wide[:, : arrays["query"].shape[1]]
    view[...] = arrays["query"]
    spec = TensorSpec(DType.FLOAT32, view.shape, (8 * 48, 48, 16, 1), 0, wide.shape)
    overwritten = Overwritten("query", "query_out", spec)
    storage = overwritten.storage(view).copy()
    output = np.ascontiguousarray(view)
    overwritten.check_gaps(output, view, storage, "none")
    storage[-1] ^= 1
    with pytest.raises(Exception, match="1 bytes of the storage of query have changed"):
        overwritten.check_gaps(output, view, storage, "none")


def test_an_element_that_is_not_written_is_as_the_input_was() -> None:
    """No pattern can tell; a comparison does."""
    arrays = forward_arrays()
    with server(f"{STAGE_TWO}:2:partial:1") as (_, client):
        result = client.apply_rotary_pos_emb(**arrays)
    assert result.key_out.flat[-1] == arrays["key"].flat[-1]
    assert (result.key_out.flat[:-1] == reference(arrays)["key_out"].flat[:-1]).all()


def test_a_package_need_not_have_every_operator() -> None:
    """It serves those that it has; another's is refused, not run by somebody else's build."""
    options = {"packages": f"mine={simulator.package('grad-only')}"}
    arrays = forward_arrays()
    with server(options=options) as (_, client):
        with pytest.raises(errors.NotSupportedError, match="ApplyRotaryPosEmb is not in") as caught:
            client.apply_rotary_pos_emb(**arrays, operator_package="mine")
        assert caught.value.argument == "operator_package"
        mine = next(p for p in client.server_info().operator_packages if p.name == "mine")
        assert mine.known_answer == "PASSED"
        assert_same_bits(client.apply_rotary_pos_emb(**arrays), reference(arrays))


def test_a_view_that_shares_memory_is_made_compact() -> None:
    """As far as strides tell at once: a view that might overlap is copied as well."""
    shape = (2, 3, 4)
    for strides, stays in (
        ((12, 4, 1), True),
        ((1, 2, 6), True),
        ((24, 8, 2), True),
        ((0, 4, 1), False),
        ((12, 3, 1), False),
    ):
        given = TensorSpec(DType.FLOAT32, shape, strides, 0, (100,))
        spec = Overwritten("query", "query_out", given).spec
        assert spec == (given if stays else TensorSpec(DType.FLOAT32, shape))
