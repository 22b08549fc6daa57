"""A kernel in the person's own words: their variable names, and one statement where they wrote
one.

Values that a statement of theirs was assigned to get its name; a value that only the rest of the
same statement reads is marked to be written inside of it. Changes no operation and no order of
operations. Not covered: what the emitters themselves add (indices, masks, lanes)."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from torch import fx

from kernel_lsp.rewrite.codegen.core.ir import Output, Value, topological
from kernel_lsp.rewrite.codegen.core.ops import RENDER
from kernel_lsp.rewrite.codegen.regions.lower import LoweredRegion
from kernel_lsp.rewrite.graph import Graph
from kernel_lsp.rewrite.naming import Statements


def apply_program_names(graph: Graph, lowered: LoweredRegion) -> LoweredRegion:
    """The same region with the names and the lines of the program."""
    made: dict[Value, fx.Node] = {}
    for node, value in lowered.values.items():
        made.setdefault(value, node)  # views of a value come after it
    origin, captured = graph.origin, graph.captured
    statements = Statements(origin.program, origin.function, origin.path)
    readers = _only_readers(lowered.region.outputs)
    new: dict[Value, Value] = {}
    for value in topological(output.value for output in lowered.region.outputs):
        args = tuple(new[arg] if isinstance(arg, Value) else arg for arg in value.args)
        node = made.get(value)
        if node is None or value.operand is not None:
            new[value] = replace(value, args=args)
            continue
        hint = statements.wish(node, captured)
        inline = _continues(value, readers.get(value), made, statements)
        new[value] = replace(value, args=args, hint=hint, inline=inline)
    outputs = tuple(replace(output, value=new[output.value]) for output in lowered.region.outputs)
    values = {node: new.get(value, value) for node, value in lowered.values.items()}
    return replace(lowered, region=replace(lowered.region, outputs=outputs), values=values)


def _only_readers(outputs: tuple[Output, ...]) -> dict[Value, Value]:
    """Value -> its reader, where there is exactly one and it is no output."""
    count = Counter[Value](output.value for output in outputs)
    readers: dict[Value, Value] = {}
    for value in topological(output.value for output in outputs):
        for arg in value.values:
            count[arg] += 1
            readers[arg] = value
    return {arg: reader for arg, reader in readers.items() if count[arg] == 1}


def _continues(
    value: Value, reader: Value | None, made: dict[Value, fx.Node], statements: Statements
) -> bool:
    """The reader is the rest of the statement that made the value, and as often computed."""
    if reader is None or reader not in made or value.op not in RENDER or reader.op not in RENDER:
        return False
    own = statements.key(made[value])
    return (
        own is not None and own == statements.key(made[reader]) and value.rowwise == reader.rowwise
    )
