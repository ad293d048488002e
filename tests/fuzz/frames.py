"""`make fuzz`: python -m tests.fuzz.frames [--inputs N] [--seed N].

Each input is a chunk, drawn from a seed. Its frame is written and must come back from the generated
parser; then a frame that is made of it, or of nothing, goes to both readers, which must agree:
the same chunk, the same message, or a refusal by both.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

from opferry.v1 import operator_service_pb2 as pb
from opferry.wire import Chunk, frames
from tests.support.frames import assert_agreement, read_generated, varint

INDEX, OFFSET, DATA = 0x08, 0x10, 0x1A
"""The tags of a chunk's fields."""

REQUEST, RESPONSE = 0x12, 0x1A
"""The tags of a chunk in a frame, from the client and from the server."""

OTHER_TAGS = (0x0A, 0x12, 0x1A, 0x0A, 0x22, 0x7A, 0x08, 0x10, 0x18, 0x0D, 0x09, 0x15, 0x11, 0x1D)
"""Other fields of a frame or a chunk: headers, results, unknown fields, wrong wire types."""

ODD_TAGS = (0x00, 0x02, 0x0B, 0x0C, 0x13, 0x14, 0x1B, 0x0E, 0x0F, 0x17, 0x2000_0000 << 3)
"""Field number zero, groups, wire types that there are not, a number that is too large."""

NUMBERS = (
    *(0, 1, 127, 128, 2**14 - 1, 2**14, 2**21, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**32 + 5),
    *(2**35, 2**63 - 1, 2**63, 2**64 - 1, 2**64 - 2**31, 2**64, 2**64 + 7, 2**69, 2**70),
)
"""Where sign, width or length of a number changes; from 2**63 on int64 is negative."""

HEADERS = (
    b"",
    pb.ExecuteHeader(operator_package="p").SerializeToString(),
    pb.ExecuteProgress(position=3, request_id="r").SerializeToString(),
    b"\x0a\x01\xff",
)
"""What the other frames hold: nothing, a header, progress, a text that is no UTF-8."""

SIZES = (127, 128, 16383, 16384)
"""Where the length of a payload's length changes."""


def draw_chunk(random: Random) -> Chunk:
    """Draw a chunk that may be written."""
    index = random.choice(NUMBERS[:8]) if random.random() < 0.6 else random.getrandbits(31)
    offset = random.choice(NUMBERS[:14]) if random.random() < 0.6 else random.getrandbits(63)
    size = random.choice(SIZES) if random.random() < 0.02 else random.randrange(40)
    return Chunk(index, offset, memoryview(random.randbytes(size)))


def _padding(random: Random) -> int:
    return random.choice((1, 2, 4, 5, 8, 9, 10)) if random.random() < 0.15 else 0


def _number(random: Random) -> int:
    return random.choice(NUMBERS) if random.random() < 0.7 else random.getrandbits(72)


def _tag(random: Random, tag: int) -> bytes:
    return varint(tag, _padding(random) if random.random() < 0.2 else 0)


def _sized(random: Random, content: bytes) -> bytes:
    """Return content behind its length, which may be wrong, or written too long."""
    length = len(content)
    if random.random() < 0.15:
        length = max(0, length + random.choice((-2, -1, 1, 2, 2**31, 2**32, 2**63, 2**64)))
    return varint(length, _padding(random)) + content


def _field(random: Random, tag: int) -> bytes:
    """Return a field of any content that its wire type has room for."""
    kind = tag & 7
    if kind == 0:
        body = varint(_number(random), _padding(random))
    elif kind == 2:
        content = random.choice(HEADERS) if random.random() < 0.3 else b""
        body = _sized(random, content or random.randbytes(random.randrange(8)))
    else:
        body = random.randbytes({1: 8, 5: 4}.get(kind, random.randrange(3)))
    return _tag(random, tag) + body


def _body(chunk: Chunk) -> bytes:
    """Return the fields of a chunk as they are usually written, without the frame around them."""
    frame = frames.chunk_frame(chunk)
    length = len(frame) - 1
    return frame[1 + len(varint(length - len(varint(length)))) :]


def _whole(random: Random, chunk: Chunk) -> bytes:
    """As it is sent."""
    return frames.chunk_frame(chunk, response=random.random() < 0.5)


def _cut(random: Random, chunk: Chunk) -> bytes:
    """Ends too early, or goes on."""
    frame = _whole(random, chunk)
    if random.random() < 0.3:
        return frame + random.randbytes(random.randrange(1, 4))
    return frame[: random.randrange(len(frame))]


def _spelled(random: Random, chunk: Chunk) -> bytes:
    """The usual fields, with numbers of any width, and varints and lengths of any form."""
    fields = b""
    for tag in (INDEX, OFFSET):
        if random.random() < 0.8:
            fields += _tag(random, tag) + varint(_number(random), _padding(random))
    if random.random() < 0.9:
        fields += _tag(random, DATA) + _sized(random, bytes(chunk.data[:40]))
    return _tag(random, random.choice((REQUEST, RESPONSE))) + _sized(random, fields)


def _mixed(random: Random, chunk: Chunk) -> bytes:
    """A chunk of any fields, in any order and number, known or not."""
    tags = random.choices((INDEX, OFFSET, DATA), k=random.randrange(4))
    tags += random.choices(OTHER_TAGS, k=random.choice((0, 0, 1, 2)))
    if random.random() < 0.2:
        tags.append(random.choice(ODD_TAGS))
    random.shuffle(tags)
    fields = b"".join(_field(random, tag) for tag in tags)
    if random.random() < 0.3:
        usual = _body(chunk)
        fields = usual + fields if random.random() < 0.5 else fields + usual
    return _tag(random, random.choice((REQUEST, RESPONSE))) + _sized(random, fields)


def _several(random: Random, chunk: Chunk) -> bytes:
    """More than one member of the oneof: the last one counts, and chunks are merged."""
    parts = [_whole(random, chunk)]
    for _ in range(random.randrange(1, 3)):
        another = random.choice((_whole, _spelled, _mixed, None))
        if another is None:
            parts.append(_field(random, random.choice(OTHER_TAGS + ODD_TAGS)))
        else:
            parts.append(another(random, draw_chunk(random)))
    random.shuffle(parts)
    return b"".join(parts)


def _damaged(random: Random, chunk: Chunk) -> bytes:
    """Bytes changed, taken out or put in, most of them at the beginning."""
    frame = bytearray(_whole(random, chunk))
    for _ in range(random.randrange(1, 4)):
        at = random.randrange(min(len(frame), 16) + 1)
        frame[at : at + random.randrange(3)] = random.randbytes(random.randrange(3))
    return bytes(frame)


def _noise(random: Random, _: Chunk) -> bytes:
    """Any bytes, some of them behind a tag that chunks have."""
    start = random.choice((b"", b"\x12", b"\x1a"))
    return start + random.randbytes(random.randrange(24))


SAMPLED = 11
"""Of how many frames the table at the end has one: prime to the number of kinds, and odd."""

KINDS: dict[str, Callable[[Random, Chunk], bytes]] = {
    "as it is sent": _whole,
    "cut or continued": _cut,
    "numbers and lengths": _spelled,
    "fields": _mixed,
    "several in one": _several,
    "damaged": _damaged,
    "noise": _noise,
}
"""The kinds of frames, which take turns."""


def _made_of(message_class: Any, module: Any, frame: bytes) -> str:
    """Return what a frame is to the readers, which agree: for the table at the end."""
    if read_generated(message_class, frame) is None:
        return "refused"
    is_request = message_class is pb.ExecuteRequest
    result = (module.read_request_frame if is_request else module.read_response_frame)(frame)
    if not isinstance(result, Chunk):
        return "message"
    return "chunk, read by hand" if result.data.obj is frame else "chunk, parsed"


def fuzz(count: int, *, seed: int = 0, module: Any = frames) -> Counter[tuple[str, str]]:
    """Compare the hand-written reader and writer with the generated code.

    Args:
        count: how many inputs to draw.
        seed: draws them.
        module: has `chunk_frame`, `read_request_frame` and `read_response_frame`.

    Returns:
        How many frames of each kind were what, in a sample: by (kind, what), where what is
        "refused", "message", "chunk, read by hand" or "chunk, parsed".

    Raises:
        AssertionError: for the first difference, with the input's number and its bytes.
    """
    random = Random(seed)
    seen: Counter[tuple[str, str]] = Counter()
    kinds = list(KINDS.items())
    ways = ((False, pb.ExecuteRequest), (True, pb.ExecuteResponse))
    for number in range(count):
        chunk = draw_chunk(random)
        is_response, message_class = ways[number & 1]
        written = module.chunk_frame(chunk, response=is_response)
        name, make = kinds[number % len(kinds)]
        frame = make(random, chunk)
        try:
            assert read_generated(message_class, written) == tuple(chunk)
            assert_agreement(frame, module)
        except AssertionError as error:
            said = f"seed {seed}, input {number} ({name}): {written.hex()}, {frame.hex()}"
            raise AssertionError(f"{said}: {error}") from error
        if number % SAMPLED == 0:
            seen[name, _made_of(message_class, module, frame)] += 1
    return seen


def main() -> None:
    """Fuzz, and print how many frames of each kind were what."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.frames", description=__doc__)
    parser.add_argument("--inputs", type=int, default=1_000_000, help="default: 1,000,000")
    parser.add_argument("--seed", type=int, default=0, help="default: 0")
    options = parser.parse_args()
    started_s = time.monotonic()
    seen = fuzz(options.inputs, seed=options.seed)
    whats = sorted({what for _, what in seen})
    print(f"{f'of one in {SAMPLED}':20}" + "".join(f"{what:>22}" for what in whats))
    for name in KINDS:
        print(f"{name:20}" + "".join(f"{seen[name, what]:>22,}" for what in whats))
    print(f"{options.inputs:,} inputs, no difference, {time.monotonic() - started_s:.0f} s")


if __name__ == "__main__":
    main()
