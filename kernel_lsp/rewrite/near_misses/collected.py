"""From skills that decline to a few near misses, those that take most of the target's time first.

`MatchObserver` hears what the engine passes over, and why; a skill's own ``misses`` say what its
matcher left. Where neither speaks of an operation that takes time, its roof does, or the fact that
no skill has a kernel for it. Shares are estimates (roof.py). Not covered: what a candidate was
refused for (agents/feedback.py)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from torch import fx

from kernel_lsp.records import Explained, NearMiss, Proof
from kernel_lsp.rewrite.codegen.convolution.facts import POOLS, RANKS
from kernel_lsp.rewrite.codegen.core.nodes import op_name
from kernel_lsp.rewrite.codegen.core.space import LOSSES, NORMS, REDUCE, SOFTMAX
from kernel_lsp.rewrite.codegen.groups import fuse
from kernel_lsp.rewrite.codegen.pointwise.operations import TABLE
from kernel_lsp.rewrite.codegen.scan.fuse import SCANS
from kernel_lsp.rewrite.generated import Match, Miss
from kernel_lsp.rewrite.graph import Graph
from kernel_lsp.rewrite.naming import frame_of
from kernel_lsp.rewrite.near_misses import MAX_REASONS, describe_unproved, roof
from kernel_lsp.rewrite.near_misses.fusing import remedy_for

MIN_SHARE = 0.02
LOUD = 0.1
"""Share of the time from which an operation that no skill speaks of is named."""
KNOWN = frozenset([
    *TABLE, *REDUCE, *NORMS, *SOFTMAX, *LOSSES, *SCANS, *RANKS, *POOLS, "linear", "matmul", "mm",
    "bmm",
    "addmm", "baddbmm", "einsum", "scaled_dot_product_attention", "batch_norm", "embedding",
    "nll_loss",
    "nll_loss_nd", "cross_entropy_loss", "triplet_margin_loss", "cosine_embedding_loss", "glu",
    "lstm", "gru",
    "rnn_tanh", "rnn_relu", "tril", "triu", "diag", "diag_embed",
])  # fmt: skip
"""Operations that some skill rewrites, somewhere."""
TOO_LITTLE = "what skills know to do here would save too little"
ALONE = "no skill applies to it here"


@dataclass(frozen=True, kw_only=True, slots=True)
class Declined:
    """A skill that came near, and why it stays away."""

    skill: str
    miss: Miss
    weak: bool = False
    """It would have been right, and not faster."""


@dataclass(kw_only=True)
class MatchObserver:
    """What the engine collects while it matches one graph."""

    declined: list[Declined] = field(default_factory=list)
    covered: set[str] = field(default_factory=set)
    """Nodes that some rewrite covers."""

    def cover(self, match: Match) -> None:
        """Notes that the match is a site. What goes around everything says nothing of any
        operation."""
        if not match.wraps:
            self.covered |= {node.name for node in match.nodes if isinstance(node, fx.Node)}

    def decline(self, graph: Graph, skill: str, match: Match, proofs: Sequence[Proof]) -> None:
        """Notes that the match is no site, with what failed. Where more than one condition fails it
        was not near; a rewrite that would save nothing is not missed for its proofs."""
        broken = [proof for proof in proofs if not proof.holds]
        gains = match.benefit is None or match.benefit > 0.0
        if match.wraps or len(broken) > 1 or (broken and not gains):
            return
        miss = Miss(nodes=match.nodes, missing=TOO_LITTLE)
        if broken:
            miss = replace(miss, missing=describe_unproved(broken[0]))
        elif graph.gradients and not match.plain and not match.differentiable:
            miss = Miss(
                nodes=match.nodes, missing=fuse.NO_BACKWARD, remedy=remedy_for(fuse.NO_BACKWARD)
            )
        self.declined.append(Declined(skill=skill, miss=miss, weak=miss.missing == TOO_LITTLE))


def explain_misses(graph: Graph, found: Iterable[Declined], covered: set[str]) -> Explained:
    """Why skills declined, nearest misses first, and what the device leaves to gain.

    ``covered``: names of nodes for which a rewrite was judged; nothing weak is said of these."""
    whole = roof.of_target(graph)
    if whole is None:
        return Explained()
    known = [one for one in found if not (one.weak and _names(one) & covered)]
    spoken = covered.union(*map(_names, known))
    quiet = [node for node in graph.nodes if roof.is_work(node) and node.name not in spoken]
    reported = _ReportedMisses(graph, whole.taken_s)
    for one in sorted(known, key=lambda one: (one.weak, -reported.share(_nodes(one)))):
        reported.say(
            "" if one.weak else one.skill,
            one.miss.missing,
            one.miss.remedy,
            _nodes(one),
            weak=one.weak,
        )
    for node in quiet:
        if op_name(node) in KNOWN:
            reported.say("", ALONE, "", [node], weak=True)
        else:
            reported.say(
                "",
                f"no skill has a kernel for {op_name(node) or node.name}",
                "",
                [node],
                weak=False,
            )
    return Explained(misses=reported.loudest(), roof=whole)


class _ReportedMisses:
    """What is said so far: of each operation once, the same reason at several places once."""

    def __init__(self, graph: Graph, seconds: float) -> None:
        self.graph, self.seconds = graph, seconds
        self.misses: dict[tuple[str, str, str], NearMiss] = {}
        self.done: set[fx.Node] = set()

    def share(self, nodes: Sequence[fx.Node]) -> float:
        """The share of the estimated time of the graph, 0 to 1, that these nodes take."""
        return sum(roof.seconds(self.graph, node) for node in nodes) / max(self.seconds, 1e-12)

    def say(
        self, skill: str, missing: str, remedy: str, nodes: Sequence[fx.Node], *, weak: bool
    ) -> None:
        """Note what is missing at these nodes; nodes that something was said of are left out."""
        new = [node for node in nodes if node not in self.done]
        if not new:
            return
        self.done.update(new)
        first = nodes[0]
        key = skill, missing, op_name(first)
        if (before := self.misses.get(key)) is not None:
            share = min(1.0, before.share + self.share(new))
            self.misses[key] = replace(before, share=share, places=before.places + 1)
            return
        line, code = place_of(self.graph, first)
        self.misses[key] = NearMiss(
            op=op_name(first) or first.name,
            missing=missing,
            skill=skill,
            remedy=remedy,
            share=min(1.0, self.share(new)),
            line=line,
            code=code,
            roof=roof.of_nodes(self.graph, nodes) if weak else None,
        )

    def loudest(self) -> tuple[NearMiss, ...]:
        """At most MAX_REASONS misses, the largest shares first; without a skill only loud ones."""
        least = {True: MIN_SHARE, False: LOUD}
        loud = [miss for miss in self.misses.values() if miss.share >= least[bool(miss.skill)]]
        return tuple(sorted(loud, key=lambda miss: -miss.share)[:MAX_REASONS])


def place_of(graph: Graph, node: fx.Node) -> tuple[int | None, str]:
    """Line of the program, from 1, and its text: the innermost of the person's own."""
    frames = frame_of(graph.origin.path).findall(node.meta.get("stack_trace") or "")
    lines = graph.origin.program.split("\n")
    line = int(frames[-1][0]) if frames else 0
    return (line, lines[line - 1].strip()) if 0 < line <= len(lines) else (None, "")


def _nodes(one: Declined) -> list[fx.Node]:
    """Those that take time, the one that a person would name first; all of them where none does."""
    nodes = [node for node in one.miss.nodes if isinstance(node, fx.Node)]
    return [node for node in nodes if roof.is_work(node)] or nodes


def _names(one: Declined) -> set[str]:
    return {node.name for node in one.miss.nodes if isinstance(node, fx.Node)}
