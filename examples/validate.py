"""One case judged on the server, which makes its inputs and its golden: a verdict comes back."""

import os
from contextlib import nullcontext

import opferry
from opferry.validation import Distribution, GoldenMode, Recipe, ValueRange
from opferry_server.testing import running_server

heads = {"grad_query_embed": 8, "grad_key_embed": 2, "cos": 1, "sin": 1, "query": 8, "key": 2}
inputs = {}
for name, count in heads.items():
    spec = opferry.TensorSpec(opferry.DType.FLOAT16, (2, 64, count, 128))
    inputs[name] = Recipe(spec, ValueRange(-1, 1), Distribution.NORMAL, seed=7)
server = nullcontext() if os.environ.get("OPFERRY_TARGET") else running_server()
with server as target, opferry.connect(target) as client:
    # a golden in float64 shows what rounding costs; by default it is rounded, as the operator is
    result = client.validate("apply_rotary_pos_emb_grad", inputs, golden_mode=GoldenMode.PROMOTE)
for output in result.outputs:
    print(output.short_name, output.status.value, output.reason)
    for worst in output.findings.worst[:2] if output.findings else ():
        print(" ", worst.element, f"off by {worst.element.abs_error:.2g}, {worst.ulps} ULP")
print(result.status.value, "by", result.execution.backend, result.execution.device)
