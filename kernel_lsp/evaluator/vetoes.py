"""What a claim of speed must survive: clocks and processes that the candidate cannot reach.

    Floor          faster than the device's memory allows                  rejected
    hidden_work    the host waits for work that the events did not see     rejected (CUDA)
    Disturbance    the reference is slower where the candidate is loaded   rejected or lowered
    outside_clock  calls take longer by the parent's own clock             rejected or lowered

Everything is measured again before it condemns, side by side with what it is compared to: machines
are busy, and an honest candidate must never pay for a neighbor. By its times a candidate is
condemned only in moments when nobody else took the processors (competing.py); where none come, the
answer is that it is not sure. What is doubtful only lowers the claim.

Not covered: a candidate that lies to the clock of its process *and* slows down whatever the parent
times."""

from __future__ import annotations

import time
from typing import Any

from kernel_lsp.errors import EvaluationError
from kernel_lsp.evaluator import roofline, stats
from kernel_lsp.evaluator.findings import PartialEvaluation, Rejected, candidate
from kernel_lsp.evaluator.processes.sandbox import Party, ask_judge
from kernel_lsp.evaluator.request import EvaluationRequest
from kernel_lsp.evaluator.sharing.competing import CompetingLoad, Load
from kernel_lsp.evaluator.undisturbed import Undisturbed
from kernel_lsp.records import EvalStatus

ATTEMPTS, BUSY_ATTEMPTS = 3, 12
"""How often is measured anew before it counts; where the interval is wide, that is, on a busy
machine."""
DISTURBED_ATTEMPTS = 6
"""How often the reference by itself is looked at, until three of them were in quiet moments."""
UNDER_FLOOR = 0.9
"""A time below this share of the floor cannot be: makers' peaks are round numbers."""
HIDDEN_SHARE, HIDDEN_MS = 0.1, 0.01
"""What the host may wait beyond the events: this share of the span plus the jitter of a wake-up."""
NOTICEABLE, SABOTAGE = 1.1, 1.1
"""Ratio of medians that is looked into; ratio of lower to upper quantiles that condemns."""
BURST_MS, MAX_CALLS = 50.0, 5000
"""How long the parent watches each provider with its own clock."""
ASKING_MS = 3.0
"""A request and its answer, at most."""
BELIEVABLE, IMPOSSIBLE = 1.1, 2.0
"""How far the parent's clock may exceed the claimed time before the claim is lowered, and
rejected."""


class Floor:
    """The roofline of one workload on one device; unknown devices have none."""

    def __init__(
        self, request: EvaluationRequest, judge: Party, given_bytes: int, found: PartialEvaluation
    ) -> None:
        self._judge, self._timeout_s, self._found = judge, request.budget.call_s, found
        self._given = given_bytes
        self._l2 = int(found.environment.get("l2_bytes") or 0)
        on_gpu = request.device == "cuda"
        self._peak = (
            roofline.peak_gb_per_s(found.environment.get("device_name")) if on_gpu else None
        )
        self._least_ms: float | None = None

    async def beaten(self, times: list[float]) -> bool:
        """Whether ``times`` are below what must be read; what that is, is only found out on
        suspicion."""
        if self._peak is None:
            return False
        taken = stats.quantile(times, 0.5)
        if taken >= UNDER_FLOOR * roofline.least_ms(self._given, 0, self._l2, self._peak):
            return False
        if self._least_ms is None:
            reply, _ = await ask_judge(self._judge, "needed", self._timeout_s)
            needed = reply["bytes"] or {"read": 0, "written": 0}
            self._least_ms = roofline.least_ms(
                needed["read"], needed["written"], self._l2, self._peak
            )
        return taken < UNDER_FLOOR * self._least_ms

    async def least_ms(self, known: dict[str, Any]) -> float | None:
        """The least milliseconds that a call can take, for who wants to know how much could still
        be won; None: it cannot be found out.

        ``known`` remembers the judge's answer, which takes a derivative in float64, for the next
        candidate. The veto asks anew: what it condemns by was drawn from a seed that no candidate
        has met."""
        if self._peak is None:
            return None
        if "needed" not in known:
            try:
                reply, _ = await ask_judge(self._judge, "needed", self._timeout_s)
                known["needed"] = reply["bytes"]
            except EvaluationError as error:  # the verdict is in, and does not depend on it
                known["needed"] = None
                self._found.check("roofline", None, f"unknown: {error.cause}")
        needed = known["needed"]
        if needed is None:
            return None
        return roofline.least_ms(needed["read"], needed["written"], self._l2, self._peak)

    async def settle(self, times: list[float]) -> None:
        """Compares times measured again with the floor. Raises Rejected."""
        if not await self.beaten(times):
            return
        detail = (
            f"{stats.quantile(times, 0.5):.4g} ms, and to read what the result depends on takes "
            f"{self._least_ms:.4g} ms at {self._peak} GB/s"
        )
        self._found.check("roofline", False, detail)
        raise Rejected(
            EvalStatus.CHEATED, f"faster than the memory of this device allows: {detail}"
        )


def hidden_work(
    spans: dict[str, list[float]],
    outside: dict[str, list[float]],
    device: str,
    found: PartialEvaluation,
) -> None:
    """Whether the host waits longer after the candidate's events than after eager's. Raises
    Rejected.

    Around the span lie the same head start, writes and flush for both, so what is left of the
    difference is work on a stream that the candidate's caller does not wait for."""
    if device != "cuda":
        return
    waits = {
        name: [o - s for o, s in zip(outside[name], spans[name], strict=True)]
        for name in ("eager", "candidate")
    }
    beyond = [
        mine - theirs for mine, theirs in zip(waits["candidate"], waits["eager"], strict=True)
    ]
    low, _ = stats.median_bounds(beyond)
    span = stats.quantile(spans["candidate"], 0.5)
    hidden = low > HIDDEN_SHARE * span + HIDDEN_MS
    detail = (
        f"{low:.4g} ms of work go on after the {span:.4g} ms that its stream takes"
        if hidden
        else ""
    )
    found.check("work-in-order", not hidden, detail)
    if hidden:
        raise Rejected(
            EvalStatus.CHEATED, f"the candidate works where its caller does not wait: {detail}"
        )


class Disturbance:
    """The reference by itself: before the candidate was loaded, beside it, and in the judge."""

    def __init__(
        self,
        timer: Party,
        judge: Party,
        clean: list[float],
        timeout_s: float,
        found: PartialEvaluation,
        load: CompetingLoad | None = None,
    ) -> None:
        """``load``: others' on our processors; None: nobody looks."""
        self._load = load
        self._timer, self._judge, self._timeout_s, self._found = timer, judge, timeout_s, found
        self._clean = [clean]
        """Series of times (ms) that no candidate could touch."""

    async def settle(self, mixed_ms: float) -> None:
        """Compares eager's time beside the candidate with eager's alone. ``mixed_ms``: eager
        between the candidate's calls. Raises Rejected; may lower the claims."""
        if mixed_ms > NOTICEABLE * self._typical() and await self._condemned():
            detail = (
                f"eager takes {self._typical():.4g} ms elsewhere and {mixed_ms:.4g} ms beside the "
                f"candidate"
            )
            self._found.check("baseline-undisturbed", False, detail)
            raise Rejected(EvalStatus.CHEATED, f"the candidate slows the reference down: {detail}")
        factor = min(1.0, NOTICEABLE * self._typical() / mixed_ms)
        if factor < 1:
            _scale_claims(self._found, self._typical() / mixed_ms)
        detail = (
            f"eager: {self._typical():.4g} ms by itself, {mixed_ms:.4g} ms between the "
            f"candidate's calls"
        )
        self._found.check(
            "baseline-undisturbed", None if factor < 1 else True, detail if factor < 1 else ""
        )

    async def _condemned(self) -> bool:
        """Whether eager is slower by itself in the candidate's process, every time, than in the
        judge's right before and right after."""
        quiet, disturbed = 0, None
        for _ in range(DISTURBED_ATTEMPTS):
            _restart(self._load)
            await self._measure_clean()
            beside, _ = await candidate(self._timer, "baseline", self._timeout_s)
            await self._measure_clean()
            slowest = max(stats.quantile(series, 0.8) for series in self._clean)
            if stats.quantile([float(v) for v in beside["clean_ms"]], 0.2) <= SABOTAGE * slowest:
                return False
            disturbed = _disturbed(self._load) or disturbed
            quiet += _disturbed(self._load) is None
            if quiet == ATTEMPTS:
                return True
        self._found.doubt(f"the reference was slower beside the candidate, while {disturbed}")
        return False

    async def _measure_clean(self) -> None:
        reply, _ = await ask_judge(self._judge, "baseline", self._timeout_s)
        self._clean.append(list(reply["clean_ms"]))

    def _typical(self) -> float:
        """The slowest median of all clean series."""
        return max(stats.quantile(series, 0.5) for series in self._clean)


def _restart(load: CompetingLoad | None) -> None:
    if load is not None:
        load.restart()


def _disturbed(load: CompetingLoad | None) -> Load | None:
    """Others' load since the stretch began, where times may be long because of it."""
    seen = None if load is None else load.load()
    return seen if seen is not None and seen.busy else None


async def outside_clock(
    timer: Undisturbed,
    claimed: dict[str, float],
    timeout_s: float,
    found: PartialEvaluation,
    load: CompetingLoad | None = None,
) -> None:
    """The parent's clock over many calls in a row. Raises Rejected; may lower the claims.

    A call in a row finds its inputs in cache, so it takes no longer than the claimed cold one;
    what eager is slowed down by meanwhile is taken off, and what the claim's own interval leaves
    open condemns nobody (seen on a busy machine: 0.6 ms claimed, 2.2 seen, an honest candidate, an
    interval 466 % wide)."""
    open_to = max(stats.width(interval) for interval in found.speedups.values())
    excess, seen, disturbed, quiet = float("inf"), 0.0, None, 0
    for _ in range(BUSY_ATTEMPTS):
        _restart(load)
        took = {
            name: await _burst(timer, name, claimed[name], timeout_s)
            for name in ("eager", "candidate")
        }
        slower = {name: max(1.0, took[name] / claimed[name]) for name in took}
        if slower["candidate"] / slower["eager"] < excess:
            excess, seen = slower["candidate"] / slower["eager"], took["candidate"]
        if excess <= BELIEVABLE:
            found.check("outside-clock", True, f"{seen:.4g} ms a call, caches warm")
            return
        now = _disturbed(load)
        disturbed, quiet = now or disturbed, quiet + (now is None)
        if open_to <= stats.WIDE and quiet == ATTEMPTS:
            break
    detail = f"{claimed['candidate']:.4g} ms claimed, {seen:.4g} ms seen from outside"
    if excess > IMPOSSIBLE * (1 + open_to) and quiet < ATTEMPTS:
        found.doubt(f"{detail}, while {disturbed}")
    elif excess > IMPOSSIBLE * (1 + open_to):
        found.check("outside-clock", False, detail)
        raise Rejected(EvalStatus.CHEATED, f"the times cannot be true: {detail}")
    found.check("outside-clock", None, f"{detail}: the claim is lowered")
    _scale_claims(found, 1 / excess)


async def _burst(timer: Undisturbed, provider: str, expected_ms: float, timeout_s: float) -> float:
    """Milliseconds a call by the parent's clock."""
    count = max(5, min(MAX_CALLS, int(BURST_MS / max(expected_ms, 1e-4))))
    async with timer.alone():  # waiting for it is not the candidate's time
        start = time.perf_counter()
        await candidate(timer.party, "burst", timeout_s, provider=provider, count=count)
        elapsed = (time.perf_counter() - start) * 1e3
    return max(elapsed - ASKING_MS, 0.0) / count


def _scale_claims(found: PartialEvaluation, factor: float) -> None:
    found.speedups = {name: stats.scale_interval(i, factor) for name, i in found.speedups.items()}
