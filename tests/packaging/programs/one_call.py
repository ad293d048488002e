"""Makes one call with whatever opferry is installed, and checks it against figures by hand.

    python one_call.py [HOST:PORT]

Without an address it runs a server of its own. Prints "right" if all outputs are.
"""

from __future__ import annotations

import contextlib
import sys

import numpy as np

import opferry

# One token, one head, D = 2: grad_query = (g1 c1 + g2 s2, g2 c2 - g1 s1), grad_key likewise;
# grad_cos = (g1 x1, g2 x2) and grad_sin = (-g1 x2, g2 x1), summed over the heads of both.
ARGUMENTS = {
    "grad_query_embed": (1, 2),
    "grad_key_embed": (1, 0),
    "cos": (3, 5),
    "sin": (7, 11),
    "query": (13, 17),
    "key": (1, -1),
}
EXPECTED = ((25, 3), (3, -7), (14, 34), (-16, 26))


def server() -> contextlib.AbstractContextManager[str]:
    """Return the server to use."""
    if len(sys.argv) > 1:
        return contextlib.nullcontext(sys.argv[1])
    from opferry_server.testing import running_server

    return running_server()


arrays = {name: np.array(values, np.float32).reshape(1, 1, 2) for name, values in ARGUMENTS.items()}
with server() as address, opferry.connect(address, timeout=60) as client:
    outputs = client.apply_rotary_pos_emb_grad(**arrays, layout="TND")
for output, expected in zip(outputs, EXPECTED, strict=True):
    assert output is not None
    assert output.dtype == np.float32
    assert output.reshape(-1).tolist() == list(expected), (output, expected)
print("right")
