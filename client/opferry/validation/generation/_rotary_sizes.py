"""The forms of calls of the rotary operators, and sizes that fill a budget."""

from __future__ import annotations

from dataclasses import dataclass, replace

from opferry.core.dtypes import DType
from opferry.core.layouts import Layout
from opferry.core.tensors import TensorSpec
from opferry.operators._rotary_rules import MAX_WIDTH
from opferry.validation.generation._draws import Draws

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Form:
    """What decides over kernel template and broadcast."""

    layout: Layout
    """The order of the axes."""
    batches: bool
    """Whether B is more than 1; False for TND, which has none."""
    cos_repeats: bool
    """Whether one cos serves all batches."""
    heads: bool
    """Whether there is more than one head in query or key."""
    words: str
    """What it is, for the row's remark."""


GRAD_FORMS = (
    Form(Layout.BSND, True, True, True, "one cos for all batches"),
    Form(Layout.TND, False, False, True, "packed tokens"),
    Form(Layout.SBND, True, False, True, "sequence first, a cos for each batch"),
    Form(Layout.BSND, True, False, True, "a cos for each batch"),
    Form(Layout.TND, False, False, False, "packed tokens, one head: nothing broadcasts"),
    Form(Layout.BSND, True, False, False, "one head, a cos for each batch: nothing broadcasts"),
    Form(Layout.SBND, True, True, True, "sequence first, one cos for all batches"),
    Form(Layout.BSND, False, False, True, "one batch"),
    Form(Layout.SBND, True, False, False, "sequence first, one head: nothing broadcasts"),
    Form(Layout.BSND, True, True, False, "one head, one cos for all batches"),
    Form(Layout.SBND, False, False, True, "sequence first, one batch"),
    Form(Layout.BSND, False, False, False, "one batch, one head: nothing broadcasts"),
    Form(Layout.SBND, True, True, False, "sequence first, one head, one cos for all batches"),
)
"""Every layout with every broadcast that the backward's contract allows."""

FORWARD_FORMS = (
    *GRAD_FORMS,
    Form(Layout.BNSD, True, True, True, "heads first, one cos for all batches"),
    Form(Layout.BNSD, True, False, True, "heads first, a cos for each batch"),
    Form(Layout.BNSD, False, False, True, "heads first, one batch"),
    Form(Layout.BNSD, True, False, False, "heads first, one head, a cos for each batch"),
    Form(Layout.SBND, False, False, False, "sequence first, one batch, one head"),
    Form(Layout.BNSD, True, True, False, "heads first, one head, one cos for all batches"),
)
"""The same of the forward's."""

RANDOM, POWER, BELOW_POWER, BOUNDARY, ONES = (
    "any sizes",
    "powers of two",
    "powers of two less one",
    "boundary",
    "axes of one",
)
KINDS = (*[RANDOM] * 5, *[POWER] * 4, *[BELOW_POWER] * 4, *[BOUNDARY] * 2, ONES)
"""What kind of numbers the sizes are, each as often as it is to come."""

USUAL_WIDTHS = (32, 64, 80, 96, 128, 192, 256)
MOST_HEADS_BITS = 7
MOST_BATCHES_BITS = 4
MOST_NARROW_HEADS = 4096
"""The most heads of a case with the least D, in which N is the long axis."""


@dataclass(frozen=True)
class Sizes:
    """The extents of a call; TND has batch 1, and length is T."""

    layout: Layout
    batch: int
    cos_batch: int
    length: int
    query_heads: int
    key_heads: int
    width: int
    optional: bool
    """Whether the backward's query and key are given."""
    rotated: int = 0
    """The width of cos and sin; 0: that of the others."""

    @property
    def token_elements(self) -> int:
        """The elements of all inputs for each position of the sequence."""
        heads = (self.query_heads + self.key_heads) * (2 if self.optional else 1)
        return self.batch * heads * self.width + 2 * self.cos_batch * (self.rotated or self.width)

    @property
    def summed_terms(self) -> int:
        """The products that are added up for one element of grad_cos, from query and key."""
        return (self.query_heads + self.key_heads) * (self.batch // self.cos_batch)

    def specs(self, dtype: DType, vectors: tuple[str, str]) -> dict[str, TensorSpec]:
        """Return the contiguous inputs by name.

        Args:
            dtype: of all of them.
            vectors: the names of the two that come first, before cos and sin.
        """
        query, key = (
            self._shape(self.batch, self.query_heads, self.width),
            self._shape(self.batch, self.key_heads, self.width),
        )
        table = self._shape(self.cos_batch, 1, self.rotated or self.width)
        shapes = {vectors[0]: query, vectors[1]: key, "cos": table, "sin": table}
        if self.optional:
            shapes |= {"query": query, "key": key}
        return {name: TensorSpec(dtype, shape) for name, shape in shapes.items()}

    def _shape(self, batch: int, heads: int, width: int) -> Shape:
        extents = {"B": batch, "S": self.length, "T": self.length, "N": heads, "D": width}
        return tuple(extents[axis] for axis in self.layout.axes)


def draw_sizes(
    form: Form,
    kind: str,
    draws: Draws,
    *,
    optional: bool,
    itemsize: int,
    target_bytes: int,
    largest_bytes: int,
    multiple: int = 2,
) -> Sizes:
    """Return sizes of one form and kind.

    Args:
        form: what broadcasts.
        kind: one of `KINDS`.
        draws: the row's choices.
        optional: whether the backward's query and key are given.
        itemsize: the size of one element.
        target_bytes: what the inputs are to take, at least; `ONES` takes less.
        largest_bytes: what the inputs may take.
        multiple: what D is a multiple of, 2 or 4.
    """
    batch = _extent(kind, MOST_BATCHES_BITS, 2, draws) if form.batches else 1
    width = _width(kind, draws, multiple)
    most = _extent(kind, MOST_HEADS_BITS, 2, draws) if form.heads else 1
    if kind == BOUNDARY and form.heads and width == multiple:
        most = draws.between(2, MOST_NARROW_HEADS)
    query_heads, key_heads = _heads(kind, most, draws) if form.heads else (1, 1)
    sizes = Sizes(
        form.layout,
        batch,
        1 if form.cos_repeats else batch,
        1,
        query_heads,
        key_heads,
        width,
        optional,
    )
    target = target_bytes // itemsize
    while sizes.token_elements > target:
        smaller = _smaller(sizes)
        if smaller is None:
            break
        sizes = smaller
    if kind != ONES:
        sizes = replace(sizes, length=_length(kind, -(-target // sizes.token_elements)))
    while sizes.length > 1 and sizes.length * sizes.token_elements * itemsize > largest_bytes:
        # half of a power of two is one, and so is half of one less
        sizes = replace(sizes, length=sizes.length // 2)
    return sizes


def full_sizes(itemsize: int, largest_bytes: int, *, optional: bool) -> Sizes:
    """Return packed tokens whose inputs take the whole budget, or nearly."""
    # 32 or 16 rows of D = 256 for each token: every budget of whole 32 KiB is filled
    heads = (12, 3) if optional else (12, 2)
    sizes = Sizes(Layout.TND, 1, 1, 1, *heads, 256, optional)
    return replace(sizes, length=largest_bytes // (sizes.token_elements * itemsize))


def draw_rotated(sizes: Sizes, draws: Draws, multiple: int) -> Sizes:
    """Return sizes whose cos is narrower, if D allows it: by the least, to the least, or between.

    Args:
        sizes: of a call.
        draws: the row's choices.
        multiple: what the width of cos is a multiple of.
    """
    steps = sizes.width // multiple
    if steps < 2:
        return sizes
    chosen = draws.one_of((1, steps - 1, steps // 2, draws.between(1, steps - 1)))
    return replace(sizes, rotated=chosen * multiple)


def _width(kind: str, draws: Draws, multiple: int) -> int:
    least = multiple.bit_length() - 1
    if kind == BOUNDARY:
        return draws.one_of((multiple, MAX_WIDTH))
    if kind == POWER:
        return int(2 ** draws.between(least, 10))
    if kind == BELOW_POWER:
        # the nearest multiple below a power of two
        return int(2 ** draws.between(least + 1, 10)) - multiple
    if kind == ONES:
        return draws.one_of((multiple, 4, 64, 128))
    if draws.below(2):
        return draws.one_of(USUAL_WIDTHS)
    return multiple * draws.between(1, MAX_WIDTH // multiple)


def _extent(kind: str, bits: int, least: int, draws: Draws) -> int:
    if kind == ONES:
        return least
    if kind == POWER:
        return int(2 ** draws.between(1, bits))
    if kind == BELOW_POWER:
        return int(2 ** draws.between(2, bits)) - 1
    return draws.between(least, 2**bits)


def _heads(kind: str, most: int, draws: Draws) -> tuple[int, int]:
    """Return Nq and Nk, the larger of which is *most*, in all the ways in which they may differ."""
    group = draws.one_of((2, 4, 8))
    few = most - 1 if kind == RANDOM and draws.below(2) else most // group
    few = max(few, 1)
    return draws.one_of(((most, most), (most, few), (few, most), (1, most), (most, 1)))


def _smaller(sizes: Sizes) -> Sizes | None:
    """Return sizes with half the heads, or half the batches, of the same form; None: none."""
    query, key = max(sizes.query_heads // 2, 1), max(sizes.key_heads // 2, 1)
    if query == key and sizes.query_heads > sizes.key_heads:
        key -= 1
    elif query == key and sizes.query_heads < sizes.key_heads:
        query -= 1
    if min(query, key) >= 1 and (query, key) not in ((1, 1), (sizes.query_heads, sizes.key_heads)):
        return replace(sizes, query_heads=query, key_heads=key)
    if sizes.batch >= 4:
        half = sizes.batch // 2
        return replace(sizes, batch=half, cos_batch=half if sizes.cos_batch == sizes.batch else 1)
    return None


def _length(kind: str, least: int) -> int:
    """Return a length of the kind that is not below *least*."""
    if kind == POWER:
        return int(2 ** (least - 1).bit_length())
    if kind == BELOW_POWER:
        return int(2 ** least.bit_length()) - 1
    return least
