"""Whether a lack of memory is the candidate's fault: it is, where its original has enough in its
place.

The original is loaded in a worker of its own, with the limits and beside the neighbors that the
candidate had, and asked what the candidate was asked. No torch. Does not cover: time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kernel_lsp.evaluator.findings import Rejected, candidate
from kernel_lsp.evaluator.processes.sandbox import Party, Sandbox
from kernel_lsp.evaluator.request import EvaluationRequest

JudgeQuestion = tuple[str, dict[str, Any], list[bytes]]
"""What a worker is asked: its name, the message, the bytes of tensors."""


@dataclass(frozen=True, slots=True)
class Original:
    """The reference in the place of a candidate."""

    request: EvaluationRequest
    sandbox: Sandbox
    worker: Party
    """The candidate's, whose memory belongs to the original then."""
    loading: dict[str, Any]
    """What the candidate was loaded by."""
    init: list[bytes]

    async def runs_out_of_memory(self, asked: list[JudgeQuestion]) -> bool:
        """Whether the original runs out of memory at one of these questions."""
        budget = self.request.budget
        loading = {**self.loading, "program": self.request.reference}
        await self.sandbox.end_worker(self.worker)
        other = await self.sandbox.another_worker()
        try:
            await candidate(other, "load", budget.load_s, self.init, **loading)
            for do, message, blobs in asked:
                reply, _ = await candidate(other, do, budget.call_s, blobs, **message)
                if "error" in reply:
                    return reply.get("memory") is True
        except Rejected as lost:
            return lost.memory
        finally:
            await other.child.kill()
        return False
