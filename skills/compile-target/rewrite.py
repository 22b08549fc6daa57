"""torch.compile of the target as it stands: plain, replayed as a CUDA graph, or with a search for
kernels."""

from __future__ import annotations

import torch

from kernel_lsp.rewrite import graph_replay
from kernel_lsp.rewrite.loops.unrolled import is_unrolled
from kernel_lsp.rewrite.skill import (
    Graph,
    Match,
    Node,
    Proof,
    Wrapper,
    aten,
    cost,
    has_effect,
    is_op,
    is_random,
    is_write,
    proof,
)

SEARCH = "max-autotune-no-cudagraphs"
HEAVY = (
    aten.linear,
    aten.matmul,
    aten.mm,
    aten.bmm,
    aten.addmm,
    *cost.CONVOLUTIONS,
    *cost.TRANSPOSED,
)
HEAVY_SHARE = 0.6
SEARCHED = (torch.float16, torch.bfloat16)
"""In float32 the compiler's kernels for products lose against cuBLAS, and searching takes
minutes."""
MAX_OPERATIONS = 200
"""An unrolled loop of 128 steps compiles for minutes."""
handles_loops = True
parameters: dict[str, list[object]] = {}

SOURCE = '''
_uncompilable = set()


@functools.cache
def _compiled(function):
    """Compiled at its first call; every module of the class shares it, each with guards of its own."""
    return torch.compile(function{options})


def _run_compiled(module, steps, *arguments):
    """``steps(*arguments)`` by torch.compile{words}; as they stand where that fails."""
    function = steps.__func__
    if function in _uncompilable:
        return steps(*arguments)
    try:
        return _compiled(function)(module, *arguments)
    except {failure}:  # {reason}
        result = steps(*arguments)
        _uncompilable.add(function)
        return result
'''
ANY_FAILURE = (
    "Exception",
    "a compiler may fail in any way; what the steps themselves raise, they raise again",
)
COMPILER_FAILURE = (
    "(torch._dynamo.exc.TorchDynamoException, torch._dynamo.exc.FailOnRecompileLimitHit)",
    "nothing of the one graph has run, and nothing was written",
)
"""Of a target that writes into a cache, compiled as one graph or not at all: behind a break in the
graph a part of it would have run, and its writes would be made twice."""
REPLAYED = '''

def _replayed_compiled(module, steps, *arguments):
    """One launch for all kernels that torch.compile made of the steps."""
    return _replayed(module, functools.partial(_run_compiled, module, steps), *arguments)
'''


def match(graph: Graph) -> list[Match]:
    module = graph.origin.module
    made = [_default(graph)] if _compiles_alone(graph) else []
    if (
        not graph_replay.fits(graph)
        or not graph.is_pristine
        or len(graph.nodes) > MAX_OPERATIONS
        or module is None
    ):
        return made
    first = next(node for item in graph.inputs if (node := item.node) is not None)
    heavy = [n for n in graph.nodes if is_op(n, *HEAVY) and graph.val(n).dtype in SEARCHED]
    if gain := graph_replay.benefit(graph):
        made.append(
            _match(graph, [first], "default mode, replayed as one CUDA graph", 0.9 * gain, "replay")
        )
    if heavy and cost.share(graph, sum(cost.seconds(graph, node) for node in heavy)) > HEAVY_SHARE:
        made.append(_match(graph, [first, heavy[0]], f"mode {SEARCH}", 0.05, SEARCH))
    return made


def _compiles_alone(graph: Graph) -> bool:
    has_tensors = any(item.node is not None for item in graph.inputs)
    whole = graph.origin.module is not None and graph.is_pristine
    return graph.device == "cuda" and whole and has_tensors and not is_unrolled(graph)


def _default(graph: Graph) -> Match:
    """Timed by the gate as a baseline in any case, so that no estimate is needed."""
    nodes = [
        next(node for item in graph.inputs if (node := item.node) is not None),
        graph.nodes[-1],
    ]
    return _match(graph, nodes, "default mode", None, "default")


def preconditions(graph: Graph, match: Match) -> list[Proof]:
    # Writes into a cache are the compiler's to make, in one graph that runs as a whole or not.
    changing = [
        node.name
        for node in graph.nodes
        if is_random(node) or (has_effect(node) and not is_write(node))
    ]
    words = "a cache alone" if graph.leaves_state else "no effects"
    found = [
        proof("nothing else is changed or drawn", not changing, ", ".join(changing[:4]) or words)
    ]
    return [*found, *(graph_replay.proofs(graph) if match.data["mode"] == "replay" else [])]


def apply(graph: Graph, match: Match, parameters: dict[str, object]) -> None:
    mode = match.data["mode"]
    replayed, plain = mode == "replay", mode in ("replay", "default")
    options = "" if plain else f', mode="{mode}"'
    failure, reason = ANY_FAILURE
    if graph.leaves_state:
        options += ", fullgraph=True"
        failure, reason = COMPILER_FAILURE
    source = SOURCE.replace("{options}", options).replace("{failure}", failure)
    source = source.replace("{reason}", reason)
    source = source.replace("{words}", "" if plain else f" in mode {mode}")
    graph.caveat("the first call of each kind compiles, which takes seconds to minutes")
    if graph.gradients:
        graph.caveat("a second backward pass through one call (retain_graph=True) raises an error")
    if replayed:
        note = "Compiled by torch.compile, and replayed from a CUDA graph to save the launches."
        graph_replay.wrap(
            graph, "_replayed_compiled", note, ("import functools",), "\n" + source + REPLAYED
        )
        return
    note = f"Compiled by torch.compile in mode {mode}, which tries kernels for each matrix product."
    note = "Compiled by torch.compile at its first call." if plain else note
    imports = ("import functools", "import torch")
    graph.wrap(Wrapper(name="_run_compiled", imports=imports, definitions=source, note=note))
    graph.require(
        "not torch.compiler.is_compiling()", "a compiler that runs already needs no second one"
    )


def _match(graph: Graph, nodes: list[Node], how: str, gain: float | None, mode: str) -> Match:
    return Match(
        nodes=() if mode == "default" else tuple(graph.nodes),
        label=graph.label(*nodes),
        summary=f"torch.compile of the target, {how}",
        benefit=gain,
        wraps=True,
        differentiable=mode != "replay",
        data={"mode": mode},
    )
