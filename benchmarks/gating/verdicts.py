"""Parts about what is judged right: attacks and honest candidates, a program against itself,
repeats."""

from __future__ import annotations

import importlib.util
import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.gating.running import Bench, GatePart, GateRow, Judged
from benchmarks.gating.summary import excludes_one, five_numbers, share_within, spread, upper_bound
from benchmarks.gating.tasks import GateTask, pairs, tasks
from kernel_lsp import wire
from kernel_lsp.evaluator import EvaluationRequest
from kernel_lsp.records import EvalStatus

ADVERSARIAL = Path(__file__).resolve().parents[2] / "tests" / "adversarial"
SELF_TRIALS = 500
AT_A_TIME = 4
"""A warm gate keeps as many judges."""
ALLOWED_CLAIMS, ALLOWED_SPREAD, NEEDED_SHARE = 0.01, 0.01, 0.95
MIN_REPEATS = 3
MIN_MS = 0.05
"""Repeats are held to the bar where both programs take at least this long: below, Python's
launches are what is timed, and those differ by more between processes."""


# --- attacks --------------------------------------------------------------------------------


def candidates(device: str) -> list[Path]:
    """Attacks and honest candidates for this device, in ``attacks*`` and ``honest*``."""
    names = ["attacks", "honest"] + (["attacks_cuda", "honest_cuda"] if device == "cuda" else [])
    return [path for name in names for path in sorted((ADVERSARIAL / name).rglob("*.py"))]


def _asked_by_the_tests() -> Callable[[Path], EvaluationRequest]:
    """The function of the tests that knows which reference and workload each candidate is about."""
    path = ADVERSARIAL / "test_candidates.py"
    spec = importlib.util.spec_from_file_location("adversarial_candidates", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    made: Callable[[Path], EvaluationRequest] = module.request
    return made


async def attacks(bench: Bench, seconds: float) -> GatePart:
    """Every attack and every honest candidate. Honest ones are timed, attacks where they behave
    until then: one that passes its trials untimed counts as accepted."""
    asked, made = candidates(bench.device), _asked_by_the_tests()
    jobs = ((path, bench.here(made(path), timed=not _is_attack(path))) for path in asked)
    found = {judged.key: judged for judged in await bench.judge_all(jobs, seconds)}
    hostile = [path for path in asked if _is_attack(path)]
    honest = [path for path in asked if not _is_attack(path)]
    judged = {path: found[path] for path in asked if path in found}
    notes = [_count_verdicts(judged[path] for path in hostile if path in judged)]
    notes += [f"{_name(p)}: {_describe(one)}" for p, one in judged.items() if not _is_right(one)]
    notes += _name_late(asked, found)
    return GatePart(
        rows=[
            _all_right("attacks rejected", hostile, judged),
            _all_right("honest candidates accepted", honest, judged),
        ],
        notes=notes,
        data=[{"candidate": _name(path), **_plain(one)} for path, one in judged.items()],
    )


def _is_attack(path: Path) -> bool:
    return _name(path).startswith("attacks")


def _is_right(judged: Judged[Path]) -> bool:
    """Whether an attack was rejected, or an honest candidate accepted."""
    if _is_attack(judged.key):
        return judged.status not in (None, EvalStatus.PASSED)
    return judged.status is EvalStatus.PASSED


def _count_verdicts(judged: Iterable[Judged[Any]]) -> str:
    ends = Counter(str(one.status or "not judged") for one in judged)
    return "attacks by verdict: " + ", ".join(f"{status} {n}" for status, n in ends.most_common())


def _name_late(asked: Iterable[Any], found: Mapping[Any, Any]) -> list[str]:
    """A note of those that the time did not suffice for."""
    late = [_name(path) for path in asked if path not in found]
    return [f"{len(late)} not judged in the time box: {', '.join(late)}"] if late else []


def _name(path: Path) -> str:
    return path.relative_to(ADVERSARIAL).with_suffix("").as_posix()


def _all_right(what: str, asked: Sequence[Path], judged: Mapping[Path, Judged[Path]]) -> GateRow:
    """Met only when all were judged; missed as soon as one was judged wrongly."""
    known = [judged[path] for path in asked if path in judged]
    right = sum(map(_is_right, known))
    met = False if right < len(known) else True if len(known) == len(asked) else None
    return GateRow(
        what=what,
        bar="all",
        measured=f"{right} of {len(known)} judged, {len(asked)} in all",
        met=met,
    )


# --- a program against itself ---------------------------------------------------------------


async def against_itself(bench: Bench, seconds: float) -> GatePart:
    """Every trial is a whole evaluation of the reference under another name."""
    found = await bench.judge_all(_itself(bench), seconds)
    by_task = _by_task(found)
    timed = [j for j in found if j.evaluation and j.evaluation.speedup]
    claims = [j for j in timed if j.evaluation and j.evaluation.faster()]
    excluded = [
        j
        for j in timed
        if j.evaluation and j.evaluation.speedup and excludes_one(j.evaluation.speedup)
    ]
    bound = upper_bound(len(claims), len(timed))
    share = len(claims) / len(timed) if timed else None
    enough = len(timed) >= SELF_TRIALS
    return GatePart(
        rows=[
            GateRow(
                what="called faster than itself (lower bound of the ratio >= 1.05)",
                bar=f"at most {ALLOWED_CLAIMS:.0%}",
                measured=f"{len(claims)} of {len(timed)}, true rate below {_percent(bound)} (95 %)",
                met=share <= ALLOWED_CLAIMS if share is not None else None,
            ),
            GateRow(
                what="trials over 20 tasks",
                bar=str(SELF_TRIALS),
                measured=f"{len(timed)} over {len(by_task)}",
                met=enough,
            ),
            GateRow(
                what="interval excludes 1 by more than 2 %",
                bar="",
                measured=f"{len(excluded)} of {len(timed)}",
                met=None,
            ),
        ],
        notes=[_distribution(name, rows) for name, rows in by_task.items()] + _unexpected(found),
        data=[{"task": j.key, **_plain(j)} for j in found],
    )


def _itself(bench: Bench) -> Iterator[tuple[str, EvaluationRequest]]:
    for task, number in in_blocks(tasks(bench.device), (5, 5, 5, 5, 5)):
        yield task.name, bench.request(task.reference, task.itself(number))


def _distribution(name: str, rows: list[Judged[str]]) -> str:
    """Eager's time, and minimum, 5 %, median, 95 %, maximum of the ratios."""
    ratios = [j.evaluation.speedup.mid for j in rows if j.evaluation and j.evaluation.speedup]
    claims = sum(j.evaluation.faster() for j in rows if j.evaluation)
    eager = next((_eager_ms(j) for j in rows if _eager_ms(j) is not None), None)
    time = f"{eager * 1e3:8.0f} us" if eager is not None else "     not timed"
    numbers = "  ".join(f"{value:.3f}" for value in five_numbers(ratios)) if ratios else "no ratio"
    return f"{name:34}{time}  n={len(ratios):<3} ratios {numbers}  claims {claims}"


# --- repeats --------------------------------------------------------------------------------


async def repeats(bench: Bench, seconds: float) -> GatePart:
    """The same pair again and again, each time with a worker and a timer of its own."""
    asked = pairs(bench.device)
    found = await bench.judge_all(_again(bench, asked), seconds)
    by_task = _by_task([judged for judged in found if _ratio(judged)])
    short = [name for name, rows in by_task.items() if not _long(rows)]
    enough = {name: rows for name, rows in by_task.items() if len(rows) >= MIN_REPEATS}
    counted = {name: rows for name, rows in enough.items() if _long(rows)}
    few = [t.name for t in asked if t.name not in counted and t.name not in short]
    spreads = {name: _spread_of_ratios(rows) for name, rows in counted.items()}
    return GatePart(
        rows=[
            _steady(share_within(spreads.values(), ALLOWED_SPREAD)),
            GateRow(
                what="tasks of at least 50 us (both programs) with 3 or 4 repeats",
                bar=str(len(asked)),
                measured=str(len(counted)),
                met=len(counted) >= len(asked),
            ),
        ],
        notes=[
            *(_repeated(name, counted[name], spreads[name]) for name in _worst(spreads)),
            _not_counted("one takes less than 50 us", short),
            _not_counted(f"fewer than {MIN_REPEATS} repeats", few),
            *_unexpected(found),
        ],
        data=[{"task": j.key, **_plain(j)} for j in found],
    )


def _again(bench: Bench, asked: Sequence[GateTask]) -> Iterator[tuple[str, EvaluationRequest]]:
    for task, number in in_blocks(asked, (3, 1)):
        candidate = f"{task.candidate}\nREPEAT = {number}\n"
        yield task.name, bench.request(task.reference, candidate, timing_s=1.0)


def _steady(share: float | None) -> GateRow:
    return GateRow(
        what="tasks whose repeats stay within 1 % of their median",
        bar=f"{NEEDED_SHARE:.0%}",
        measured=_percent(share),
        met=share >= NEEDED_SHARE if share is not None else None,
    )


def _spread_of_ratios(rows: list[Judged[str]]) -> float:
    return spread([_ratio(j) or 0.0 for j in rows])


def _not_counted(why: str, names: Sequence[str]) -> str:
    return f"{why}, not counted: {'; '.join(names) or 'none'}"


def _worst(spreads: dict[str, float]) -> list[str]:
    return sorted(spreads, key=lambda name: -spreads[name])[:12]


def _repeated(name: str, rows: list[Judged[str]], most: float) -> str:
    ratios = "  ".join(f"{_ratio(j):.3f}" for j in rows)
    return (
        f"{name:34}{(_eager_ms(rows[0]) or 0) * 1e3:8.0f} us  spread {most:6.2%}  ratios {ratios}"
    )


def _long(rows: list[Judged[str]]) -> bool:
    return all(t.median_ms >= MIN_MS for j in rows if j.evaluation for t in j.evaluation.timings)


def in_blocks(asked: Sequence[GateTask], blocks: Sequence[int]) -> Iterator[tuple[GateTask, int]]:
    """Every task as often as all blocks say, some numbers at a time, so that a cut leaves all
    tasks alike.

    Within a block a few tasks take turns: drift of the device meets all of them, and the gate
    keeps their judges."""
    first = 0
    for block in blocks:
        for start in range(0, len(asked), AT_A_TIME):
            for number in range(first, first + block):
                for task in asked[start : start + AT_A_TIME]:
                    yield task, number
        first += block


# --- shared ---------------------------------------------------------------------------------


def _by_task(found: list[Judged[str]]) -> dict[str, list[Judged[str]]]:
    rows = defaultdict(list)
    for judged in found:
        rows[judged.key].append(judged)
    return dict(rows)


def _unexpected(found: list[Judged[str]]) -> list[str]:
    """Right programs that did not pass: one line for each task and reason."""
    wrong = {(j.key, _describe(j)) for j in found if j.status is not EvalStatus.PASSED}
    return [f"{name}: {text}" for name, text in itertools.islice(sorted(wrong), 20)]


def _ratio(judged: Judged[Any]) -> float | None:
    """Against eager, which is a provider in every evaluation."""
    found = judged.evaluation.speedups.get("eager") if judged.evaluation else None
    return found.mid if found else None


def _eager_ms(judged: Judged[Any]) -> float | None:
    timings = judged.evaluation.timings if judged.evaluation else ()
    return next((timing.median_ms for timing in timings if timing.provider == "eager"), None)


def _describe(judged: Judged[Any]) -> str:
    return f"{judged.status.value if judged.status else 'not judged'}: {judged.detail[:160]}"


def _plain(judged: Judged[Any]) -> dict[str, Any]:
    evaluation = judged.evaluation
    return {
        "status": judged.status.value if judged.status else None,
        "detail": judged.detail,
        "seconds": round(judged.seconds, 3),
        "speedups": wire.to_json(evaluation.speedups) if evaluation else {},
        "timings": wire.to_json(evaluation.timings) if evaluation else [],
    }


def _percent(share: float | None) -> str:
    return f"{share:.1%}" if share is not None else "nothing was timed"
