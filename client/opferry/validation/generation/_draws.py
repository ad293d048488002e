"""Choices from a key: the same on every machine and with every Python."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TypeVar

_T = TypeVar("_T")

_WORD_BYTES = 8
_BLOCK_WORDS = 32


class Draws:
    """A stream of integers that depends on its key alone.

    The words are SHAKE-256 of the key and a block number. The random module would do, but promises
    for few of its methods that they stay as they are.
    """

    def __init__(self, *key: int | str) -> None:
        """Start the stream of a key; other keys give other streams."""
        self._key = "/".join(map(str, key))
        self._block = b""
        self._number = 0

    def below(self, count: int) -> int:
        """Return an integer from 0 to *count* - 1.

        Args:
            count: small beside 2^64, so that the remainder favours none that matters.
        """
        if not self._block:
            text = f"{self._key}/{self._number}"
            self._block = hashlib.shake_256(text.encode()).digest(_WORD_BYTES * _BLOCK_WORDS)
            self._number += 1
        word, self._block = self._block[:_WORD_BYTES], self._block[_WORD_BYTES:]
        return int.from_bytes(word, "little") % count

    def between(self, low: int, high: int) -> int:
        """Return an integer from *low* to *high*, both included."""
        return low + self.below(high - low + 1)

    def one_of(self, choices: Sequence[_T]) -> _T:
        """Return one of the choices; one that is there twice comes twice as often."""
        return choices[self.below(len(choices))]
