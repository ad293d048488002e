"""The rotary operators' methods of the asynchronous client, the twins of `_rotary_methods`."""

from __future__ import annotations

from typing import Any

from opferry import _calls
from opferry._aio_transport import AsyncTransport
from opferry._tries import OnProgress
from opferry.core.execution import ExecutionOptions, Priority
from opferry.operators.base import Plan
from opferry.results import ApplyRotaryPosEmbGradResult, ApplyRotaryPosEmbResult


class AsyncRotaryMethods(AsyncTransport):
    """What a client has for the rotary operators."""

    async def apply_rotary_pos_emb_grad(
        self,
        grad_query_embed: Any,
        grad_key_embed: Any,
        cos: Any,
        sin: Any,
        *,
        query: Any = None,
        key: Any = None,
        rotary_mode: str = "half",
        layout: int | str = 1,
        timeout: float | None = None,
        check: bool = True,
        keep_strides: bool = False,
        operator_package: str = "",
        repeat: int = 1,
        warmup: int = 0,
        exclusive: bool = False,
        deterministic: bool = False,
        priority: Priority | str | None = None,
        poison_outputs: bool = True,
        checksum: bool = False,
        copy: bool = False,
        on_progress: OnProgress | None = None,
    ) -> ApplyRotaryPosEmbGradResult:
        """Run the backward of rotary position embedding on the server.

        Shapes for layout BSND, SBND and TND in turn; one dtype, float32, float16 or bfloat16
        (ml_dtypes), for all arrays; any strides. The arrays are never changed.

        Args:
            grad_query_embed: (B, S, Nq, D), (S, B, Nq, D) or (T, Nq, D); D even, at most 1024.
            grad_key_embed: the same with Nk in place of Nq.
            cos: (Bc, S, 1, D), (S, Bc, 1, D) or (T, 1, D); Bc is 1 or B.
            sin: shaped as cos.
            query: shaped as grad_query_embed; together with key it asks for grad_cos and grad_sin.
            key: shaped as grad_key_embed.
            rotary_mode: "half".
            layout: 1 or "BSND", 2 or "SBND", 4 or "TND".
            timeout: seconds for the whole call, tries included; None: the client's own.
            check: check the contract here and on the server; False lets the device itself judge.
            keep_strides: send views as views instead of compact copies.
            operator_package: which of the server's operator packages runs it; "": its default.
            repeat: how often the operator runs; each run is timed.
            warmup: how often it runs before that, untimed.
            exclusive: run while nothing else runs on the device: for timing.
            deterministic: fail unless all runs of *repeat* give the same bits.
            priority: "interactive" or "batch", how urgent it is; None: interactive, for somebody
                waits.
            poison_outputs: fill output memory with a pattern first, to find elements that the
                operator does not write; only an exclusive request may do without.
            checksum: protect inputs and outputs by XXH3 digests.
            copy: return writable arrays of the caller's own; without it, the results of a large
                call to a server on the same host are read-only views of memory shared with it.
            on_progress: called with each `Progress`, in the event loop; a call that goes in one
                message has none.

        Returns:
            The gradients; unpacks as (grad_query, grad_key, grad_cos, grad_sin), the last two None
            without query and key. `.execution` says where, by what and how fast.

        Raises:
            RequestError: the call breaks the contract or a limit; nothing was run.
            ServerError: the server or its device failed, or stayed busy.
            TransportError: the server cannot be reached.
            DeadlineError: the time was over.
        """
        prepared = _calls.prepare(
            "ApplyRotaryPosEmbGrad",
            _calls.rotary_grad_inputs(grad_query_embed, grad_key_embed, cos, sin, query, key),
            {"rotary_mode": rotary_mode, "layout": layout},
            ExecutionOptions(
                check=check,
                repeat=repeat,
                output_digests=checksum,
                warmup=warmup,
                exclusive=exclusive,
                deterministic=deterministic,
                priority=_calls.priority_of(priority),
                poison_outputs=poison_outputs,
            ),
            operator_package=operator_package,
            keep_strides=keep_strides,
            checksum=checksum,
            copy=copy,
        )
        return ApplyRotaryPosEmbGradResult.of(await self._execute(prepared, timeout, on_progress))

    async def plan_apply_rotary_pos_emb_grad(
        self,
        grad_query_embed: Any,
        grad_key_embed: Any,
        cos: Any,
        sin: Any,
        *,
        query: Any = None,
        key: Any = None,
        rotary_mode: str = "half",
        layout: int | str = 1,
        timeout: float | None = None,
        operator_package: str = "",
    ) -> Plan:
        """Ask the server what a call would take; no tensor data is sent.

        Args:
            grad_query_embed: a numpy array or a `TensorSpec`, as are all that follow; shapes and
                dtypes as for `apply_rotary_pos_emb_grad`.
            grad_key_embed: see there.
            cos: see there.
            sin: see there.
            query: see there.
            key: see there.
            rotary_mode: see there.
            layout: see there.
            timeout: see there.
            operator_package: see there.

        Returns:
            The outputs' specs, template, tiling key, broadcast axes and bytes; from a device also
            the workspace that its first stage asks for.

        Raises:
            OpFerryError: as `apply_rotary_pos_emb_grad`.
        """
        given = _calls.rotary_grad_inputs(grad_query_embed, grad_key_embed, cos, sin, query, key)
        attributes = {"rotary_mode": rotary_mode, "layout": layout}
        return await self._plan(
            "ApplyRotaryPosEmbGrad", given, attributes, operator_package, timeout
        )

    async def apply_rotary_pos_emb(
        self,
        query: Any,
        key: Any,
        cos: Any,
        sin: Any,
        layout: int | str = "BSND",
        rotary_mode: str = "half",
        *,
        timeout: float | None = None,
        check: bool = True,
        keep_strides: bool = False,
        operator_package: str = "",
        repeat: int = 1,
        warmup: int = 0,
        exclusive: bool = False,
        deterministic: bool = False,
        priority: Priority | str | None = None,
        poison_outputs: bool = True,
        checksum: bool = False,
        copy: bool = False,
        on_progress: OnProgress | None = None,
    ) -> ApplyRotaryPosEmbResult:
        """Run rotary position embedding on the server.

        Shapes for layout BSND, SBND, BNSD and TND in turn; one dtype, float32, float16 or bfloat16
        (ml_dtypes), for all arrays; any strides. The arrays are never changed.

        Args:
            query: (B, S, Nq, D), (S, B, Nq, D), (B, Nq, S, D) or (T, Nq, D); D a multiple of 2, or
                of 4 for mode "quarter", at most 1024.
            key: the same with Nk in place of Nq.
            cos: (Bc, S, 1, R), (S, Bc, 1, R), (Bc, 1, S, R) or (T, 1, R); Bc is 1 or B; R a
                multiple as D, at most D. The first R elements are rotated, the others passed on.
            sin: shaped as cos.
            layout: "BSND" or "BSH" or 1, "SBND" or 2, "BNSD" or 3, "TND" or 4.
            rotary_mode: "half", "interleave" or "quarter": how the R elements pair up.
            timeout: see `apply_rotary_pos_emb_grad`, as all that follow.
            check: see there.
            keep_strides: see there.
            operator_package: see there.
            repeat: see there.
            warmup: see there.
            exclusive: see there.
            deterministic: see there.
            priority: see there.
            poison_outputs: see there; what overwrites its inputs, as a device does here, has no
                pattern in its outputs, and an element that it does not write is as it was.
            checksum: see there.
            copy: see there.
            on_progress: see there.

        Returns:
            The rotated tensors; unpacks as (query_out, key_out). `.execution` says where, by what
            and how fast.

        Raises:
            OpFerryError: as `apply_rotary_pos_emb_grad`.
        """
        prepared = _calls.prepare(
            "ApplyRotaryPosEmb",
            {"query": query, "key": key, "cos": cos, "sin": sin},
            {"rotary_mode": rotary_mode, "layout": layout},
            ExecutionOptions(
                check=check,
                repeat=repeat,
                output_digests=checksum,
                warmup=warmup,
                exclusive=exclusive,
                deterministic=deterministic,
                priority=_calls.priority_of(priority),
                poison_outputs=poison_outputs,
            ),
            operator_package=operator_package,
            keep_strides=keep_strides,
            checksum=checksum,
            copy=copy,
        )
        return ApplyRotaryPosEmbResult.of(await self._execute(prepared, timeout, on_progress))

    async def plan_apply_rotary_pos_emb(
        self,
        query: Any,
        key: Any,
        cos: Any,
        sin: Any,
        layout: int | str = "BSND",
        rotary_mode: str = "half",
        *,
        timeout: float | None = None,
        operator_package: str = "",
    ) -> Plan:
        """Ask the server what a call would take; no tensor data is sent.

        Args:
            query: a numpy array or a `TensorSpec`, as are all that follow; shapes and dtypes as for
                `apply_rotary_pos_emb`.
            key: see there.
            cos: see there.
            sin: see there.
            layout: see there.
            rotary_mode: see there.
            timeout: see there.
            operator_package: see there.

        Returns:
            As `plan_apply_rotary_pos_emb_grad`.

        Raises:
            OpFerryError: as `apply_rotary_pos_emb_grad`.
        """
        given = {"query": query, "key": key, "cos": cos, "sin": sin}
        attributes = {"rotary_mode": rotary_mode, "layout": layout}
        return await self._plan("ApplyRotaryPosEmb", given, attributes, operator_package, timeout)
