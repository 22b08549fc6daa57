"""Reductions in three steps: lanes that accumulate, an update for each block, and a finish.

A lane is one slot of a vector that walks along the reduced dimensions; lanes never talk to each
other before the finish, so a loop has no barriers. Two launches that need a reduction of partial
results use the same lanes: the second loads what the first finished. No atomics anywhere: the
order of additions depends on sizes only, so results are the same on each run.
"""

from __future__ import annotations

from dataclasses import dataclass

from kernel_lsp.rewrite.codegen.core.body import Body
from kernel_lsp.rewrite.codegen.core.ir import Region, Value, is_careful

MINUS_INFINITY, INFINITY = 'float("-inf")', 'float("inf")'
IDENTITY = {"sum": "0.0", "max": MINUS_INFINITY, "min": INFINITY, "prod": "1.0"}

LANES: dict[str, tuple[tuple[str, str], ...]] = {
    "sum": (("sum", "0.0"),),
    "max": (("max", MINUS_INFINITY),),
    "min": (("min", INFINITY),),
    "prod": (("prod", "1.0"),),
    "moments": (("count", "0.0"), ("mean", "0.0"), ("m2", "0.0")),
    "softmax_stats": (("max", MINUS_INFINITY), ("sum", "0.0")),
    "argmax": (("max", MINUS_INFINITY), ("place", "0.0")),
    "argmin": (("min", INFINITY), ("place", "0.0")),
}
"""Reduction -> suffix and identity of each lane vector; also the layout of partial results. A place
of which nothing was seen counts only where all of a row is infinite: its first element is found."""


PIVOTS = ("max", "min", "softmax_stats")
"""Reductions whose result is one of the values that they reduce."""
FIRST = {"argmax": "_later_max", "argmin": "_later_min"}
"""Reductions to a value and its place, by the function that joins a lane and what is behind it.
Places are float32, as all lanes are: space.MAX_COUNTED."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ReductionAxis:
    """How a block is reduced: one row (a vector) or several (a matrix with rows first)."""

    shape: str
    index: int
    keep: str = ""

    def call(self, name: str, text: str) -> str:
        """The text that reduces a block by Triton's function of that name."""
        return f"tl.{name}({text}, axis={self.index}){self.keep}"

    def _combine(self, function: str, text: str) -> str:
        return f"tl.reduce({text}, {self.index}, {function}){self.keep}"

    def reduced(self, kind: str, text: str) -> str:
        """The text that reduces a block by a kind of reduction; NaN comes through."""
        combine = {"max": "_nan_max", "min": "_nan_min", "prod": "_product"}
        return self.call("sum", text) if kind == "sum" else self._combine(combine[kind], text)


VECTOR = ReductionAxis(shape="[BLOCK_SIZE]", index=0)
MATRIX = ReductionAxis(shape="[BLOCK_ROWS, BLOCK_SIZE]", index=1, keep="[:, None]")


def whole(body: Body, value: Value, axis: ReductionAxis) -> tuple[str, ...]:
    """A reduction whose row is one block."""
    (arg,) = value.values
    x, hint = body.text(arg), value.hint or value.op
    if value.op == "moments":
        mean = body.define("mean", axis.call("sum", f"tl.where(mask, {x}, 0.0)") + " / n_cols")
        body.define("centered", f"{x} - {mean}")
        centered = body.define("centered", f"{x} - {mean}")
        inside = f"tl.where(mask, {centered} * {centered}, 0.0)"
        return mean, body.define("m2", axis.call("sum", inside))
    if value.op == "softmax_stats":
        row_max = body.define("row_max", axis.call("max", f"tl.where(mask, {x}, {MINUS_INFINITY})"))
        exponential = body.define(
            "exp", f"{_exp(value)}({body.define('shifted', f'{x} - {row_max}')})"
        )
        return row_max, body.define(
            "row_sum", axis.call("sum", f"tl.where(mask, {exponential}, 0.0)")
        )
    if value.op in FIRST:
        return _first(body, value, _placed(body, value, str(x)), axis)
    return (
        body.define(hint, axis.reduced(value.op, f"tl.where(mask, {x}, {IDENTITY[value.op]})")),
    )


def _placed(body: Body, value: Value, x: str) -> tuple[str, str]:
    """A block's values and their places in the row."""
    kept = body.define("kept", f"tl.where(mask, {x}, {LANES[value.op][0][1]})")
    return kept, body.define("places", f"tl.where(mask, cols.to(tl.float32), {INFINITY})")


def _first(body: Body, value: Value, pair: tuple[str, str], axis: ReductionAxis) -> tuple[str, str]:
    """The extreme value of each row of a block, and its place: the first that equals it. Reduced as
    pairs, [32, 1024, 4096] in bfloat16 took 0.36 ms where its bytes take 0.06 (H200, 2026-11-28)."""
    kind, (kept, places) = LANES[value.op][0][0], pair
    found = body.define(f"row_{kind}", axis.reduced(kind, kept))
    first = body.define("first", f"({kept} == {found}) | ({kept} != {kept})")  # NaN equals nothing
    place = axis.call("min", f"tl.where({first}, {places}, {INFINITY})")
    return found, body.define("place", place)


def partial(body: Body, value: Value, axis: ReductionAxis) -> tuple[str, ...]:
    """What one block leaves of a longer row, in the order of LANES; moments are not covered."""
    if value.op != "softmax_stats":
        return whole(body, value, axis)
    (arg,) = value.values
    kept = body.define("kept", f"tl.where(mask, {body.text(arg)}, {MINUS_INFINITY})")
    row_max = body.define("row_max", axis.call("max", kept))
    # A block of -inf only: exp(-inf - -inf) would be NaN where it must weigh nothing.
    pivot = body.define("pivot", f"tl.where({row_max} == {MINUS_INFINITY}, 0.0, {row_max})")
    return row_max, body.define("row_sum", axis.call("sum", f"{_exp(value)}({kept} - {pivot})"))


def _exp(stats: Value) -> str:
    """The function that ``softmax_stats`` adds up."""
    return "_expf" if is_careful(stats) else "tl.exp"


def launch_options(region: Region) -> list[str]:
    """``x - max(x)`` of a computed ``x`` must round x in both places, as eager does: contracted to
    one multiply-add, the product that is subtracted from is not the one whose maximum was taken,
    and logits of 20000 put each row of a softmax off by 5e-4 of its RMS (H200). Of two values that
    nearly agree the same is the larger one only where both are rounded as eager does."""
    pivots = (value.values[0] for value in region.values if value.op in PIVOTS)
    computed = any(x.operand is None for x in pivots)
    full = any(not output.rowwise for output in region.outputs)
    compared = any(v.op in FIRST and v.values[0].operand is None for v in region.values)
    return ["enable_fp_fusion=False"] if (computed and full) or compared else []


def declare(body: Body, value: Value, axis: ReductionAxis) -> tuple[str, ...]:
    """Writes lane vectors with their identities, before the loop, and returns their names."""
    return tuple(
        body.assign(f"lane_{suffix}", f"tl.full({axis.shape}, {identity}, tl.float32)")
        for suffix, identity in LANES[value.op]
    )


def update(body: Body, value: Value, lanes: tuple[str, ...], step: str = "") -> None:
    """Fold one block into the lanes. ``step``: for moments, the variable that counts the blocks,
    this one included, where each lane has an element in all of them but the last."""
    (arg,) = value.values
    x = body.text(arg)
    if value.op == "moments":
        return _welford(body, lanes, str(x), step)
    if value.op == "softmax_stats":
        return _online(body, lanes, str(x), _exp(value))
    if value.op in FIRST:
        pairs = ", ".join((*lanes, *_placed(body, value, str(x))))
        body.add(f"{lanes[0]}, {lanes[1]} = {FIRST[value.op]}({pairs})")
        return None
    (lane,) = lanes
    kept = f"tl.where(mask, {x}, {IDENTITY[value.op]})"
    folded = {"sum": f"{lane} + {kept}", "prod": f"{lane} * {kept}"}
    body.add(f"{lane} = {folded.get(value.op, f'_nan_{value.op}({lane}, {kept})')}")
    return None


def finish(
    body: Body, value: Value, lanes: tuple[str, ...], axis: ReductionAxis
) -> tuple[str, ...]:
    """One result for each row; for moments the count comes third."""
    if value.op == "moments":
        count, mean, m2 = lanes
        total = body.define("count", axis.call("sum", count))
        share = f"{count} / {total}"  # not times the count: a few of the largest numbers overflow
        center = body.define("mean", axis.call("sum", f"{mean} * ({share})"))
        spread = f"{m2} + {count} * ({mean} - {center}) * ({mean} - {center})"
        return center, body.define("m2", axis.call("sum", spread)), total
    if value.op == "softmax_stats":
        row_max = body.define("row_max", axis.call("max", lanes[0]))
        # A row (or lane) of -inf only: exp(-inf - -inf) would be NaN where it must weigh nothing.
        pivot = f"tl.where({row_max} == {MINUS_INFINITY}, 0.0, {row_max})"
        weight = f"{_exp(value)}({lanes[0]} - {body.define('pivot', pivot)})"
        return row_max, body.define("row_sum", axis.call("sum", f"{lanes[1]} * {weight}"))
    if value.op in FIRST:
        return _first(body, value, (lanes[0], lanes[1]), axis)
    return (body.define(value.hint or value.op, axis.reduced(value.op, lanes[0])),)


def partial_names(value: Value, results: tuple[str, ...]) -> tuple[str, ...]:
    """Finished results in the order of LANES."""
    return (results[2], results[0], results[1]) if value.op == "moments" else results


def _welford(body: Body, lanes: tuple[str, ...], x: str, step: str) -> None:
    """Mean and squared deviations lane by lane: no cancellation, no second pass over memory.

    One division for the block where ``step`` says how many elements every lane has that is not
    masked: [8192, 16384] in bfloat16 took 0.107 ms so and 0.124 ms with one for each lane (H100).
    """
    count, mean, m2 = lanes
    body.add(f"{count} += tl.where(mask, 1.0, 0.0)")
    delta = body.assign("delta", f"tl.where(mask, {x} - {mean}, 0.0)")
    share = f"{delta} * (1.0 / {step})" if step else f"{delta} / tl.maximum({count}, 1.0)"
    body.add(f"{mean} += {share}")
    body.add(f"{m2} += {delta} * tl.where(mask, {x} - {mean}, 0.0)")


def _online(body: Body, lanes: tuple[str, ...], x: str, exp: str) -> None:
    """Running maximum and rescaled sum of exponentials (Milakov and Gimelshein, 2018)."""
    top, total = lanes
    kept = body.assign("kept", f"tl.where(mask, {x}, {MINUS_INFINITY})")
    new = body.assign("new_max", f"tl.maximum({top}, {kept})")
    pivot = body.assign("pivot", f"tl.where({new} == {MINUS_INFINITY}, 0.0, {new})")
    body.add(f"{total} = {total} * {exp}({top} - {pivot}) + {exp}({kept} - {pivot})")
    body.add(f"{top} = {new}")
