"""The engine process: capture a program once, then rewrite copies of its graph on request.

    python bootstrap.py LIMITS kernel_lsp.rewrite.engine        (see client.py)

Requests are frames: ``open`` (program, workload, device, skills), then steps: ``look`` (what could
follow), ``view`` (that, and the graph), ``launched`` (a kernel and its launch), ``weigh`` (about
how long a call takes), ``make`` (the program), ``propose`` (program and what could follow),
``variants`` (other parameters), ``explain`` (why not more is offered). ``survey`` stands by
itself: which parts of a module can be opened. A failure that a user may read travels as kind,
cause and remedy; anything else is labeled RewriteError, so that one bad skill never ends the
engine. Never runs the target on real data."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Iterable
from dataclasses import replace
from types import ModuleType
from typing import Any, TypeAlias

import torch

from kernel_lsp import devices, wire
from kernel_lsp.devices import DeviceDescription
from kernel_lsp.errors import CaptureError, KernelLspError, RewriteError, boundary, known_class
from kernel_lsp.records import (
    ArgSpec,
    Candidate,
    Explained,
    KernelView,
    Program,
    Proof,
    Site,
    Skill,
    SourceEdit,
    Span,
    Step,
    Viewed,
    Workload,
)
from kernel_lsp.rewrite import call_time, kinds
from kernel_lsp.rewrite.capture.aliasing import require_same_sharing, separate_results
from kernel_lsp.rewrite.capture.questions import decides_by_batch
from kernel_lsp.rewrite.capture.tracing import capture
from kernel_lsp.rewrite.capture.writes import require_order
from kernel_lsp.rewrite.choices import combinations
from kernel_lsp.rewrite.client import Capture, Proposed
from kernel_lsp.rewrite.cost import operations as cost
from kernel_lsp.rewrite.edit import LINE_END, apply_edit
from kernel_lsp.rewrite.generated import Match
from kernel_lsp.rewrite.graph import FreeLength, Graph
from kernel_lsp.rewrite.kernels.session import KernelSession
from kernel_lsp.rewrite.loops.unrolled import is_unrolled
from kernel_lsp.rewrite.near_misses.collected import Declined, MatchObserver, explain_misses
from kernel_lsp.rewrite.printing.forward import Emission, emit
from kernel_lsp.rewrite.scripts import load_skills
from kernel_lsp.rewrite.view import view_of

AppliedGraph: TypeAlias = tuple[Graph, list[Proof], list[str]]
"""A graph after some steps, their proofs, what they did. Never changed once it is remembered."""
MAX_PREFIXES = 200
"""Graphs after the first steps of a chain that are kept at once; a graph of 1000 nodes takes about
2 MB."""


class EngineSession:
    """One open program: its graph, its skills, and copies of the graph at other batch sizes."""

    def __init__(
        self,
        program: Program,
        workload: Workload,
        device: str,
        skills: list[Skill],
        *,
        hardware: DeviceDescription | None = None,
    ) -> None:
        """``hardware``: by which costs are estimated; None: what is known of ``device`` without a
        GPU."""
        text = LINE_END.sub("\n", program.source)
        self.program, self.workload, self.device = replace(program, source=text), workload, device
        self.rewrites, self.notes = load_skills(skills, "graph")
        self.hardware = hardware or devices.describe(device)
        self.graph = self._captured()
        self._other_batches: dict[bool, list[Graph]] = {}
        self._prefixes: dict[tuple[int, str], AppliedGraph] = {}
        self._seen = MatchObserver()
        """What skills declined while the captured graph was matched."""

    def _captured(self, batch: int | None = None, longer: FreeLength | None = None) -> Graph:
        graph = capture(self.program, self.workload, self.device, batch=batch, longer=longer)
        graph.hardware = self.hardware
        return graph

    def capture(self) -> Capture:
        """What of the opened program other processes see: its words, sites, inputs, bytes moved and
        graph."""
        read, written = cost.traffic(self.graph)
        self._seen = MatchObserver()
        return Capture(
            words=tuple(words(self.graph)),
            sites=self.sites(self.graph, self._seen),
            inputs=tuple(_spec(item.source, item.value) for item in self.graph.inputs),
            notes=tuple(self.notes),
            read_bytes=read,
            written_bytes=written,
            graph=view_of(self.graph),
        )

    def sites(self, graph: Graph, seen: MatchObserver | None = None) -> tuple[Site, ...]:
        """Every place where a skill applies with all preconditions proved, most saving first;
        ``seen`` collects why the others are none."""
        if graph.wrapper is not None:  # its definitions hold for what it was put around
            return ()
        seen = seen or MatchObserver()
        found = [
            site for name in self._fitting(graph) for site in self._sites_of(name, graph, seen)
        ]
        return tuple(sorted(found, key=lambda site: -(site.benefit or 0.0)))

    def _fitting(self, graph: Graph) -> list[str]:
        """Skills that are asked. Of loops one step after the other, only those that are about
        loops: nobody reads 128 kernels, and matching takes minutes."""
        names = list(self.rewrites)
        if is_unrolled(graph):
            return [name for name in names if getattr(self.rewrites[name], "handles_loops", False)]
        return names

    def explain(self) -> Explained:
        """Why not more is offered: where skills nearly apply, and what the device leaves to
        gain."""
        asked = [miss for name in self._fitting(self.graph) for miss in self._misses_of(name)]
        return explain_misses(self.graph, [*asked, *self._seen.declined], self._seen.covered)

    def _misses_of(self, name: str) -> list[Declined]:
        misses = getattr(self.rewrites[name], "misses", None)
        try:
            return (
                [Declined(skill=name, miss=miss) for miss in misses(self.graph)] if misses else []
            )
        except Exception as error:  # a skill that cannot explain itself must not hide the others
            self.notes.append(f"misses of {name} failed: {type(error).__name__}: {error}")
            return []

    def propose(self, steps: list[Step]) -> Proposed:
        """The candidate of these steps, and the sites that are left after them."""
        return Proposed(candidate=self.make(steps), sites_left=self.look(steps))

    def _candidate(
        self,
        graph: Graph,
        steps: list[Step],
        proofs: list[Proof],
        summaries: list[str],
        made: Emission,
    ) -> Candidate:
        edit = SourceEdit(
            qualname=self.program.entry,
            imports=made.imports,
            definitions=made.definitions,
            target=made.target,
        )
        span = self._span_in_file(made)
        source = apply_edit(self.program.source, span, edit)
        return Candidate(
            id=hashlib.sha256(f"{self.program.entry}\0{source}".encode()).hexdigest()[:16],
            edit=edit,
            program=source,
            entry=self.program.entry,
            steps=tuple(steps),
            proofs=tuple(proofs),
            summary="; ".join(dict.fromkeys(summaries)),
            caveats=tuple(graph.caveats),
            uses_triton=any(kernel.is_triton for kernel in graph.generated),
        )

    def _span_in_file(self, made: Emission) -> Span:
        """Of a part's class: the emission counts in the text in which the part is a method."""
        longer = len(self.graph.origin.program) - len(self.program.source)
        return Span(start=made.span.start, end=made.span.end - longer)

    def look(self, steps: list[Step]) -> tuple[Site, ...]:
        """The sites at which another step could follow these."""
        return self.sites(self._replay(self.graph, steps)[0])

    def view(self, steps: list[Step]) -> Viewed:
        """The graph after these steps, where another could follow, and about how long a call
        takes."""
        graph = self._replay(self.graph, steps)[0]
        cost = call_time.call_cost(self._applied(self.graph, steps)[0])
        return Viewed(graph=view_of(graph), sites=self.sites(graph), cost=cost)

    def launched(self, steps: list[Step]) -> KernelView:
        """Raises RewriteError: that question is for kernels."""
        raise RewriteError("a graph launches many kernels", "view it")

    def weigh(self, steps: list[Step]) -> float:
        """Estimated seconds of a call after these steps, without what they wrap around it."""
        return call_time.seconds(self._applied(self.graph, steps)[0])

    def make(self, steps: list[Step]) -> Candidate:
        """The rewritten program after these steps."""
        graph, proofs, summaries = self._replay(self.graph, steps)
        return self._candidate(graph, steps, proofs, summaries, self._emit(graph, steps))

    def variants(self, steps: list[Step], at: int, limit: int) -> list[Candidate]:
        """The same steps with other parameters at place ``at``, the given ones first; for a
        comparison only.

        What is judged is made by :meth:`propose`, which also finds out whether the batch stays
        free."""
        before, _, _ = self._applied(self.graph, steps[:at])
        module, step = self._rewrite(steps[at].skill), steps[at]
        with boundary(RewriteError, f"{step.skill} failed at {step.site}"):
            match = next((m for m in module.match(before) if m.label == step.site), None)
            if match is None:
                raise RewriteError(
                    f"{step.skill} does not apply at {step.site}", "choose one of the sites"
                )
            space = _parameters(module, before, match)
            cost = getattr(module, "estimate", None)
            weigh = (lambda choice: float(cost(before, match, choice))) if cost else None
            choices = combinations(space, step.parameters, limit, weigh)
        made = (self._variant(steps, at, choice) for choice in choices)
        return [candidate for candidate in made if candidate is not None]

    def _variant(self, steps: list[Step], at: int, choice: dict[str, Any]) -> Candidate | None:
        changed = [*steps]
        changed[at] = replace(steps[at], parameters=choice)
        try:
            graph, proofs, summaries = self._replay(self.graph, changed)
            return self._candidate(
                graph, changed, proofs, summaries, emit(graph, generic_batch=False)
            )
        except RewriteError:  # a combination that a skill refuses takes no part
            return None

    # --- steps ---------------------------------------------------------------------------

    def _replay(self, origin: Graph, steps: list[Step]) -> tuple[Graph, list[Proof], list[str]]:
        graph, proofs, summaries = self._applied(origin, steps)
        made = graph.copy()
        separate_results(made)
        require_order(made)
        if self.program.part is not None:
            require_same_sharing(made)
        return made, list(proofs), list(summaries)

    def _applied(self, origin: Graph, steps: list[Step]) -> AppliedGraph:
        """The graph after the steps; remembered, because a chain grows by one step at a time."""
        if not steps:
            return origin, [], []
        key = id(origin), wire.dumps(steps)
        if key not in self._prefixes:
            before, proofs, summaries = self._applied(origin, steps[:-1])
            graph = before.copy()
            proved, summary = self._apply(graph, steps[-1])
            if len(self._prefixes) >= MAX_PREFIXES:
                self._prefixes.clear()
            self._prefixes[key] = graph, [*proofs, *proved], [*summaries, summary]
        return self._prefixes[key]

    def _apply(self, graph: Graph, step: Step) -> tuple[list[Proof], str]:
        """One step on this very graph: its proofs and what it did."""
        module = self._rewrite(step.skill)
        with boundary(RewriteError, f"{step.skill} failed at {step.site}"):
            match = next((m for m in module.match(graph) if m.label == step.site), None)
            if match is None:
                raise RewriteError(
                    f"{step.skill} does not apply at {step.site}", "choose one of the sites"
                )
            proved = list(module.preconditions(graph, match))
            if broken := [proof for proof in proved if not proof.holds]:
                raise RewriteError(
                    f"{step.skill}: {broken[0].claim} is not proved ({broken[0].because})"
                )
            defaults = {
                name: choices[0] for name, choices in _parameters(module, graph, match).items()
            }
            before = call_time.work(graph)
            module.apply(graph, match, {**defaults, **step.parameters})
            graph.drop_unused()
            graph.fx.lint()
            call_time.hand_over(before, graph, match.benefit or 0.0)
        return proved, match.summary

    def _emit(self, graph: Graph, steps: list[Step]) -> Emission:
        """Dimension 0 and the length of a cache stay free only if the same steps give the same
        source at other sizes."""
        free = emit(graph, generic_batch=True)
        longer = self._longer
        grows = longer is not None and self._body(longer, steps) == free.body
        others = self._others(self.graph.origin.free_length if grows else None)
        is_free = bool(others) and all(self._body(one, steps) == free.body for one in others)
        return emit(graph, generic_batch=is_free, free_length=grows)

    def _body(self, other: Graph, steps: list[Step]) -> str | None:
        """What the same steps give at another size; None where they cannot be made."""
        try:
            return emit(self._replay(other, steps)[0], generic_batch=True).body
        except KernelLspError:
            return None

    @functools.cached_property
    def _longer(self) -> Graph | None:
        """The program captured with caches about twice as long; None where none grows."""
        free = self.graph.origin.free_length
        try:
            return None if free is None else self._captured(longer=free)
        except CaptureError:  # the program fixes the length: then so does the guard
            return None

    def _others(self, longer: FreeLength | None) -> list[Graph]:
        """The program captured with a batch of 1 and with one more than twice as large, and with
        ``longer`` caches where these may grow. None of them where it decides by the batch."""
        if (longer is not None) not in self._other_batches:
            self._other_batches[longer is not None] = self._made_others(longer)
        return self._other_batches[longer is not None]

    def _made_others(self, longer: FreeLength | None) -> list[Graph]:
        known = self.graph.origin.may_decide_by_batch
        if decides_by_batch(self.program.source) if known is None else known:
            return []
        first = next((i.value.shape for i in self.graph.inputs if i.node is not None), ())
        sizes = sorted({1, 2 * first[0] + 1} - {first[0]}) if first and first[0] > 1 else []
        try:
            return [self._captured(size, longer) for size in sizes]
        except CaptureError:  # the program fixes its batch: then so does the guard
            return []

    def _sites_of(self, name: str, graph: Graph, seen: MatchObserver) -> Iterable[Site]:
        module = self.rewrites[name]
        try:
            for match in module.match(graph):
                proofs = (*module.preconditions(graph, match), *_proofs_of_calls(match))
                worth = match.benefit is None or match.benefit > 0.0
                trains = match.plain or match.differentiable or not graph.gradients
                if not (worth and trains and all(proof.holds for proof in proofs)):
                    seen.decline(graph, name, match, proofs)
                else:
                    seen.cover(match)
                    parameters = _parameters(module, graph, match)
                    kind = kinds.kind_of(graph, match, name, parameters, module.__file__)
                    yield _site(name, match, proofs, parameters, kind)
        except Exception as error:  # a broken skill must not hide the others; the note names it
            self.notes.append(f"skill {name} failed: {type(error).__name__}: {error}")

    # --- skills --------------------------------------------------------------------------

    def _rewrite(self, name: str) -> ModuleType:
        if name not in self.rewrites:
            raise RewriteError(f"{name} has no rewrite", "choose one of the open skills")
        return self.rewrites[name]


def _proofs_of_calls(match: Match) -> list[Proof]:
    """Layers with hooks or computed weights are called as they are (capture/opaque.py)."""
    nodes = () if match.wraps else match.nodes
    paths = sorted({str(n.meta["opaque"]) for n in nodes if "opaque" in getattr(n, "meta", {})})
    because = "they have hooks or computed weights"
    return [
        Proof(claim=f"{path} is called as it is", holds=False, because=because) for path in paths
    ]


def words(graph: Graph) -> list[str]:
    """What the target does, in words a skill's description would use."""
    found: dict[str, None] = {}
    for node in graph.nodes:
        schema = getattr(node.target, "_schema", None)
        found.update(
            dict.fromkeys(schema.name.split("::")[1].strip("_").split("_") if schema else ())
        )
        if graph.fact(node).singleton_dims:
            found["singleton"] = None
    for path, part in (
        graph.origin.module.named_modules() if graph.origin.module is not None else ()
    ):
        if path and type(part).__module__.startswith("torch.nn"):
            found[type(part).__name__.lower()] = None
    found["training" if graph.training else "eval"] = None
    return list(found)


def _parameters(module: ModuleType, graph: Graph, match: Match) -> dict[str, list[Any]]:
    parameters = getattr(module, "parameters", {})
    return dict(parameters(graph, match) if callable(parameters) else parameters)


def _site(
    skill: str,
    match: Match,
    proofs: tuple[Proof, ...],
    parameters: dict[str, list[Any]],
    kind: str,
) -> Site:
    return Site(
        skill=skill,
        site=match.label,
        summary=match.summary,
        proofs=proofs,
        parameters=parameters,
        kind=kind,
        benefit=match.benefit,
        plain=match.plain,
        wraps=match.wraps,
    )


def _spec(source: str, value: Any) -> ArgSpec:
    if not isinstance(value, torch.Tensor):
        plain = value if isinstance(value, (bool, int, float, str, type(None))) else repr(value)
        return ArgSpec(name=source, value=plain)
    stride = None if value.is_contiguous() else tuple(value.stride())
    dtype = str(value.dtype).removeprefix("torch.")
    return ArgSpec(name=source, dtype=dtype, shape=tuple(value.shape), stride=stride)


def main() -> None:
    """Answer requests until the parent goes."""
    requests, replies = wire.claim_stdio()
    session: EngineSession | KernelSession | None = None
    while (frame := wire.read_frame(requests)) is not None:
        request = frame[0]
        try:
            with boundary(RewriteError, "the engine failed"):
                if request["op"] == "open":
                    session = open_session(
                        wire.from_json(Program, request["program"]),
                        wire.from_json(Workload, request["workload"]),
                        str(request["device"]),
                        wire.from_json(list[Skill], request["skills"]),
                        gpu=wire.from_json(tuple[str | None, str | None], request["gpu"]),
                    )
                    result: Any = session.capture()
                elif request["op"] == "survey":
                    result = _survey(request)
                elif session is None:
                    raise RewriteError("no program is open", "open one first")
                elif request["op"] == "explain":
                    result = session.explain()
                elif request["op"] == "variants":
                    steps = wire.from_json(list[Step], request["steps"])
                    result = session.variants(steps, request["at"], request["limit"])
                else:
                    asked: dict[str, Callable[[list[Step]], Any]] = {
                        "propose": session.propose,
                        "look": session.look,
                        "view": session.view,
                        "launched": session.launched,
                        "weigh": session.weigh,
                        "make": session.make,
                    }
                    result = asked[request["op"]](wire.from_json(list[Step], request["steps"]))
            answer = {"result": wire.to_json(result)}
        except KernelLspError as error:
            kind = known_class(type(error)).__name__
            answer = {"error": {"kind": kind, "cause": error.cause, "remedy": error.remedy}}
        wire.write_frame(replies, answer)


def _survey(request: dict[str, Any]) -> Any:
    """Imported here, because it needs torch's bytecode capture: half a second that few targets
    need."""
    from kernel_lsp.rewrite.parts import survey

    program = wire.from_json(Program, request["program"])
    text = LINE_END.sub("\n", program.source)
    workload = wire.from_json(Workload, request["workload"])
    return survey(replace(program, source=text), workload, str(request["device"]))


def open_session(
    program: Program,
    workload: Workload,
    device: str,
    skills: list[Skill],
    *,
    gpu: tuple[str | None, str | None] = (None, None),
) -> EngineSession | KernelSession:
    """A kernel is rewritten as text, everything else as a graph. Raises CaptureError."""
    if program.kernel is not None:
        return KernelSession(program, workload, device, skills)
    return EngineSession(program, workload, device, skills, hardware=devices.describe(device, *gpu))


if __name__ == "__main__":
    main()
