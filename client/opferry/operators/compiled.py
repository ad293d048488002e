# mypy: disable-error-code="attr-defined,no-any-return,untyped-decorator,no-untyped-call"
"""What compiled kernels share: how they are compiled and kept, and the threads that run them.

Vectors hold 16-bit elements by their bits: float16 as uint16 and bfloat16 as int16, so that the
type of a vector says how `read` and `write` convert them.

Needs numba, which the extra "server" brings; nothing imports this but what is about to compile.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import os
import platform
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, no_type_check

import numpy as np
from llvmlite import ir
from llvmlite.binding import get_host_cpu_features
from numba import config, njit, types
from numba.extending import intrinsic

from opferry.core.dtypes import DType

VECTORS = {DType.FLOAT32: np.float32, DType.FLOAT16: np.uint16, DType.BFLOAT16: np.int16}
"""The type of a vector's elements for each dtype."""

_F = Callable[..., Any]


def compiled(*signatures: Any) -> Callable[[_F], _F]:
    """Compile a function for the given signatures; what runs in it holds no lock of Python's.

    The machine code is kept in NUMBA_CACHE_DIR, or beside the source, or in the user's cache, for
    the next process of the same processor; where none of them can be used, in memory. No arithmetic
    is reordered or fused.
    """

    def decorate(function: _F) -> _F:
        given, config.CACHE_DIR = config.CACHE_DIR, _folder()
        try:
            return njit(list(signatures), nogil=True, cache=bool(config.CACHE_DIR))(function)
        except Exception:
            # a full disk, a file cut short; a true error comes again
            return njit(list(signatures), nogil=True)(function)
        finally:
            config.CACHE_DIR = given

    return decorate


@functools.cache
def _folder() -> str:
    """Return the folder for machine code; "" if there is none.

    numba looks whether the file of a function has changed, not whether what it calls has, or a
    constant that it takes from elsewhere: so each state of the sources has a folder of its own.
    """
    package = Path(__file__).parents[1]
    sources = hashlib.sha256()
    for name in ("core", "operators", "validation"):
        for path in sorted((package / name).rglob("*.py")):
            sources.update(path.read_bytes())
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    parents = (config.CACHE_DIR, str(Path(__file__).parent / "__pycache__"), home)
    for parent in filter(None, parents):
        folder = Path(parent) / f"opferry-{sources.hexdigest()[:16]}"
        with suppress(OSError):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                return str(folder)
    return ""


def _has_halves() -> bool:
    """Return whether the processor converts float16 by itself.

    Where it does not, LLVM calls a function that is not there, and ends the process.
    """
    if platform.machine() in ("aarch64", "arm64"):
        return True
    features = config.CPU_FEATURES
    if features is None:
        features = get_host_cpu_features().flatten()
    return bool(config.ENABLE_AVX) and "+f16c" in features


# No way meets a subnormal float, which the thread may flush to zero.
def _half_to_float(builder: Any, bits: Any) -> Any:
    word, single = ir.IntType(32), ir.FloatType()
    if _has_halves():
        return builder.fpext(builder.bitcast(bits, ir.HalfType()), single)
    wide = builder.zext(bits, word)
    sign = builder.shl(builder.and_(wide, word(0x8000)), word(16))
    size = builder.and_(wide, word(0x7FFF))
    normal = builder.add(builder.shl(size, word(13)), word(112 << 23))
    special = builder.add(normal, word(112 << 23))  # infinities and NaN
    small = builder.fmul(builder.sitofp(size, single), single(2.0**-24))
    found = builder.select(builder.icmp_unsigned(">=", size, word(0x7C00)), special, normal)
    is_small = builder.icmp_unsigned("<", size, word(0x400))
    found = builder.select(is_small, builder.bitcast(small, word), found)
    return builder.bitcast(builder.or_(found, sign), single)


def _float_to_half(builder: Any, value: Any) -> Any:
    """Round to nearest, ties to even; a NaN keeps its sign and upper bits, and is quiet."""
    word, single = ir.IntType(32), ir.FloatType()
    if _has_halves():
        return builder.bitcast(builder.fptrunc(value, ir.HalfType()), ir.IntType(16))
    bits = builder.bitcast(value, word)
    sign = builder.and_(builder.lshr(bits, word(16)), word(0x8000))
    size = builder.and_(bits, word(0x7FFFFFFF))
    odd = builder.and_(builder.lshr(size, word(13)), word(1))
    rounded = builder.add(builder.sub(size, word(112 << 23)), builder.add(odd, word(0xFFF)))
    normal = builder.lshr(rounded, word(13))
    # from 1/2 on, floats lie 2^-24 apart, as subnormal halves do: the addition rounds
    half = single(0.5)
    small = builder.fadd(builder.bitcast(size, single), half)
    small = builder.sub(builder.bitcast(small, word), builder.bitcast(half, word))
    payload = builder.and_(builder.lshr(size, word(13)), word(0x1FF))
    found = builder.select(builder.icmp_unsigned("<", size, word(0x38800000)), small, normal)
    overflows = builder.icmp_unsigned(">=", size, word(0x477FF000))  # from 65520 on
    found = builder.select(overflows, word(0x7C00), found)
    is_nan = builder.icmp_unsigned(">", size, word(0x7F800000))
    found = builder.select(is_nan, builder.or_(payload, word(0x7E00)), found)
    return builder.trunc(builder.or_(found, sign), ir.IntType(16))


def _bfloat_to_float(builder: Any, bits: Any) -> Any:
    word = ir.IntType(32)
    return builder.bitcast(builder.shl(builder.zext(bits, word), word(16)), ir.FloatType())


def _float_to_bfloat(builder: Any, value: Any) -> Any:
    """Round to nearest, ties to even; a NaN keeps its sign and upper bits, and is quiet."""
    word = ir.IntType(32)
    bits = builder.bitcast(value, word)
    odd = builder.and_(builder.lshr(bits, word(16)), word(1))
    rounded = builder.add(bits, builder.add(odd, word(0x7FFF)))
    quiet = builder.or_(bits, word(0x400000))
    is_nan = builder.fcmp_unordered("uno", value, value)
    upper = builder.lshr(builder.select(is_nan, quiet, rounded), word(16))
    return builder.trunc(upper, ir.IntType(16))


def _same(builder: Any, value: Any) -> Any:
    return value


_CONVERSIONS = {
    types.float32: (_same, _same),
    types.uint16: (_half_to_float, _float_to_half),
    types.int16: (_bfloat_to_float, _float_to_bfloat),
}
"""By the type of a vector's elements: to float32, and from it."""


def _address(context: Any, builder: Any, kind: Any, vector: Any, index: Any) -> Any:
    """Return the address of an element; without numba's look at negative indices."""
    if isinstance(kind, types.Array):
        vector = context.make_array(kind)(context, builder, vector).data
    return builder.gep(vector, [index])


@intrinsic
@no_type_check
def read(typing, vector, index):
    """Return ``vector[index]``, which a compiled function has, as float32."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        element = builder.load(_address(context, builder, vector, *args))
        return _CONVERSIONS[vector.dtype][0](builder, element)

    return types.float32(vector, types.int64), generate


@intrinsic
@no_type_check
def write(typing, vector, index, value):
    """Set ``vector[index]`` to a float32, rounded to nearest, ties to even."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        element = _CONVERSIONS[vector.dtype][1](builder, args[2])
        builder.store(element, _address(context, builder, vector, *args[:2]))
        return context.get_dummy_value()

    return types.void(vector, types.int64, types.float32), generate


class Threads:
    """Threads that take pieces of a range in turn; made when they are first needed."""

    def __init__(self, count: int) -> None:
        """Have *count* threads, the caller's included."""
        self.count = max(1, count)
        self._pool: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()

    def run(self, kernel: Callable[[int, int], None], length: int, piece: int) -> None:
        """Call ``kernel(first, last)`` for pieces that together are ``range(length)``.

        Args:
            kernel: what to do with a piece; it must not matter who does which.
            length: how much there is.
            piece: how much of it one call gets; the last may get less.
        """
        pieces = -(-length // piece)
        if self.count == 1 or pieces <= 1:
            kernel(0, length)
            return
        turn = itertools.count()  # next() of it is one step of the interpreter

        def work() -> None:
            while (number := next(turn)) < pieces:
                kernel(number * piece, min(length, (number + 1) * piece))

        helpers = min(self.count, pieces) - 1
        done = [self._executor().submit(work) for _ in range(helpers)]
        try:
            work()
        finally:
            for helper in done:
                helper.result()

    def _executor(self) -> ThreadPoolExecutor:
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(self.count - 1, thread_name_prefix="kernel")
            return self._pool
