"""One generated task with the engine's rewrites of it, as a writer learns from it.

`make_row` runs an engine's session in this process, on fake tensors: what a row costs is the
check of the task, the capture and the printing. Rewrites are the first plans that the rule
proposes for a GPU, without what is put around a whole program (CUDA graphs, torch.compile): that
is the same text every time, and no kernel. Not covered: whether a rewrite is right, which holds by
construction and is sampled by `judging.py`."""

from __future__ import annotations

import asyncio
import functools
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kernel_lsp import skillbook, wire
from kernel_lsp.agents.plan import Planner
from kernel_lsp.errors import KernelLspError
from kernel_lsp.records import (
    GraphView,
    Program,
    Skill,
    Step,
    TargetKind,
    Workload,
    WorkloadOrigin,
)
from trainer.policies.ruling import InProcess
from trainer.tasks import generated
from trainer.tasks.families import structure
from trainer.tasks.likeness import mark
from trainer.writer import short_form
from trainer.writer.helpers import Helpers, complete
from trainer.writer.names import Names
from trainer.writer.split import WriterPart, part_of

WRAPPERS = frozenset({"cuda-graph", "compile-target"})
MAX_COURSES, MAX_REPLIES = 3, 2
"""Plans of the rule that are looked at, and rewrites that are kept of one task."""
SAMPLED = 4
WORKLOAD = Workload(name="get_inputs", origin=WorkloadOrigin.GET_INPUTS)


@dataclass(frozen=True, kw_only=True, slots=True)
class WrittenReply:
    text: str
    skills: tuple[str, ...]
    gain: float | None
    """Estimated seconds of a call before over those after; None: no estimate."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WriterRow:
    name: str
    part: WriterPart
    family: str
    source: str
    graph: GraphView
    question: str
    """With the skills that apply, under the names of names.py."""
    plain: str
    """Without."""
    replies: tuple[WrittenReply, ...]
    """Of the engine, the rule's first choice first, under the names of names.py."""
    grams: tuple[int, ...]
    """Hashes of runs of tokens (likeness.py): 32 bits of one in `SAMPLED`, enough to compare."""
    digest: str
    ops: tuple[str, ...]

    @property
    def program(self) -> Program:
        """The row's program."""
        return Program(source=self.source, entry="Model", kind=TargetKind.MODULE)

    @property
    def names(self) -> Names:
        """Plain names of what the row's program computes."""
        return Names.of(self.source, "Model", self.graph)

    def assemble(self, reply: str, helpers: Helpers, device: str = "cuda") -> str:
        """The program with a reply in it. Raises UnreadableReply."""
        own = self.names.restore(complete(reply, helpers))
        return short_form.assemble(self.program, self.graph, own, device)


@functools.cache
def engine_skills() -> tuple[Skill, ...]:
    """The built-in skills that the engine can apply."""
    found = skillbook.load(skillbook.folders(())).skills
    return tuple(skill for skill in found if skill.executable)


def make_row(
    seed: int, number: int, *, large: bool = True, kinds: frozenset[str] = frozenset()
) -> WriterRow | str:
    """A row, or why there is none. ``large``: sizes for a GPU. ``kinds``: of operators; empty:
    all."""
    source = generated.build(seed, number, large=large)
    found, seen = structure(source), mark(source)
    if found is None or seen is None or not found.ops:
        return "nothing is computed"
    if kinds and not kinds.issuperset(found.kinds):
        return "it has operators of another kind"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch, about what a random module does
        twin = generated.build(seed, number, tiny=True, large=large)
        if problem := generated.check(source, twin):
            return problem
        try:
            return _captured_row(f"w{seed}_{number:06d}", source)
        except KernelLspError as error:
            return f"the engine refuses it: {type(error).__name__}"


def _captured_row(name: str, source: str) -> WriterRow | str:
    from kernel_lsp.rewrite.engine import EngineSession
    from kernel_lsp.rewrite.view import view_of

    found, seen = structure(source), mark(source)
    assert found is not None and seen is not None
    program = Program(source=source, entry="Model", kind=TargetKind.MODULE)

    class OneShape(EngineSession):
        """Rewrites are put in for calls of exactly this shape (short_form.py): other batches,
        a third of the time, need not be tried."""

        def _others(self, longer: Any) -> list[Any]:
            return []

    session = OneShape(program, WORKLOAD, "cuda", list(engine_skills()))
    try:
        names = Names.of(source, "Model", view_of(session.graph))
    except short_form.UnreadableReply:
        return "its names are like ours"
    _call_values(session.graph, names)
    capture = session.capture()
    if capture.graph is None:
        return "the engine shows no graph"
    replies = _replies(session, asyncio.run(_plans(session, capture.sites)), names)
    if not replies:
        return "the engine has no kernel for it"
    descriptions = {skill.name: skill.description for skill in engine_skills()}
    offered = dict.fromkeys(site.skill for site in capture.sites if site.skill not in WRAPPERS)
    described = [(skill, descriptions[skill]) for skill in offered]
    short = replace(program, source=names.program(source))
    graph = names.graph(capture.graph)
    return WriterRow(
        name=name,
        part=part_of(found, seen.digest, (one.op for one in capture.graph.operations)),
        family=found.family,
        source=source,
        graph=capture.graph,
        question=short_form.encode_question(short, graph, described),
        plain=short_form.encode_question(short, graph),
        replies=tuple(replies),
        grams=sampled_grams(seen.grams),
        digest=seen.digest,
        ops=found.ops,
    )


def _call_values(graph: Any, names: Names) -> None:
    """Rewrites write a statement for each operation, and call its value as the question's graph
    does: by the program's own names and lines, which the question does not show, no writer knows
    what comes next."""
    places = {node.name: place for place, node in enumerate(graph.captured)}
    for node in (*graph.captured, *graph.fx.nodes):
        if node.op == "call_function" and node.name in names.values:
            place = places[node.name]
            node.meta["statement"] = (place, place, names.values[node.name])


def sampled_grams(grams: Iterable[int]) -> tuple[int, ...]:
    """A fixed share of the hashes, in order, to compare texts by."""
    return tuple(sorted(gram >> 32 for gram in grams if gram % SAMPLED == 0))


def has_kernel(reply: str) -> bool:
    """Whether a reply has a kernel of its own: the rest are other orders of library calls."""
    return "@triton.jit" in reply


async def _plans(session: object, sites: Sequence[object]) -> list[tuple[Step, ...]]:
    engine = InProcess(session)
    planner = Planner(engine.make, engine.look, weigh=engine.weigh)
    found: dict[str, tuple[Step, ...]] = {}
    seen = 0
    async for ranked_plan in planner.ranked_plans(sites, triton=True):  # type: ignore[arg-type]
        steps = tuple(step for step in ranked_plan.steps if step.skill not in WRAPPERS)
        if steps:
            found.setdefault(wire.dumps(steps), steps)
        seen += 1
        if seen == MAX_COURSES:
            break
    return list(found.values())[:MAX_REPLIES]


def _replies(
    session: object, plans: Sequence[tuple[Step, ...]], names: Names
) -> list[WrittenReply]:
    engine = InProcess(session)
    before = _seconds(engine, ())
    found: dict[str, WrittenReply] = {}
    for steps in plans:
        skills = tuple(dict.fromkeys(step.skill for step in steps))
        try:
            candidate = asyncio.run(engine.make(steps))
            if candidate.edit is None:
                continue
            text = names.shorten(short_form.encode_rewrite(candidate.edit, skills))
            if not has_kernel(text):
                continue  # another order of library calls
        except (KernelLspError, short_form.UnreadableReply):
            continue  # a plan that the engine gives up, or that no reply can say
        after = _seconds(engine, steps)
        gain = before / after if before and after else None
        found.setdefault(text, WrittenReply(text=text, skills=skills, gain=gain))
    return list(found.values())


def _seconds(engine: InProcess, steps: Sequence[Step]) -> float | None:
    try:
        return asyncio.run(engine.weigh(steps))
    except KernelLspError:
        return None
