"""Ten requests of the backend on the simulator, in one process and from two threads.

    python -m tests.aclnn.ten_requests [MISTAKE]

Made to be run under valgrind. A mistake is a defect that valgrind must report in spite of all
suppressions: "leak" (what malloc gave is lost), "read" (a byte behind a block is read by C code that
ctypes calls), "library" (a call of the simulator with a buffer that is too small).
"""

from __future__ import annotations

import ctypes
import sys
import threading

from tests.aclnn import in_process


def main(mistake: str) -> None:
    """Run the requests, then make a mistake."""
    backend = in_process.open_backend()
    wrong: list[str] = []

    def five() -> None:
        for index in range(5):
            call, arrays = in_process.known_call(repeat=1 + index % 2)
            outputs, _ = in_process.run(backend, call, arrays)
            if not in_process.is_right(outputs, arrays, call):
                wrong.append(f"request {index}")

    five()
    other = threading.Thread(target=five)
    other.start()
    other.join()
    simulator = in_process.Simulator()
    wrong += simulator.violations()
    assert not wrong, wrong
    assert simulator.counter("kernels") >= 14
    if mistake:
        MISTAKES[mistake]()
    print("ten requests: done")


def _leak() -> None:
    c = ctypes.CDLL(None)
    c.malloc.restype = ctypes.c_void_p
    for _ in range(16):
        c.malloc(4321)


def _read() -> None:
    c = ctypes.CDLL(None)
    c.malloc.restype = ctypes.c_void_p
    c.memcmp.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
    block = c.malloc(64)
    c.memset.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t)
    c.memset(block, 0, 64)
    c.memcmp(block + 32, block, 64)


def _library() -> None:
    runtime = ctypes.CDLL("libascendcl.so")
    c = ctypes.CDLL(None)
    c.malloc.restype = ctypes.c_void_p
    runtime.aclrtGetVersion.argtypes = (ctypes.c_void_p,) * 3
    runtime.aclrtGetVersion(c.malloc(4), c.malloc(4), c.malloc(2))


MISTAKES = {"leak": _leak, "read": _read, "library": _library}

if __name__ == "__main__":
    main("".join(sys.argv[1:2]))
