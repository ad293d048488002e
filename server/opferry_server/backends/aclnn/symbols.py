"""Every C function and constant that the backend uses: data only.

`source` says where a prototype or value can be checked: "header" (CANN's own headers), "typedef"
(a function pointer type in torch_npu's op-plugin), or "document" (no header that can be had without
CANN; unverified until `opferry-server doctor --abi` ran on a host).
"""

from __future__ import annotations

from ctypes import (
    POINTER,
    c_char_p,
    c_float,
    c_int,
    c_int32,
    c_int64,
    c_size_t,
    c_uint32,
    c_uint64,
    c_void_p,
)
from typing import Any, Literal, NamedTuple

Source = Literal["header", "typedef", "document"]


class Symbol(NamedTuple):
    """One C function."""

    name: str
    """Its name."""
    library: str
    """Which of `LIBRARIES` holds it."""
    restype: Any
    """What it returns."""
    argtypes: tuple[Any, ...]
    """Its parameters. A pointer to an opaque object is a c_void_p."""
    source: Source
    """Where the prototype can be checked."""


class Constant(NamedTuple):
    """One value of an enum or a macro."""

    name: str
    """Its name in C."""
    value: int
    """Its value."""
    source: Source
    """Where it can be checked."""


LIBRARIES: dict[str, tuple[str, ...]] = {
    "runtime": ("libascendcl.so",),
    "nnopbase": ("libnnopbase.so",),
    "operators": ("libopapi_transformer.so", "libopapi.so"),
}
"""The file names of each library, the newer split before the older umbrella."""

_HANDLE = POINTER(c_void_p)
_STREAM = c_void_p


def _runtime(name: str, *argtypes: Any, restype: Any = c_int) -> Symbol:
    return Symbol(name, "runtime", restype, argtypes, "header")


SYMBOLS: tuple[Symbol, ...] = (
    _runtime("aclInit", c_char_p),
    _runtime("aclFinalize"),
    _runtime("aclGetRecentErrMsg", restype=c_char_p),
    _runtime("aclrtGetSocName", restype=c_char_p),
    _runtime("aclrtGetVersion", POINTER(c_int32), POINTER(c_int32), POINTER(c_int32)),
    _runtime("aclrtGetDeviceCount", POINTER(c_uint32)),
    _runtime("aclrtSetDevice", c_int32),
    _runtime("aclrtResetDevice", c_int32),
    _runtime("aclrtCreateContext", _HANDLE, c_int32),
    _runtime("aclrtDestroyContext", c_void_p),
    _runtime("aclrtSetCurrentContext", c_void_p),
    _runtime("aclrtCtxSetSysParamOpt", c_int, c_int64),
    _runtime("aclrtSetOpExecuteTimeOutV2", c_uint64, POINTER(c_uint64)),
    _runtime("aclrtCreateStreamWithConfig", _HANDLE, c_uint32, c_uint32),
    _runtime("aclrtDestroyStream", _STREAM),
    _runtime("aclrtSynchronizeStreamWithTimeout", _STREAM, c_int32),
    _runtime("aclrtMalloc", _HANDLE, c_size_t, c_int),
    _runtime("aclrtFree", c_void_p),
    _runtime("aclrtMallocHost", _HANDLE, c_size_t),
    _runtime("aclrtFreeHost", c_void_p),
    _runtime("aclrtMemcpyAsync", c_void_p, c_size_t, c_void_p, c_size_t, c_int, _STREAM),
    _runtime("aclrtMemsetAsync", c_void_p, c_size_t, c_int32, c_size_t, _STREAM),
    _runtime("aclrtGetMemInfo", c_int, POINTER(c_size_t), POINTER(c_size_t)),
    _runtime("aclrtCreateEventExWithFlag", _HANDLE, c_uint32),
    _runtime("aclrtRecordEvent", c_void_p, _STREAM),
    _runtime("aclrtDestroyEvent", c_void_p),
    _runtime("aclrtEventElapsedTime", POINTER(c_float), c_void_p, c_void_p),
    Symbol(
        "aclCreateTensor",
        "nnopbase",
        c_void_p,
        (
            POINTER(c_int64),
            c_uint64,
            c_int,
            POINTER(c_int64),
            c_int64,
            c_int,
            POINTER(c_int64),
            c_uint64,
            c_void_p,
        ),
        "typedef",
    ),
    Symbol("aclDestroyTensor", "nnopbase", c_int, (c_void_p,), "typedef"),
    Symbol("aclSetAclOpExecutorRepeatable", "nnopbase", c_int, (c_void_p,), "document"),
    Symbol("aclDestroyAclOpExecutor", "nnopbase", c_int, (c_void_p,), "document"),
)
"""The functions of the runtime and of the operator base."""

CONSTANTS: tuple[Constant, ...] = (
    Constant("ACL_FLOAT", 0, "header"),
    Constant("ACL_FLOAT16", 1, "header"),
    Constant("ACL_BF16", 27, "header"),
    Constant("ACL_FORMAT_ND", 2, "header"),
    Constant("ACL_MEMCPY_HOST_TO_DEVICE", 1, "header"),
    Constant("ACL_MEMCPY_DEVICE_TO_HOST", 2, "header"),
    Constant("ACL_MEM_MALLOC_HUGE_FIRST", 0, "header"),
    Constant("ACL_HBM_MEM", 1, "header"),
    Constant("ACL_EVENT_TIME_LINE", 0x8, "header"),
    Constant("ACL_STREAM_FAST_LAUNCH", 0x1, "header"),
    Constant("ACL_STREAM_FAST_SYNC", 0x2, "header"),
    Constant("ACL_OPT_DETERMINISTIC", 0, "header"),
    Constant("ACL_ERROR_REPEAT_INITIALIZE", 100002, "header"),
)
"""The values that the calls take."""

VALUES: dict[str, int] = {constant.name: constant.value for constant in CONSTANTS}
"""The constants by name."""
