"""Random situations and talks for tests of the shipped policy: no engine, no torch, the same for a
seed."""

from __future__ import annotations

import random

from kernel_lsp.agents.prompt_encoding import Dialog, DialogPhase, Situation
from kernel_lsp.agents.prompt_encoding.grammar import GrammarNode, table
from kernel_lsp.records import (
    Form,
    GraphView,
    Layout,
    Operation,
    OperationRole,
    Proof,
    Site,
    Viewed,
)

CALLS = ("linear", "conv2d", "relu", "gelu", "add", "sum", "softmax", "layer_norm", "user_made_op")
SKILLS = ("fused-matmul", "fused-pointwise", "fold-affine", "cuda-graph", "zebra-stripes")
SPACES = (
    {},
    {"BLOCK_SIZE": [1024, 512, 2048], "num_warps": [4, 8]},
    {"plan": ["tiles 64x64x32 warps 4", "tiles 128x64x32 warps 8", "parts 16x16x16 warps 4"]},
    {"way": ["rows", "taps"], "precision": ["ieee", "tf32x3"], "nonfinite": ["keep", "ignore"]},
    {"num_stages": [3]},
)


def situation(seed: int, operations: int = 8, sites: int = 5) -> Situation:
    dice = random.Random(seed)
    made = [operation(dice, number) for number in range(operations)]
    graph = GraphView(
        operations=tuple(made), training=dice.random() < 0.5, gradients=dice.random() < 0.2
    )
    return Situation(
        graph=graph,
        sites=tuple(site(dice, graph, number) for number in range(sites)),
        device=dice.choice(["cuda", "cpu"]),
        capability=dice.choice(["sm_90", "sm_120", None]),
        triton=dice.random() < 0.8,
        read_bytes=dice.choice([None, dice.randrange(10**9)]),
        written_bytes=dice.randrange(10**7),
    )


def operation(dice: random.Random, number: int, name: str | None = None) -> Operation:
    form = Form(
        dtype=dice.choice(["float32", "float16", "bool"]),
        shape=tuple(dice.choice([1, 3, 64, 96, 1000, 4096]) for _ in range(dice.randint(0, 4))),
        layout=dice.choice(list(Layout)),
    )
    called = number > 1
    return Operation(
        name=name or f"node_{number}",
        role=OperationRole.CALL
        if called
        else dice.choice([OperationRole.INPUT, OperationRole.STATE]),
        op=dice.choice(CALLS) if called else "",
        reads=tuple(dice.randrange(number) for _ in range(dice.randint(1, 2))) if called else (),
        numbers=tuple(
            dice.choice([0, 1, 3, -1, 0.1, True, 1e-5, 300]) for _ in range(dice.randint(0, 3))
        ),
        forms=(form,),
        output=dice.random() < 0.2,
    )


def site(dice: random.Random, graph: GraphView, number: int) -> Site:
    covered = dice.sample(graph.operations, k=min(len(graph.operations), dice.randint(1, 9)))
    return Site(
        skill=dice.choice(SKILLS),
        site="+".join(one.name for one in covered) + f"+unknown{number}",
        summary="what it does, in words that the model never sees",
        proofs=(Proof(claim="sound", holds=True, because="test"),),
        parameters={name: list(values) for name, values in dice.choice(SPACES).items()},
        benefit=dice.choice([None, 0.0, 0.3, 1.0]),
        plain=dice.random() < 0.4,
    )


def any_reply(dice: random.Random, offer: GrammarNode) -> list[str]:
    words: list[str] = []
    while offer.branches:
        words.append(dice.choice(offer.words))
        offer = offer.branches[words[-1]]
    return words


def further(dice: random.Random, talk: Dialog) -> Viewed:
    """The program after a step: one more operation, one site less, sometimes another."""
    graph = talk.situation.graph
    new = operation(dice, len(graph.operations), f"made_{len(talk.words)}")
    left = [one for one in talk.sites if one.site != talk.steps[-1].site]
    after = GraphView(operations=(*graph.operations, new))
    return Viewed(
        graph=after, sites=(*left, *([site(dice, after, 99)] if dice.random() < 0.3 else []))
    )


def spoken(seed: int, replies: int = 6, **sizes: int) -> Dialog:
    """A talk at a place where the model has something to say."""
    dice, talk = random.Random(seed), Dialog(situation(seed, **sizes))
    for _ in range(replies):
        talk.say(any_reply(dice, talk.offer))
        if talk.phase is DialogPhase.ENGINE:
            talk.refused() if dice.random() < 0.2 else talk.saw(further(dice, talk))
        if talk.phase is DialogPhase.RESULT:
            talk.heard(None)
    return talk


class _Itself(dict[str, str]):
    def __missing__(self, word: str) -> str:
        return word


def ebnf(start: GrammarNode) -> str:
    """The grammar for a server's structured output (xgrammar's dialect): every word with the blank
    behind it."""
    nodes = table(start, _Itself())  # type: ignore[arg-type]
    rules = []
    for number, branches in enumerate(nodes):
        texts = [f'"{word} "' + (f" n{after}" if nodes[after] else "") for word, after in branches]
        if texts:
            rules.append(f"{'root' if number == 0 else f'n{number}'} ::= {' | '.join(texts)}")
    return "\n".join(rules) + "\n"
