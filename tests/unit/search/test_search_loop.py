"""The loop with scripted proposers and judges: what is judged, when it ends, what a failure
leaves."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import search_helpers as helpers
from search_helpers import (
    ScriptedJudge,
    ScriptedWorkshop,
    attempt,
    candidate,
    proposal,
    site,
    step,
    verdict,
)

from kernel_lsp.errors import BackboneError, EvaluationError
from kernel_lsp.records import (
    Attempt,
    Context,
    Cost,
    EvalStatus,
    Move,
    Progress,
    ProposedDraft,
    SearchBudget,
    SearchJudgement,
    SearchTask,
    StopReason,
)
from kernel_lsp.search import attempts
from kernel_lsp.search.best import BestOf
from kernel_lsp.search.budget import WASTED, SpentBudget, count_judged, stagnant
from kernel_lsp.search.evolution import Evolution
from kernel_lsp.search.ledger import MemoryArchive
from kernel_lsp.search.loop import SearchLoop
from kernel_lsp.search.proposers import Mutate
from kernel_lsp.search.workers import SearchWorkers


@dataclass
class Model:
    """A slow proposer: answers from a list, then says that it has nothing more."""

    answers: Sequence[str | Exception | None]
    seconds: float = 0.0
    name: str = "openai:Qwen"
    slow: bool = True
    asked: list[Context] = field(default_factory=list)
    at_work: int = 0

    async def propose(self, task: SearchTask, context: Context) -> ProposedDraft | None:
        self.asked.append(context)
        place = len(self.asked) - 1
        self.at_work += 1
        try:
            await asyncio.sleep(self.seconds)
        finally:
            self.at_work -= 1
        answer = self.answers[place] if place < len(self.answers) else None
        if isinstance(answer, Exception):
            raise answer
        if answer is None:
            return None
        cost = Cost(prompt_tokens=100, completion_tokens=10)
        if answer.startswith("!"):
            return ProposedDraft(complaint=answer[1:], cost=cost)
        return ProposedDraft(candidate=candidate(name=answer), cost=cost)


def made(
    judge: Any,
    *,
    proposers: Sequence[Model] = (),
    archive: MemoryArchive | None = None,
    limits: SearchBudget | None = None,
    workers: SearchWorkers | None = None,
    **more: Any,
) -> SearchLoop:
    return SearchLoop(
        task=helpers.task(),
        strategy=more.pop("strategy", BestOf(0)),
        proposers=proposers,
        moves=more.pop("moves", {}),
        judge=judge,
        archive=archive or MemoryArchive(),
        budget=SpentBudget(limits=limits or SearchBudget(seconds=None)),
        workers=workers or SearchWorkers(),
        **more,
    )


def named(speeds: dict[str, float | None]) -> Callable[[Any], float | None]:
    return lambda candidate: speeds[candidate.id]


async def test_a_quick_verdict_is_judged_in_full_when_it_beats_the_best_one() -> None:
    judge = ScriptedJudge(named({"a": 2.0, "b": 1.5, "c": 2.05, "d": 3.0, "e": None}))
    loop = made(judge, proposers=[Model(list("abcde"))])
    assert await loop.run() is StopReason.EXHAUSTED
    quick = [(name, False) for name in "abcde"]
    # 2.05 is no 3 % more than 2.
    assert sorted(judge.asked) == sorted([*quick, ("a", True), ("d", True)])
    known = {a.candidate.id: a for a in loop.archive.attempts if a.candidate}
    assert {name: a.complete for name, a in known.items()} == {
        "a": True, "b": False, "c": False, "d": True, "e": False,
    }  # fmt: skip
    assert known["d"].fitness == 3.0 and known["e"].fitness is None
    assert known["a"].cost == Cost(
        prompt_tokens=100,
        completion_tokens=10,
        evaluations=2,
        evaluation_s=known["a"].cost.evaluation_s,
    )


async def test_a_candidate_carries_where_it_comes_from() -> None:
    judge = ScriptedJudge(lambda candidate: 2.0)
    loop = made(judge, proposers=[Model(["a"])])
    await loop.run()
    (attempt,) = loop.archive.attempts
    found = attempt.candidate
    assert found is not None and found.search == f"{loop.archive.id}#{attempt.number}"
    assert (found.proposer, found.move, found.turn) == ("openai:Qwen", "restart", 1)


async def test_the_same_candidate_is_never_judged_again() -> None:
    judge = ScriptedJudge(lambda candidate: 1.0)
    loop = made(judge, proposers=[Model(["a", "a", "b", "a"])])
    await loop.run()
    assert sorted(judge.asked) == [("a", False), ("b", False)]
    again = [a for a in loop.archive.attempts if a.proposal is None]
    first = next(a for a in loop.archive.attempts if a.candidate and a.candidate.id == "a")
    assert [a.complaint for a in again] == [f"same as attempt {first.number}"] * 2
    assert loop.archive.cost.tokens == 4 * 110 and count_judged(loop.archive.attempts) == 2


async def test_a_useless_reply_is_kept_with_its_complaint() -> None:
    loop = made(
        ScriptedJudge(lambda candidate: 1.0), proposers=[Model(["!no call in the reply", "a"])]
    )
    await loop.run()
    assert [a.complaint for a in loop.archive.attempts] == ["no call in the reply", ""]


@pytest.mark.parametrize("workers", [1, 3])
async def test_the_limit_of_candidates_is_exact(workers: int) -> None:
    judge = ScriptedJudge(lambda candidate: 1.0, seconds=0.001)
    model = Model([f"c{n}" for n in range(40)])
    loop = made(
        judge,
        proposers=[model],
        limits=SearchBudget(candidates=7, seconds=None),
        workers=SearchWorkers(judges=workers, samples=4),
    )
    assert await loop.run() is StopReason.CANDIDATES
    assert len(judge.asked) == count_judged(loop.archive.attempts) == 7
    assert model.at_work == judge.at_work == 0


def test_a_search_that_is_asked_for_again_stagnates_anew() -> None:
    """Attempt 0 is the best; five came after it, the last two of them in this run."""
    known = [attempt(0, 2.0), *(attempt(n, 1.0) for n in range(1, 6))]
    assert stagnant(known) == 5
    assert stagnant(known, begun=4) == 2


async def test_a_model_that_only_repeats_itself_ends_a_search() -> None:
    judge = ScriptedJudge(named({"best": 2.0}))
    model = Model(["best"] * 99)
    loop = made(judge, proposers=[model], limits=SearchBudget(seconds=None, stagnation=24))
    assert await loop.run() is StopReason.STAGNATION
    assert WASTED <= len(model.asked) <= WASTED + 8  # a few were on their way


async def test_stagnation_ends_a_search_and_repetition_counts_a_quarter() -> None:
    judge = ScriptedJudge(named({"best": 2.0} | {f"c{n}": 1.0 for n in range(9)}))
    model = Model(["best", "c0", "best", "best", "c1", "best", "best", "c2", "c3", "c4"])
    loop = made(judge, proposers=[model], limits=SearchBudget(seconds=None, stagnation=4))
    assert await loop.run() is StopReason.STAGNATION
    assert len(model.asked) >= 8  # best, then 1 + 1/4 + 1/4 + 1 + 1/4 + 1/4 + 1 = 4
    assert ("c2", False) in judge.asked and ("c4", False) not in judge.asked


async def test_tokens_end_a_search() -> None:
    loop = made(
        ScriptedJudge(lambda candidate: 1.0),
        proposers=[Model([f"c{n}" for n in range(40)])],
        limits=SearchBudget(seconds=None, tokens=500),
    )
    assert await loop.run() is StopReason.TOKENS
    assert 500 <= loop.archive.cost.tokens <= 500 + 4 * 110


async def test_gpu_seconds_end_a_search() -> None:
    loop = made(
        ScriptedJudge(lambda candidate: 1.0, seconds=0.02),
        proposers=[Model([f"c{n}" for n in range(40)])],
        limits=SearchBudget(seconds=None, gpu_seconds=0.05),
    )
    loop.task = helpers.task("cuda")
    assert await loop.run() is StopReason.GPU_SECONDS
    assert loop.archive.cost.gpu_s >= 0.05 and count_judged(loop.archive.attempts) <= 4


async def test_seconds_end_a_search_in_the_middle_of_a_judgement() -> None:
    judge = ScriptedJudge(lambda candidate: 1.0, seconds=600)
    archive = MemoryArchive()
    limits = SearchBudget(seconds=1.0)
    loop = made(judge, proposers=[Model(["a"])], archive=archive, limits=limits)
    assert await loop.run() is StopReason.SECONDS
    assert judge.at_work == 0 and [made.id for _, made in archive.unfinished] == ["a"]


async def test_at_the_roofline_nothing_more_is_tried() -> None:
    archive = MemoryArchive()
    evaluation = verdict(2.0)  # takes 0.5 ms
    seed = proposal(candidate(name="seed"), evaluation)
    for least_ms, reason in ((0.44, StopReason.EXHAUSTED), (0.46, StopReason.ROOFLINE)):
        archive = MemoryArchive()
        attempts.enter(
            archive,
            [replace(seed, evaluation=replace(evaluation, least_ms=least_ms))],
            lambda judged: {},
        )
        judge = ScriptedJudge(lambda candidate: 1.0)
        assert await made(judge, proposers=[Model(["a"])], archive=archive).run() is reason
        assert bool(judge.asked) is (reason is StopReason.EXHAUSTED)


async def test_nobody_to_ask_is_the_end() -> None:
    assert await made(ScriptedJudge(lambda candidate: 1.0)).run() is StopReason.EXHAUSTED


async def test_a_failing_model_is_asked_again_and_then_left_out_while_the_others_go_on() -> None:
    broken = Model([BackboneError("no answer", "start it")] * 99, name="vllm:broken")
    good = Model([f"c{n}" for n in range(3)], name="openai:good")
    said: list[str] = []
    loop = made(
        ScriptedJudge(lambda candidate: 1.0),
        proposers=[broken, good],
        workers=SearchWorkers(samples=3),
        retry_s=(0.01, 0.01),
        report=lambda progress: said.append(progress.message),
    )
    assert await loop.run() is StopReason.EXHAUSTED
    assert count_judged(loop.archive.attempts) == 3
    assert loop.notes == ["vllm:broken failed 3 times and was left out: no answer (start it)"]
    assert sum("asked again in" in message for message in said) == 2
    assert len(broken.asked) <= 9  # three prompts in flight, three times


async def test_a_model_that_comes_back_stays() -> None:
    failure = BackboneError("busy")
    model = Model([failure, "a", failure, "b", failure, "c"])
    loop = made(ScriptedJudge(lambda candidate: 1.0), proposers=[model], retry_s=(0.0, 0.0))
    await loop.run()
    assert count_judged(loop.archive.attempts) == 3 and loop.notes == []


async def test_a_reference_that_cannot_be_judged_ends_the_search_with_its_error() -> None:
    async def judge(candidate: Any, *, full: bool) -> SearchJudgement:
        raise EvaluationError("the reference crashes")

    model = Model(["a", "b"], seconds=60)
    quick = Model(["a"])
    with pytest.raises(EvaluationError, match="crashes"):
        await made(judge, proposers=[model, quick]).run()
    assert model.at_work == 0


@dataclass
class Unsteady(ScriptedJudge):
    """Fails in the judgements with these numbers."""

    fails: Sequence[int] = ()
    calls: int = 0

    async def __call__(self, made: Any, *, full: bool) -> SearchJudgement:
        self.calls += 1
        if self.calls in self.fails:
            raise EvaluationError("somebody else is busy on the GPU")
        return await super().__call__(made, full=full)


async def test_a_judgement_that_fails_among_others_is_repeated() -> None:
    """A quick one fails and the full one of the best: neither is lost, nothing is judged twice."""
    said: list[str] = []
    judge = Unsteady(named({"a": 1.0, "b": 1.0, "c": 2.0}), fails=(2, 5))
    model = Model(list("abc"))
    loop = made(judge, proposers=[model], report=lambda progress: said.append(progress.message))
    assert await loop.run() is StopReason.EXHAUSTED
    assert sorted(judge.asked) == [("a", False), ("b", False), ("c", False), ("c", True)]
    assert sum("is repeated: somebody else is busy" in message for message in said) == 2


async def test_a_device_that_stays_busy_ends_the_search() -> None:
    judge = Unsteady(lambda candidate: 1.0, fails=range(2, 99))
    with pytest.raises(EvaluationError, match="busy"):
        await made(judge, proposers=[Model(list("abc"))]).run()
    assert judge.calls == 5  # one verdict, and four failures in a row


@pytest.mark.parametrize("after_s", [0.0, 0.005, 0.02, 0.05])
async def test_cancelling_ends_everything_at_once(after_s: float) -> None:
    judge = ScriptedJudge(lambda candidate: 1.0, seconds=0.01)
    model = Model([f"c{n}" for n in range(99)], seconds=0.003)
    loop = made(judge, proposers=[model], workers=SearchWorkers(judges=2, samples=4))
    running = asyncio.create_task(loop.run())
    await asyncio.sleep(after_s)
    start = time.monotonic()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert time.monotonic() - start < 60
    assert judge.at_work == model.at_work == 0
    assert len(asyncio.all_tasks()) == 1


async def test_a_search_goes_on_where_it_ended() -> None:
    """Begun candidates come first; a quick verdict that looks better is judged in full; nothing
    else is."""
    archive = MemoryArchive()
    unfinished = Attempt(number=0, move=Move.RESTART, proposer="m", created=helpers.CREATED)
    archive.begin(unfinished, candidate(name="begun"))
    archive.add(helpers.attempt(1, 2.0, full=False))
    archive.add(helpers.attempt(2, 1.0, full=False))
    judge = ScriptedJudge(named({"begun": 1.0, "c1": 2.0}))
    loop = made(judge, archive=archive)
    assert await loop.run() is StopReason.EXHAUSTED
    assert judge.asked == [("begun", False), ("c1", True)]
    assert [(a.number, a.complete) for a in archive.attempts] == [(0, False), (1, True), (2, False)]


async def test_a_verdict_that_a_killed_process_had_reached_is_recalled() -> None:
    archive = MemoryArchive()
    archive.begin(
        Attempt(number=0, move=Move.RESTART, proposer="m", created=helpers.CREATED),
        candidate(name="begun"),
    )
    asked: list[tuple[str, bool]] = []

    async def recall(attempt: Attempt, made: Any, *, full: bool) -> SearchJudgement | None:
        asked.append((made.id, full))
        return None if full else SearchJudgement(proposal=proposal(made, verdict(2.0, full=False)))

    judge = ScriptedJudge(lambda candidate: 2.0)
    loop = made(judge, proposers=[Model(["new"])], archive=archive, recall=recall)
    await loop.run()
    assert set(asked) == {("begun", False), ("begun", True)}  # nobody is asked about what is new
    assert ("begun", False) not in judge.asked and ("begun", True) in judge.asked
    assert archive.attempts[0].cost.evaluations == 2


async def test_what_is_reported() -> None:
    said: list[Progress] = []
    judge = ScriptedJudge(named({"a": 2.0, "b": 1.0}))
    await made(judge, proposers=[Model(["a", "b"])], report=said.append).run()
    first, second = said
    assert first.phase == "search" and (first.done, first.total) == (1, 64)
    assert (
        first.proposal is not None
        and first.proposal.candidate.id == "a"
        and second.proposal is None
    )
    assert "round 1" in first.message and "best 2.04x (2.00–2.10)" in first.message


async def test_learning_hears_of_every_judgement_once() -> None:
    heard: list[Attempt] = []
    judge = ScriptedJudge(named({"a": 2.0, "b": None}))
    await made(judge, proposers=[Model(["a", "!none", "b", "a"])], learn=heard.append).run()
    assert [(a.candidate.id, a.complete) for a in heard if a.candidate] == [
        ("a", True),
        ("b", False),
    ]


# --- without a model ----------------------------------------------------------------------------


def chain(**choices: int) -> Any:
    return step("f", **choices)


async def test_mutation_finds_the_best_parameters_without_a_model() -> None:
    """24 combinations, 3 x 4 x 2; the best one is three changes away from the default."""
    workshop = ScriptedWorkshop([site("f", a=[0, 1, 2], b=[0, 1, 2, 3], c=[0, 1])])

    def speed(made: Any) -> float:
        p = made.steps[0].parameters
        return 1.0 + 0.2 * p["a"] + 0.1 * p["b"] + 0.3 * p["c"]

    archive = MemoryArchive()
    default = candidate([chain(a=0, b=0, c=0)])
    attempts.enter(archive, [proposal(default, verdict(1.0))], lambda judged: {})
    judge = ScriptedJudge(speed)
    loop = made(
        judge,
        archive=archive,
        strategy=Evolution(1),
        moves={Move.MUTATE: Mutate(workshop, archive)},
        limits=SearchBudget(seconds=None, stagnation=99),
    )
    assert await loop.run() is StopReason.EXHAUSTED
    asked = [name for name, full in judge.asked if not full]
    assert len(asked) == len(set(asked)) == 23  # everything but the default, nothing twice
    found = [a.fitness for a in archive.attempts[:13] if a.fitness]
    assert max(found) == pytest.approx(2.0)  # in half of them: a and b at their largest, and c


async def test_a_combination_that_the_engine_refuses_is_passed_over() -> None:
    workshop = ScriptedWorkshop(
        [site("f", a=[0, 1, 2, 3])], refused=lambda steps: steps[0].parameters["a"] == 2
    )
    archive = MemoryArchive()
    attempts.enter(archive, [proposal(candidate([chain(a=0)]), verdict(1.0))], lambda judged: {})
    judge = ScriptedJudge(lambda made: 1.0)
    moves = {Move.MUTATE: Mutate(workshop, archive)}
    await made(judge, archive=archive, strategy=Evolution(1), moves=moves).run()
    assert len(judge.asked) == 2
    assert workshop.applied.count(helpers.named([chain(a=2)])) == 1


def test_a_wrong_verdict_has_no_fitness() -> None:
    assert helpers.attempt(0, None).fitness is None
    assert verdict(None).status is EvalStatus.WRONG_RESULT
