"""torch.npu of the stand-in: one device whose memory is the host's."""

import json
import os
import time
from pathlib import Path

import torch

_state = {"device": None, "op_timeout_ms": None}


def fault(*places):
    """Return the fault that waits for one of these places, and remove it; None if there is none."""
    path = Path(os.environ.get("OPFERRY_STAND_IN_FAULT", "/nowhere"))
    if not path.exists():
        return None
    found = json.loads(path.read_text())
    if found["at"] not in places:
        return None
    path.unlink()
    return found


def raise_fault(place):
    """Raise the fault that waits for this place, if there is one."""
    found = fault(place)
    if found:
        raise RuntimeError(found["text"])


def failure(what, code):
    """Return an error with a status as torch_npu words it."""
    return RuntimeError(
        f"{what}:stand-in NPU function error: call {what} failed, error code is {code}\n"
        f"[ERROR] (PID:{os.getpid()}, Device:0, RankID:-1) ERR01100 OPS call acl api failed"
    )


class NpuTensor(torch.Tensor):
    """A tensor on the stand-in's device."""


def patch_tensors():
    """Let `Tensor.to` take the device "npu:0", and copies come back from it."""
    to, copy_ = torch.Tensor.to, torch.Tensor.copy_

    def npu_to(self, *args, **kwargs):
        target = args[0] if args else kwargs.get("device")
        if not str(target).startswith("npu"):
            return to(self, *args, **kwargs)
        if _state["device"] is None or str(target) != "npu:0":
            raise failure("aclrtGetCurrentContext", 107002)
        raise_fault("copy_in")
        return self.clone().as_subclass(NpuTensor)

    def npu_copy_(self, source, non_blocking=False):
        if isinstance(source, NpuTensor):
            raise_fault("copy_out")
            source = source.as_subclass(torch.Tensor)
        return copy_(self, source, non_blocking)

    torch.Tensor.to, torch.Tensor.copy_ = npu_to, npu_copy_


def set_device(device):
    """Choose the device; only the one that ASCEND_RT_VISIBLE_DEVICES shows is there."""
    if "ASCEND_RT_VISIBLE_DEVICES" not in os.environ or str(device) not in ("0", "npu:0"):
        raise failure("aclrtSetDevice", 107001)
    _state["device"] = 0
    torch.set_num_threads(1)


def set_op_timeout_ms(timeout_ms):
    """Note how long an operator may run."""
    _state["op_timeout_ms"] = timeout_ms


def get_device_name(device=None):
    """Return the device's name, which says that it is simulated."""
    return os.environ.get("OPFERRY_STAND_IN_SOC", "Ascend950PR-simulated")


class Stream:
    """A stream on which everything is done at once."""

    launched = False

    def synchronize(self):
        """Raise what went wrong in the operators that were launched."""
        if Stream.launched:
            Stream.launched = False
            raise_fault("synchronize")
        Event.synchronized_ns = time.perf_counter_ns()


def current_stream(device=None):
    """Return the one stream."""
    return Stream()


class Event:
    """A point in time on the stream."""

    synchronized_ns = 0

    def __init__(self, enable_timing=False):
        self._timed = enable_timing
        self._at_ns = None

    def record(self, stream=None):
        """Note the time."""
        self._at_ns = time.perf_counter_ns()

    def elapsed_time(self, end):
        """Return the milliseconds until a later event."""
        if not (self._timed and end._timed and self._at_ns and end._at_ns):
            raise failure("aclrtEventElapsedTime", 107017)
        if Event.synchronized_ns < end._at_ns:
            raise RuntimeError("the stand-in: the stream was not synchronized after the event")
        return (end._at_ns - self._at_ns) / 1e6


def settings():
    """Return what was set, for the record of calls."""
    return dict(_state)
