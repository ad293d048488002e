"""Protobuf's variable-length integers, for the readers and writers that copy no payload."""

from __future__ import annotations


def varint(value: int) -> bytes:
    """Return a number from 0 on as a varint."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def read_varint(data: bytes | memoryview, at: int) -> tuple[int, int]:
    """Return the varint that begins at *at*, and where it ends.

    Raises:
        ValueError: if it is longer than it need be; parsers differ on those.
        IndexError: if the data end first.
    """
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if byte == 0 and shift:
                raise ValueError("varint not minimal")
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError("varint too long")
