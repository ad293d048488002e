"""The operators as documented, in float32 on the CPU; see README.md beside the package."""

import ctypes
import json
import os
from pathlib import Path

import torch
from torch_npu import npu

SWITCHES = (
    "ACL_STREAM_TIMEOUT",
    "ASCEND_CUSTOM_OPP_PATH",
    "ASCEND_RT_VISIBLE_DEVICES",
    "TASK_QUEUE_ENABLE",
)

if "OPFERRY_STAND_IN_EXTENSION" in os.environ:
    ctypes.CDLL(os.environ["OPFERRY_STAND_IN_EXTENSION"])

AXES = {1: "BSND", 2: "SBND", 4: "TND"}
FORWARD_AXES = {"BSND": "BSND", "BSH": "BSND", "SBND": "SBND", "BNSD": "BNSD", "TND": "TND"}


def apply_rotary_pos_emb_grad(
    grad_query_embed,
    grad_key_embed,
    cos,
    sin,
    *,
    query=None,
    key=None,
    rotary_mode="half",
    layout=1,
):
    """Return grad_query, grad_key, grad_cos and grad_sin, as the wrapper on a device does."""
    inputs = {
        "grad_query_embed": grad_query_embed,
        "grad_key_embed": grad_key_embed,
        "cos": cos,
        "sin": sin,
    }
    if query is not None:
        inputs["query"] = query
    if key is not None:
        inputs["key"] = key
    _check_devices(inputs)
    _check_as_the_wrapper(inputs, rotary_mode, layout)
    accepted = _device_accepts(inputs, layout)
    return _run("aclnnApplyRotaryPosEmbGrad", inputs, accepted, _compute)


def apply_rotary_pos_emb(query, key, cos, sin, layout="BSND", rotary_mode="half"):
    """Return query_out and key_out, new tensors, as the wrapper on a device does."""
    inputs = {"query": query, "key": key, "cos": cos, "sin": sin}
    _check_devices(inputs)
    if layout not in FORWARD_AXES:
        raise ValueError(f"stand-in: layout {layout} is not known")
    if rotary_mode not in ("half", "quarter", "interleave"):
        raise ValueError(f"stand-in: rotary_mode {rotary_mode!r} is not known")
    for name, tensor in inputs.items():
        if tensor.numel() == 0:
            raise ValueError(f"stand-in: {name} is empty")
    accepted = _forward_accepts(inputs, FORWARD_AXES[layout], rotary_mode)
    return _run(
        "aclnnApplyRotaryPosEmbV2",
        inputs,
        accepted,
        lambda plain: [
            _rotate(plain[name], plain["cos"], plain["sin"], rotary_mode)
            for name in ("query", "key")
        ],
    )


def _check_devices(inputs):
    for name, tensor in inputs.items():
        if not isinstance(tensor, npu.NpuTensor):
            raise RuntimeError(f"{name} is not on the device npu:0")


def _run(function, inputs, accepted, compute):
    """Run an operator on the device, whose first stage takes the call or not."""
    _load_custom_package()
    if not accepted:
        raise npu.failure(function, 161002)
    _note(inputs)
    npu.raise_fault("operator")
    npu.Stream.launched = True
    plain = {name: tensor.as_subclass(torch.Tensor) for name, tensor in inputs.items()}
    results = compute(plain)
    unwritten = npu.fault("unwritten")
    if unwritten:
        whole = results[1].reshape(-1)
        results[1] = torch.empty(results[1].shape, dtype=whole.dtype)
        results[1].view(-1)[:-1] = whole[:-1]
    return tuple(tensor.as_subclass(npu.NpuTensor) for tensor in results)


def _check_as_the_wrapper(inputs, rotary_mode, layout):
    """What the wrapper refuses in Python; layout 3 passes."""
    first = inputs["grad_query_embed"]
    for name, tensor in inputs.items():
        if tensor.dim() not in (3, 4) or tensor.numel() == 0:
            raise ValueError(f"stand-in: {name} has {tensor.dim()} dimensions")
        if tensor.dtype != first.dtype:
            raise ValueError(f"stand-in: {name} has another dtype than grad_query_embed")
    if rotary_mode != "half":
        raise ValueError(f"stand-in: rotary_mode {rotary_mode!r} is not half")
    if layout not in (1, 2, 3, 4):
        raise ValueError(f"stand-in: layout {layout} is not known")
    if first.dim() != (3 if layout == 4 else 4):
        raise ValueError(f"stand-in: layout {layout} with {first.dim()} dimensions")
    if ("query" in inputs) != ("key" in inputs):
        raise ValueError("stand-in: query and key come together")
    if "query" in inputs and inputs["query"].shape != first.shape:
        raise ValueError("stand-in: query is not shaped as grad_query_embed")
    if "key" in inputs and inputs["key"].shape != inputs["grad_key_embed"].shape:
        raise ValueError("stand-in: key is not shaped as grad_key_embed")


def _device_accepts(inputs, layout):
    """Return whether the first stage takes what the wrapper let pass."""
    axes = AXES.get(layout)
    if axes is None or any(tensor.dim() != len(axes) for tensor in inputs.values()):
        return False
    gq, gk, cos = (
        dict(zip(axes, inputs[name].shape, strict=True))
        for name in ("grad_query_embed", "grad_key_embed", "cos")
    )
    width = gq["D"]
    return (
        inputs["cos"].shape == inputs["sin"].shape
        and width % 2 == 0
        and width <= 1024
        and {**gk, "N": gq["N"]} == gq
        and cos["N"] == 1
        and cos.get("B", 1) in (1, gq.get("B", 1))
        and {**cos, "N": gq["N"], **({"B": gq["B"]} if "B" in gq else {})} == gq
    )


def _forward_accepts(inputs, axes, rotary_mode):
    """Return whether the first stage takes what the wrapper let pass."""
    if any(tensor.dim() != len(axes) for tensor in inputs.values()):
        return False
    q, k, cos = (
        dict(zip(axes, inputs[name].shape, strict=True)) for name in ("query", "key", "cos")
    )
    multiple = 4 if rotary_mode == "quarter" else 2
    return (
        len({tensor.dtype for tensor in inputs.values()}) == 1
        and inputs["cos"].shape == inputs["sin"].shape
        and {**k, "N": q["N"]} == q
        and cos["N"] == 1
        and cos.get("B", 1) in (1, q.get("B", 1))
        and all(cos[axis] == q[axis] for axis in axes if axis in "ST")
        and cos["D"] <= q["D"] <= 1024
        and q["D"] % multiple == 0
        and cos["D"] % multiple == 0
    )


def _rotate(x, cos, sin, rotary_mode):
    width = cos.shape[-1]
    wide = x[..., :width].float()
    if rotary_mode == "interleave":
        turned = torch.stack((-wide[..., 1::2], wide[..., ::2]), -1).flatten(-2)
    elif rotary_mode == "half":
        first, second = wide.chunk(2, -1)
        turned = torch.cat((-second, first), -1)
    else:
        one, two, three, four = wide.chunk(4, -1)
        turned = torch.cat((-two, one, -four, three), -1)
    # two kernels: with addcmul the product might be fused with the sum
    rotated = (wide * cos.float()).add_(turned * sin.float())
    return torch.cat((rotated.to(x.dtype), x[..., width:]), -1)


def _compute(inputs):
    gq, gk, cos, sin = (
        inputs[name].float() for name in ("grad_query_embed", "grad_key_embed", "cos", "sin")
    )
    dtype = inputs["cos"].dtype
    results = [_rotate_back(gradient, cos, sin).to(dtype) for gradient in (gq, gk)]
    if "query" not in inputs:
        # allocated and not written, as by the wrapper
        return [*results, torch.full_like(inputs["cos"], 666), torch.full_like(inputs["sin"], 666)]
    grad_cos, grad_sin = 0, 0
    for gradient, value in ((gq, inputs["query"].float()), (gk, inputs["key"].float())):
        dims = [axis for axis, extent in enumerate(cos.shape) if extent == 1]
        first, second = value.chunk(2, -1)
        grad_cos = grad_cos + (gradient * value).sum(dims, keepdim=True)
        grad_sin = grad_sin + (gradient * torch.cat((-second, first), -1)).sum(dims, keepdim=True)
    return [*results, grad_cos.to(dtype), grad_sin.to(dtype)]


def _rotate_back(gradient, cos, sin):
    g1, g2 = gradient.chunk(2, -1)
    c1, c2 = cos.chunk(2, -1)
    s1, s2 = sin.chunk(2, -1)
    return torch.cat((c1 * g1 + s2 * g2, c2 * g2 - s1 * g1), -1)


def _load_custom_package():
    """Load the library of a custom package, as torch_npu does when it looks for an operator."""
    if "OPFERRY_STAND_IN_WITHOUT_PACKAGES" in os.environ:
        return
    for folder in os.environ.get("ASCEND_CUSTOM_OPP_PATH", "").split(":"):
        library = Path(folder, "op_api", "lib", "libcust_opapi.so")
        if folder and library.is_file():
            ctypes.CDLL(str(library))


def _note(inputs):
    path = os.environ.get("OPFERRY_STAND_IN_CALLS")
    if not path:
        return
    line = {
        "inputs": {
            name: {
                "shape": list(tensor.shape),
                "strides": list(tensor.stride()),
                "offset": tensor.storage_offset(),
                "storage_count": tensor.untyped_storage().nbytes() // tensor.element_size(),
                "contiguous": tensor.is_contiguous(),
            }
            for name, tensor in inputs.items()
        },
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "settings": npu.settings(),
        "environment": {name: os.environ.get(name) for name in SWITCHES},
    }
    with open(path, "a") as file:
        file.write(json.dumps(line) + "\n")
