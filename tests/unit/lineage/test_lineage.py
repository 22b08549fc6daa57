"""Lineages: what is accepted, what is kept and goes on, what the steps become, how it reads."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernel_lsp import wire
from kernel_lsp.errors import ArchiveError, RewriteError
from kernel_lsp.library import SkillLibrary
from kernel_lsp.lineage import catalog, forward, kept, lessons
from kernel_lsp.lineage.environment import Setup
from kernel_lsp.lineage.kept import Judgements
from kernel_lsp.lineage.walking import LineageState, LineageWalk, decide, interpretable, judgement
from kernel_lsp.presenter import lineages as presenting
from kernel_lsp.presenter import report
from kernel_lsp.records import (
    ArgSpec,
    Candidate,
    EvalStatus,
    Evaluation,
    Interval,
    Job,
    Judgement,
    Lineage,
    LineageSkill,
    Program,
    RecipeStep,
    Requirements,
    Site,
    Step,
    TargetKind,
)
from kernel_lsp.rewrite.kernels.source import KernelSource
from kernel_lsp.skillbook import Skillbook

KERNEL = """import triton
import triton.language as tl


@triton.autotune(configs=[triton.Config({"BLOCK": 64}), triton.Config({"BLOCK": 128})], key=["n"])
@triton.jit
def kernel(x, n, BLOCK: tl.constexpr):
    tl.store(x + tl.arange(0, BLOCK), 0.0)


def launch(x):
    kernel[(1,)](x, x.numel())
"""


def program(text: str = KERNEL) -> Program:
    return Program(
        source=text, entry="launch", kind=TargetKind.FUNCTION, kernel="kernel", launcher="launch"
    )


def passed(low: float, mid: float, high: float) -> Evaluation:
    """``low`` … ``high``: speed of the child over that of the parent."""
    return Evaluation(
        status=EvalStatus.PASSED,
        device="cuda",
        speedups={"eager": Interval(low=low, mid=mid, high=high)},
    )


def one(
    effect: Interval | None, status: EvalStatus = EvalStatus.PASSED, detail: str = ""
) -> Judgement:
    return Judgement(parent="p", child="c", status=status, detail=detail, effect=effect)


# --- what is accepted ---------------------------------------------------------------------


def test_the_effect_is_the_time_of_the_simple_form_over_that_of_the_other() -> None:
    parent, child = LineageState(program=program()), LineageState(program=program(KERNEL + "\n"))
    found = judgement(parent, child, passed(0.4, 0.5, 0.8))
    assert found.effect == Interval(low=1.25, mid=2.0, high=2.5)
    assert (found.parent, found.child) == (parent.id, child.id) and parent.id != child.id


@pytest.mark.parametrize(
    ("low", "high", "accepted", "said"),
    [
        (1.4, 1.6, True, "takes 1.50x the time"),
        (0.985, 1.02, True, "takes 1.00x"),
        (0.90, 1.10, False, "may be faster"),
        (0.80, 0.90, False, "is faster"),
    ],
)
def test_a_step_is_accepted_when_it_is_not_faster(
    low: float, high: float, accepted: bool, said: str
) -> None:
    found = decide(one(Interval(low=low, mid=(low + high) / 2, high=high)), measured=True)
    assert found[0] is accepted and said in found[1]


def test_without_times_what_is_right_is_accepted_and_what_is_wrong_is_not() -> None:
    assert decide(one(None), measured=False) == (True, "right; this device tells no times")
    assert decide(one(None), measured=True) == (False, "right, but its time could not be measured")
    wrong = one(None, EvalStatus.WRONG_RESULT, "row 3")
    assert decide(wrong, measured=False) == (False, "wrong result: row 3")


def test_the_interpreter_is_given_one_configuration() -> None:
    text = interpretable(program()).source
    assert "key=" in text and text.count('triton.Config({"BLOCK": 128})])[:1]') == 1
    untuned = program(
        KERNEL.replace(KERNEL[KERNEL.index("@triton.auto") : KERNEL.index("@triton.jit")], "")
    )
    assert interpretable(untuned) is untuned


# --- the walk -----------------------------------------------------------------------------


class Operators:
    """An engine whose states are the steps that were taken; each operator has one site until it
    was taken."""

    names = ("one_stage", "smaller_tile", "fewer_warps")
    broken = ""

    async def look(self, steps: Any) -> tuple[Site, ...]:
        left = [name for name in self.names if name not in [step.skill for step in steps]]
        return tuple(
            Site(skill=name, site=name, summary=name, proofs=()) for name in reversed(left)
        )

    async def variants(self, steps: Any, at: int, limit: int) -> tuple[Candidate, ...]:
        if steps[at].skill == self.broken:
            raise RewriteError("it fails on this text")
        return tuple(
            self._made([*steps[:at], replace(steps[at], parameters={"choice": choice})])
            for choice in ("all", "half")
        )

    def _made(self, steps: list[Step]) -> Candidate:
        text = KERNEL + "".join(f"# {step.skill} {step.parameters}\n" for step in steps)
        return Candidate(
            id=str(len(text)), edit=None, program=text, entry="launch", steps=tuple(steps)
        )


class Times:
    """A gate that knows what each comment costs."""

    costs: dict[str, float]

    def __init__(self, costs: dict[str, float], stop_after: int = 99) -> None:
        self.costs, self.left, self.asked = costs, stop_after, 0

    async def evaluate(self, request: Any) -> Evaluation:
        if not self.left:
            raise KeyboardInterrupt
        self.left, self.asked = self.left - 1, self.asked + 1
        ratio = self._time(request.candidate_source) / self._time(request.reference.source)
        return passed(0.99 / ratio, 1 / ratio, 1.01 / ratio)

    def _time(self, text: str) -> float:
        time = 1.0
        for line in text.splitlines():
            time *= next((cost for words, cost in self.costs.items() if f"# {words}" in line), 1.0)
        return time


def walk(place: Path, gate: Times) -> LineageWalk:
    prepared = SimpleNamespace(
        program=program(),
        workload=SimpleNamespace(name="x=f32[9]"),
        target=SimpleNamespace(qualname="kernel", fingerprint="f"),
        job=Job(text=KERNEL, path="/w/k.py", qualname="kernel"),
    )
    probe = SimpleNamespace(
        python="python", torch="2.11.0", triton="3.6.0", capability="sm_90", device="NVIDIA H200"
    )
    bench = SimpleNamespace(probe=probe, device="cuda")
    settings = SimpleNamespace(evaluate_timeout_s=60.0, data_dir=str(place))
    inputs = (ArgSpec(name="x", dtype="float32", shape=(4096,)),)
    on = Setup(
        pipeline=SimpleNamespace(settings=settings),  # type: ignore[arg-type]
        prepared=prepared,  # type: ignore[arg-type]
        one=SimpleNamespace(  # type: ignore[arg-type]
            engine=Operators(), gate=gate, bench=bench, capture=SimpleNamespace(inputs=inputs)
        ),
        skills=Skillbook(),
        device="cuda",
        hardware="cuda:sm_90",
        place=place / "walk",
    )
    return LineageWalk(on=on, judgements=Judgements(on.place), report=lambda step: None)


COSTS = {
    "one_stage {'choice': 'all'}": 1.5,
    "smaller_tile {'choice': 'all'}": 0.5,
    "smaller_tile {'choice': 'half'}": 1.2,
    "fewer_warps": 0.9,
}


async def test_the_walk_takes_what_is_not_faster_and_keeps_what_is_as_a_failure(
    tmp_path: Path,
) -> None:
    found = await walk(tmp_path, Times(COSTS)).run()
    assert [(s.operator, s.parameters["choice"]) for s in found.steps] == [
        ("one_stage", "all"),
        ("smaller_tile", "half"),
    ]
    assert [(s.operator, s.parameters["choice"]) for s in found.avoided] == [
        ("smaller_tile", "all"),
        ("fewer_warps", "all"),
        ("fewer_warps", "half"),
    ]
    assert found.finished and found.whole is not None and found.whole.effect is not None
    assert found.whole.effect.mid == pytest.approx(1.8)
    assert found.steps[0].judgement.parent == found.expert
    assert found.steps[1].judgement.parent == found.steps[0].judgement.child


async def test_an_operator_that_fails_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Operators, "broken", "smaller_tile")
    found = await walk(tmp_path, Times(COSTS)).run()
    assert [step.operator for step in found.steps] == ["one_stage"] and found.finished


@pytest.mark.parametrize("after", [1, 3, 5])
async def test_a_walk_that_was_stopped_goes_on_and_judges_nothing_twice(
    tmp_path: Path, after: int
) -> None:
    whole = Times(COSTS)
    expected = await walk(tmp_path / "whole", whole).run()
    first, second = Times(COSTS, stop_after=after), Times(COSTS)
    with pytest.raises(KeyboardInterrupt):
        await walk(tmp_path / "two", first).run()
    found = await walk(tmp_path / "two", second).run()
    assert replace(found, created="") == replace(expected, created="")
    assert first.asked + second.asked == whole.asked


def test_half_a_line_of_a_killed_run_is_not_read_and_does_not_spoil_the_next(
    tmp_path: Path,
) -> None:
    first = one(Interval(low=1, mid=1, high=1))
    Judgements(tmp_path).add(first)
    path = tmp_path / kept.JUDGED
    path.write_text(path.read_text() + '{"parent": "p2", "chi')
    Judgements(tmp_path).add(replace(first, child="d"))
    read = Judgements(tmp_path)
    assert (
        read.get("p", "c") == first
        and read.get("p", "d") is not None
        and read.get("p2", "c") is None
    )
    assert Judgements(tmp_path, fresh=True).get("p", "c") is None


def test_a_folder_that_cannot_be_used_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ArchiveError, match="cannot be used"):
        Judgements(tmp_path / "file" / "walk")


# --- what the steps become ----------------------------------------------------------------


LAUNCHED = """import triton


@triton.jit
def kernel(x, BLOCK, OTHER):
    a, b = tl.swizzle2d(a, b, 4, 4, 8)


def launch(x):
    size = {size}
    kernel[(1,)](x, BLOCK=size, OTHER=7, num_warps={warps})
"""


LOOPED = """def kernel(x):
    for i in tl.range(0, 9, num_stages=3):
        x += i


def launch(x):
    pass
"""


def source(size: int, warps: int) -> KernelSource:
    return KernelSource.parse(LAUNCHED.format(size=size, warps=warps), "kernel", "launch")


def test_the_numbers_of_the_expert_are_read_from_its_text() -> None:
    expert, simple = source(128, 8), source(16, 8)
    assert forward.numbers("smaller_tile", expert, simple) == {"BLOCK": 128}
    assert forward.numbers("fewer_warps", expert, source(128, 1)) == {"num_warps": 8}
    assert forward.numbers("no_grouped_order", expert, simple) == {"group": 8}
    assert forward.numbers("no_hints", expert, simple) == {}
    looped = KernelSource.parse(LOOPED, "kernel", "launch")
    assert forward.numbers("plain_loops", looped, looped) == {"num_stages": 3}


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.sampled_from("xyz"), st.integers(0, 3)), max_size=8
    )
)
def test_each_skill_is_taken_once_with_its_last_numbers(told: list[tuple[str, str, int]]) -> None:
    steps = [RecipeStep(skill=skill, parameters={name: value}) for skill, name, value in told]
    merged = forward.merge_steps(steps)
    assert [step.skill for step in merged] == list(dict.fromkeys(skill for skill, _, _ in told))
    for step in merged:
        assert step.parameters == {
            name: value for skill, name, value in told if skill == step.skill
        }


async def lineage(tmp_path: Path) -> tuple[LineageWalk, Lineage]:
    walked = walk(tmp_path, Times(COSTS))
    return walked, await lessons.learn(walked, await walked.run())


async def test_what_pays_is_a_draft_and_nothing_else_is(tmp_path: Path) -> None:
    _, found = await lineage(tmp_path)
    assert [skill.standing for skill in found.skills] == ["staged", "staged"]
    staged = {one.papers.name: one for one in SkillLibrary(tmp_path).staged()}
    assert set(staged) == {skill.name for skill in found.skills}
    papers, skill = staged[found.skills[0].name].papers, staged[found.skills[0].name].skill
    assert papers.origin.event == "lineage" and papers.origin.speedup == found.skills[0].effect
    assert (
        skill.scope == "triton"
        and skill.requires is not None
        and skill.requires.dtypes == ("float32",)
    )
    assert (
        skill.requires.architectures == ("sm_90",)
        and "was rejected" in staged[found.skills[1].name].skill.body
    )
    assert not SkillLibrary(tmp_path).shelved()  # only a verification brings it in


async def test_only_steps_that_rely_on_it_ask_for_sizes_that_divide(tmp_path: Path) -> None:
    walked, found = await lineage(tmp_path)
    assert {skill.requires.multiple for skill in found.skills} == {None}
    hinted = replace(found.steps[0], operator="no_hints")
    assert lessons._requires(walked, hinted).multiple == 16
    assert lessons._requires(walked, hinted).elements == found.skills[0].requires.elements


async def test_nothing_that_was_not_measured_becomes_a_draft(tmp_path: Path) -> None:
    walked, found = await lineage(tmp_path / "measured")
    unmeasured = replace(found.skills[0], effect=None)
    neutral = replace(found.skills[0], effect=Interval(low=0.99, mid=1.0, high=1.01))
    for skill, said in ((unmeasured, "nothing was measured"), (neutral, "no gain is shown")):
        before = len(SkillLibrary(tmp_path / "measured").staged())
        assert said in lessons._stage(walked, replace(skill, name="lineage-other")).standing
        assert len(SkillLibrary(tmp_path / "measured").staged()) == before


@pytest.mark.parametrize("operator", catalog.OPERATORS, ids=lambda operator: operator.name)
def test_every_operator_gives_a_text_that_the_library_takes(
    operator: catalog.Simplification,
) -> None:
    from kernel_lsp.agents import summary
    from kernel_lsp.library import admission

    made = lessons.draft(skill_of(operator))
    assert list(summary.faults(made, set())) == []
    assert (
        list(admission.faults(made, [], (ArgSpec(name="x", dtype="float32", shape=(4096,)),), "k"))
        == []
    )
    assert len(made.description) <= 120 and (catalog.FOLDER / f"{operator.name}.py").is_file()


def skill_of(operator: catalog.Simplification) -> LineageSkill:
    return LineageSkill(
        name=f"lineage-{operator.forward}-abc123",
        operator=operator.name,
        intent=operator.intent,
        anchor=operator.anchor,
        carrier=operator.carrier,
        requires=Requirements(),
        proofs=(),
        recipe=(),
        how="",
        effect=Interval(low=1.1, mid=1.2, high=1.3),
        hardware="cuda:sm_90",
        device_name="NVIDIA H200",
        avoided=(),
        parent="p",
        child="c",
        change="@@\n-a\n+b",
    )


# --- how it reads -------------------------------------------------------------------------


async def test_a_lineage_is_the_same_after_it_was_read_back_and_names_every_step(
    tmp_path: Path,
) -> None:
    _, found = await lineage(tmp_path)
    told = presenting.markdown(found)
    kept.write(tmp_path / "lineages" / "k", found, told)
    assert list(kept.lineages(tmp_path)) == [found]
    assert wire.from_json(Lineage, json.loads(wire.dumps(found))) == found
    assert "| 2 | smaller_tile choice = half | smaller_tile | 1.20x (1.19 to 1.21)" in told
    assert "**Avoided failure.** smaller_tile choice = all" in told and "Unmeasured" not in told
    assert "2 steps accepted, 3 rejected" in presenting.brief(found)


async def test_an_unmeasured_lineage_says_so_and_invents_no_effect(tmp_path: Path) -> None:
    _, found = await lineage(tmp_path)
    steps = tuple(replace(s, judgement=replace(s.judgement, effect=None)) for s in found.steps)
    told = presenting.markdown(replace(found, measured=False, steps=steps, skills=(), whole=None))
    assert "**Unmeasured:**" in told and "nothing of this lineage can come into the library" in told
    assert "| - |" in told


async def test_the_report_draws_it(tmp_path: Path) -> None:
    _, found = await lineage(tmp_path)
    page = report.page(report.ReportFacts(made="2026-11-21", version="1", lineages=(found,)))
    assert (
        "from the expert&#39;s kernel to a naive one" in page and "rejected: smaller tile" in page
    )
    assert page.count("<svg") == 1 and "1.20x (1.19 to 1.21)" in page
    bare = tuple(replace(s, judgement=replace(s.judgement, effect=None)) for s in found.steps)
    page = report.page(
        report.ReportFacts(
            made="2026-11-21", version="1", lineages=(replace(found, measured=False, steps=bare),)
        )
    )
    assert "(unmeasured)" in page and "time over the expert" not in page
