"""What a deeper search says at its end: why, at which cost, what each gain cost, which moves paid.
Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator

from kernel_lsp.presenter.plurals import count
from kernel_lsp.records import Cost, MoveTally, SearchSummary, StopReason

REASONS = {
    StopReason.ROOFLINE: "the device's memory allows hardly more",
    StopReason.STAGNATION: "nothing better came any more",
    StopReason.CANDIDATES: "all candidates of the budget were judged",
    StopReason.SECONDS: "its time was over",
    StopReason.TOKENS: "its tokens were used up",
    StopReason.GPU_SECONDS: "its GPU time was used up",
    StopReason.EXHAUSTED: "nobody had anything more to try",
    StopReason.CANCELLED: "it was cancelled",
}


def end_message(search: SearchSummary) -> str:
    """One line, for a progress bar."""
    return f"search ended: {REASONS[search.stop]} ({count(search.attempts, 'attempt')})"


def search_lines(search: SearchSummary) -> Iterator[str]:
    """The search's lines for a terminal."""
    before = f", {search.resumed} of them by an earlier run" if search.resumed else ""
    yield (
        f"search {search.mode}: {REASONS[search.stop]}, after "
        f"{count(search.attempts, 'attempt')}{before}"
    )
    yield f"  cost: {_cost(search.cost)}"
    if search.gains:
        yield (
            f"  {count(search.gains, 'gain')}, each for {_cost(_share(search.cost, search.gains))}"
        )
    if search.moves:
        yield f"  moves: {'; '.join(_move(name, tally) for name, tally in search.moves.items())}"
    for note in search.notes:
        yield f"  {note}"
    if search.archive:
        yield f"  archive: {search.archive} (goes on from there; --fresh begins anew)"


def _cost(cost: Cost) -> str:
    asked = f"{_thousands(cost.tokens)} tokens ({_thousands(cost.completion_tokens)} of replies), "
    waited = f", {cost.model_s:.0f} s of replies" if cost.model_s else ""
    gpu = f", {cost.gpu_s:.0f} s on the GPU" if cost.gpu_s else ""
    judged = f"{count(cost.evaluations, 'evaluation')} in {cost.evaluation_s:.0f} s"
    return f"{asked if cost.tokens else ''}{judged}{gpu}{waited}"


def _share(cost: Cost, gains: int) -> Cost:
    return Cost(
        prompt_tokens=round(cost.prompt_tokens / gains),
        completion_tokens=round(cost.completion_tokens / gains),
        model_s=cost.model_s / gains,
        evaluations=round(cost.evaluations / gains),
        evaluation_s=cost.evaluation_s / gains,
        gpu_s=cost.gpu_s / gains,
    )


def _move(name: str, tally: MoveTally) -> str:
    gained = f" (x{math.exp(tally.gain):.2f})" if tally.improved else ""
    return f"{name} {tally.tries} tried, {tally.right} right, {tally.improved} better{gained}"


def _thousands(number: int) -> str:
    return f"{number / 1000:.0f}k" if number >= 10_000 else str(number)
