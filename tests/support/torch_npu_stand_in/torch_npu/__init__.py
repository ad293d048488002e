"""A stand-in for torch_npu: not Huawei's package, no device. See README.md beside it."""

import sys

import torch

from torch_npu import npu

__version__ = "2.13.0+stand-in"

torch.npu = npu
torch.version.cann = "0.0.0+stand-in"
sys.modules["torch.npu"] = npu
npu.patch_tensors()
