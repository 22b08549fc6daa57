"""Does a verdict still hold? Two evidences of the same request, compared fact by fact.

A verdict holds when the outcome is the same, every trial falls as it did, and a claim of speed is
made again: the lower bound over every baseline still reaches the threshold. A speedup that moved
without losing its claim is reported and decides nothing, because two honest measurements differ by
more than one interval. Another device, or a second try that could not be judged, decides nothing
either: then `holds` is None. Standard library only; nothing is run here."""

from __future__ import annotations

from collections.abc import Iterator

from kernel_lsp.records import EnvironmentFact, EvalStatus, Evidence, Interval, Repetition, Trial

DEFAULT_THRESHOLD = 1.05
VERSIONS = ("kernel_lsp", "python", "torch", "triton", "cuda", "driver")


def compare(before: Evidence, now: Evidence) -> Repetition:
    """Every fact that can be compared, and what follows from them."""
    facts = tuple(_facts(before, now))
    return Repetition(facts=facts, holds=_conclusion(before, now, facts))


def _conclusion(before: Evidence, now: Evidence, facts: tuple[EnvironmentFact, ...]) -> bool | None:
    then, today = before.evaluation, now.evaluation
    if then.device_name != today.device_name and today.device_name and then.device_name:
        return None
    if today.status is EvalStatus.NOT_RUN and then.status is not EvalStatus.NOT_RUN:
        return None
    return all(fact.same is not False for fact in facts)


def _facts(before: Evidence, now: Evidence) -> Iterator[EnvironmentFact]:
    then, today = before.evaluation, now.evaluation
    yield _fact("verdict", then.status.value, today.status.value, then.status is today.status)
    if before.trials and now.trials:
        yield _trials(before, now)
        yield from _worst(before, now)
    if then.speedups:
        yield _claim(before, now)
        yield from (
            _speedup(name, then.speedups[name], today.speedups.get(name)) for name in then.speedups
        )
    # Known only after something ran; a candidate that ends before that has none.
    if then.device_name and today.device_name:
        yield _environment_fact("device", then.device_name, today.device_name)
    for name in VERSIONS:
        old, new = then.environment.get(name), today.environment.get(name)
        if old != new:
            yield _environment_fact(name, str(old), str(new))


def _trials(before: Evidence, now: Evidence) -> EnvironmentFact:
    """The same trials must fall alike; another version may draw others, which then decide
    nothing."""
    then, today = _by_name(before.trials), _by_name(now.trials)
    shared = then.keys() & today.keys()
    differ = [key for key in sorted(shared) if then[key].passed is not today[key].passed]
    named = f"; {differ[0][1]} differs" if differ else ""
    same = None if not differ and then.keys() != today.keys() else not differ
    return _fact("trials", _count(before.trials), _count(now.trials) + named, same)


def _by_name(trials: tuple[Trial, ...]) -> dict[tuple[int, str, str], Trial]:
    return {(trial.number, trial.family, trial.variation): trial for trial in trials}


def _count(trials: tuple[Trial, ...]) -> str:
    return f"{sum(trial.passed is True for trial in trials)} of {len(trials)} passed"


def _worst(before: Evidence, now: Evidence) -> Iterator[EnvironmentFact]:
    """The error nearest to its limit; the limit may move with the reference's own error."""
    shares = [_share(evidence.trials) for evidence in (before, now)]
    if shares[0] is not None and shares[1] is not None:
        yield _environment_fact("largest error / allowed", f"{shares[0]:.3g}", f"{shares[1]:.3g}")


def _share(trials: tuple[Trial, ...]) -> float | None:
    shares = [
        trial.candidate_error / trial.tolerance
        for trial in trials
        if trial.candidate_error is not None and trial.tolerance
    ]
    return max(shares, default=None)


def _claim(before: Evidence, now: Evidence) -> EnvironmentFact:
    threshold = before.threshold or DEFAULT_THRESHOLD
    then, today = before.evaluation.faster(threshold), now.evaluation.faster(threshold)
    words = {True: "yes", False: "no"}
    return _fact(f"at least {threshold:.2f}x for sure", words[then], words[today], then == today)


def _speedup(baseline: str, then: Interval, today: Interval | None) -> EnvironmentFact:
    name = f"speedup over {baseline}"
    if today is None:
        return _environment_fact(name, _spread(then), "not measured")
    overlap = then.low <= today.high and today.low <= then.high
    note = "" if overlap else "; the intervals do not overlap"
    return _environment_fact(name, _spread(then), _spread(today) + note)


def _spread(interval: Interval) -> str:
    return f"{interval.mid:.3g}x ({interval.low:.3g}–{interval.high:.3g})"


def _fact(name: str, before: str, now: str, same: bool | None) -> EnvironmentFact:
    return EnvironmentFact(name=name, before=before, now=now, same=same)


def _environment_fact(name: str, before: str, now: str) -> EnvironmentFact:
    return _fact(name, before, now, None)
