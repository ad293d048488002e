"""Ten requests of each operator by the backend on the simulator, in one process, two threads.

    python -m tests.aclnn.ten_requests [MISTAKE]

Made to be run under valgrind. A mistake is a defect that valgrind must report in spite of all
suppressions: "leak" (what malloc gave is lost), "read" (C code that ctypes calls reads behind a
block), "library" (a call of the simulator with a buffer that is too small), "undefined" (one with
an array of which nothing was written).
"""

from __future__ import annotations

import ctypes
import itertools
import sys
import threading

from tests.aclnn import in_process
from tests.support.calls import SUBJECTS


def main(mistake: str) -> None:
    """Run the requests, then make a mistake."""
    backend = in_process.open_backend()
    wrong: list[str] = []

    def five() -> None:
        for index, subject in itertools.product(range(5), SUBJECTS.values()):
            call, arrays = in_process.known_call(subject, repeat=1 + index % 2)
            outputs, _ = in_process.run(backend, call, arrays)
            if not in_process.is_right(outputs, arrays, call):
                wrong.append(f"request {index} of {subject.name}")

    five()
    other = threading.Thread(target=five)
    other.start()
    other.join()
    simulator = in_process.Simulator()
    wrong += simulator.violations()
    assert not wrong, wrong
    assert simulator.counter("kernels") >= 14 * len(SUBJECTS)
    if mistake:
        MISTAKES[mistake]()
    print("ten requests: done")


def _c() -> ctypes.CDLL:
    c = ctypes.CDLL(None)
    c.malloc.restype = ctypes.c_void_p
    return c


def _leak() -> None:
    for _ in range(16):
        _c().malloc(4321)


def _read() -> None:
    c = _c()
    c.memcmp.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
    block = c.malloc(64)
    c.memset.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t)
    c.memset(block, 0, 64)
    c.memcmp(block + 32, block, 64)


def _library() -> None:
    runtime, c = ctypes.CDLL("libascendcl.so"), _c()
    runtime.aclrtGetVersion.argtypes = (ctypes.c_void_p,) * 3
    runtime.aclrtGetVersion(c.malloc(4), c.malloc(4), c.malloc(2))


def _undefined() -> None:
    create = ctypes.CDLL("libnnopbase.so").aclCreateTensor
    pointer, size, enum = ctypes.c_void_p, ctypes.c_uint64, ctypes.c_int
    create.argtypes = [pointer, size, enum, pointer, ctypes.c_int64, enum, pointer, size, pointer]
    create.restype = pointer
    dims = _c().malloc(16)
    create(dims, 2, 0, dims, 0, 2, dims, 2, None)


MISTAKES = {"leak": _leak, "read": _read, "library": _library, "undefined": _undefined}

if __name__ == "__main__":
    main("".join(sys.argv[1:2]))
