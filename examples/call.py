"""One call of the operator: on the server that OPFERRY_TARGET names, else on a CPU server."""

import os
from contextlib import nullcontext

import numpy as np

import opferry
from opferry_server.testing import running_server

gq, gk, cos, sin, q, k = (np.float16(np.random.rand(2, 64, n, 128)) for n in (8, 2, 1, 1, 8, 2))
server = nullcontext() if os.environ.get("OPFERRY_TARGET") else running_server()
with server as target, opferry.connect(target) as client:
    dq, dk, dcos, dsin = client.apply_rotary_pos_emb_grad(gq, gk, cos, sin, query=q, key=k)
print(dq.dtype, dq.shape, dk.shape, dcos.shape, dsin.shape)
