"""The judge's part in timing: sealed input sets, outputs of timed rounds, the reference's own
times."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from kernel_lsp.evaluator.judging import matching, numerics, traffic
from kernel_lsp.evaluator.judging.drawing import draw, rescale
from kernel_lsp.evaluator.judging.matching import Mismatch
from kernel_lsp.evaluator.judging.oracle import Reference, TrialInputs
from kernel_lsp.evaluator.judging.planning import plain
from kernel_lsp.evaluator.judging.wording import JudgeReply
from kernel_lsp.evaluator.running import timing
from kernel_lsp.evaluator.tensors import (
    Blobs,
    TensorOutbox,
    decode_values,
    encode,
    map_tensors,
    strided_copy,
    tensor_leaves,
)

TensorPair = tuple[torch.Tensor, torch.Tensor]
"""One tensor: the candidate's, the reference's."""
Compare = Callable[[TrialInputs, list[TensorPair], Any], JudgeReply]
"""Judges values as in any other trial."""
NEAR_BYTES = 2**30
"""Input sets of one session that stay where they were drawn."""
UNREADABLE = (
    ValueError,
    KeyError,
    IndexError,
    RuntimeError,
    TypeError,
    AttributeError,
    OverflowError,
)


class SealedTiming:
    """One session's, for the rounds in which its candidate is timed."""

    def __init__(self, reference: Reference, seed: int) -> None:
        self.reference, self.seed = reference, seed
        self.sets: list[TrialInputs] = []

    def sealed(self, count: int, out: TensorOutbox) -> JudgeReply:
        """Input sets for timed rounds, under the parameters as constructed."""
        same = plain("as_given_again")
        drawn = (
            draw(self.reference, self.seed, {**same, "number": 1000 + i}) for i in range(count)
        )
        self.sets = [{**made, "arguments": self._kept(made["arguments"], count)} for made in drawn]
        return {
            "sets": [encode(list(m["arguments"]), out) for m in self.sets],
            "state": encode(self.sets[0]["state"], out),
            "seeds": [m["noise_seed"] for m in self.sets],
        }

    def _kept(self, arguments: Any, count: int) -> Any:
        """Until the session ends; large ones not in the device's memory."""
        size = sum(t.numel() * t.dtype.itemsize for t in tensor_leaves(arguments))
        if count * size <= NEAR_BYTES:
            return arguments
        return map_tensors(lambda t: strided_copy(t, "cpu"), arguments)

    def timed(self, checks: list[dict[str, Any]], blobs: Blobs, compare: Compare) -> JudgeReply:
        """Judge outputs of timed rounds, up to the first wrong one. ``compare`` is handed over for
        the call: kept, it would keep the session, and what that has in the device's memory, until
        a collection."""
        verdicts: list[JudgeReply] = []
        for item in checks:
            verdicts.append(self._timed(item, blobs, compare))
            if not verdicts[-1].get("ok", True):
                break
        return {"verdicts": verdicts}

    def _timed(self, item: dict[str, Any], blobs: Blobs, compare: Compare) -> JudgeReply:
        try:
            made, scale = self.sets[int(item["set"])], float(item["scale"])
            output = decode_values(item["outputs"], blobs, self.reference.device.place)
        except UNREADABLE as error:
            return {"ok": False, "detail": f"the worker's answer is not readable: {error}"}
        arguments = map_tensors(lambda t: rescale(t, scale), made["arguments"])
        trial = {**made, "arguments": arguments, "label": "timed round", "family": "timed round"}
        try:
            ran = self.reference.run(trial, trial["noise_seed"])
        except Exception as error:  # the reference refuses such values: nothing to compare with
            return {"skip": f"timed round: the reference raises {type(error).__name__}"}
        try:
            matching.match_structure(output, ran.output)
        except Mismatch as problem:
            return {"ok": False, "detail": f"timed round: {problem}"}
        pairs = list(zip(tensor_leaves(output), tensor_leaves(ran.output), strict=True))
        if all(numerics.close_to_reference(c, r) for c, r in pairs):
            return {"ok": True}  # an oracle could only agree, and costs several times the reference
        return compare(trial, pairs, ran.output)

    def baseline(self) -> JudgeReply:
        """The reference's times (ms) now, in a process that never loads a candidate."""
        placed = [map_tensors(self.reference.place, made["arguments"]) for made in self.sets]
        seeds = [m["noise_seed"] for m in self.sets]
        rounds = timing.InterleavedRounds(self.reference.device, placed, seeds, self.reference.grad)
        rounds.add("eager", self.reference.callee)
        return {"clean_ms": rounds.alone("eager")}

    def needed(self) -> JudgeReply:
        """Bytes that a call cannot do without; {"bytes": None} where that cannot be found out."""
        return {"bytes": traffic.needed_bytes(self.reference, self.sets[0])}
