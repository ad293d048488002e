"""The same with torch: forward and backward run on the server, and torch differentiates."""

import os
from contextlib import nullcontext

import torch

import opferry.torch
from opferry_server.testing import running_server

q, k, cos, sin = (torch.rand(2, 64, n, 128, requires_grad=True) for n in (8, 2, 1, 1))
server = nullcontext() if os.environ.get("OPFERRY_TARGET") else running_server()
with server as target:
    opferry.torch.use(target)
    query, key = opferry.torch.apply_rotary_pos_emb(q, k, cos, sin)
    (query.sum() + key.square().sum()).backward()
print(query.shape, key.shape, q.grad.shape, cos.grad.shape)
