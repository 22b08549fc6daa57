"""Drafts from a table of measured plans: what a value is worth, and where that was seen."""

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from kernel_lsp import wire
from kernel_lsp.agents.summary_rule import Seen
from kernel_lsp.records import Bounds, Json, RecipeStep, Step
from trainer import lessons, tables, tasks
from trainer.reading import Grant
from trainer.records import Tally

pytestmark = pytest.mark.torch

TASK = """
import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return torch.softmax(x, -1) * {number}


def get_inputs():
    return [torch.randn({rows}, 512), 3]
"""
SEEN = Seen(device="cuda", device_name="H200", architecture="sm_90", inputs=(), layouts=())


def plan(site: str = "softmax", **values: Json) -> tuple[Step, ...]:
    return (
        Step(skill="fused-row-softmax", site=site, parameters={"warps": 4, "rows": 1, **values}),
        Step(skill="fused-pointwise", site="mul", parameters={"warps": 4}),
    )


def one(number: int, others: Sequence[tuple[tuple[Step, ...], float]], rows: int = 64) -> lessons.Measured:
    made = tasks.make_task(TASK.format(number=number, rows=rows), f"t{number}", Path(f"t{number}.py"))
    assert not isinstance(made, str)
    return lessons.Measured(
        task=made, inputs=lessons.inputs_of(made), first=plan(f"softmax_{number}"), others=tuple(others)
    )


def table(count: int = 8, **more: int) -> list[lessons.Measured]:
    """Eight warps gain 0.1, two rows lose 0.05; both together are the sum of the two."""
    found = []
    for number in range(count):
        site = f"softmax_{number}"
        rows = [
            (plan(site, warps=8), 0.1),
            (plan(site, rows=2), -0.05),
            (plan(site, warps=8, rows=2), 0.05),
        ]
        found.append(one(number, rows, **more))
    return found


def test_what_changed_at_once_is_told_apart() -> None:
    for near, covers in ((True, ("softmax",)), (False, ())):
        kind = ("fused-row-softmax", covers)
        found = lessons.worth(table(), near=near)
        assert set(found) == {(kind, "warps", "8"), (kind, "rows", "2")}
        assert set(found[kind, "warps", "8"]) == {f"t{number}" for number in range(8)}
        assert found[kind, "warps", "8"]["t0"] == pytest.approx(0.1, abs=0.01)
        assert found[kind, "rows", "2"]["t0"] == pytest.approx(-0.05, abs=0.01)
    assert lessons.worth([], near=True) == {}


def test_the_best_values_of_a_kind_are_a_draft_that_asks_for_what_was_seen() -> None:
    found, *_ = lessons.taught([*table(4), one(9, [(plan("softmax_9", warps=8), 0.14)], rows=256)], SEEN)
    step = RecipeStep(skill="fused-row-softmax", covers=("softmax",), parameters={"warps": 8}, planned=True)
    assert found.draft.recipe == (step,) and found.expected > 0.08 and found.low > 0.05
    assert found.tasks[0].name == "t9" and len(found.tasks) == 5
    asked = found.draft.requires
    assert asked is not None and asked.elements == Bounds(least=64 * 512, most=256 * 512)
    assert (asked.dtypes, asked.layouts, asked.architectures) == (("float32",), ("contiguous",), ("sm_90",))


def test_another_precision_or_other_steps_say_nothing_of_values() -> None:
    first = plan()
    exact = (replace(first[0], parameters={**first[0].parameters, "precision": "tf32"}), first[1])
    assert lessons.changed(first, exact) is None
    assert lessons.changed(first, first[:1]) is None
    assert lessons.changed(first, first) == {}


def test_other_steps_that_are_faster_on_average_are_for_where_the_rule_plans_what_they_lack() -> None:
    def shorter(number: int, gain: float) -> lessons.Measured:
        alone = replace(plan(f"softmax_{number}")[0], parameters={"warps": number})
        return one(number, [((alone, Step(skill="cuda-graph", site="x")), gain)])

    gains = (0.2, 0.21, 0.19, 0.2)
    faster = [shorter(number, gain) for number, gain in enumerate(gains)]
    found = lessons.taught(faster, SEEN)
    softmax = RecipeStep(skill="fused-row-softmax", covers=("softmax",))
    assert all(one.draft.recipe == (softmax, RecipeStep(skill="cuda-graph")) for one in found)
    asked = [one.draft.requires for one in found]
    assert {(one.planned, one.unplanned) for one in asked if one} == {
        (("fused-pointwise",), ("cuda-graph",)),
        ((), ("cuda-graph",)),
    }
    assert found[0].expected == pytest.approx(0.2) and found[0].instead_of[1].skill == "fused-pointwise"
    assert lessons.taught([*faster, shorter(5, -1.0)], SEEN) == []


def test_what_pays_for_one_width_of_numbers_is_for_that_width() -> None:
    def of(number: int, dtype: str, gain: float) -> lessons.Measured:
        made = one(number, [(plan(f"softmax_{number}", warps=8), gain)])
        return replace(made, inputs=(replace(made.inputs[0], dtype=dtype),))

    mixed = [of(n, "bfloat16", 0.1 + n / 1000) for n in range(4)] + [
        of(n, "float32", -0.2) for n in range(4, 8)
    ]
    found = [one.draft.requires for one in lessons.taught(mixed, SEEN)]
    assert found and {one.dtypes for one in found if one} == {("bfloat16",)}


def test_a_table_is_read_as_the_rule_against_the_rest(tmp_path: Path) -> None:
    (tmp_path / "t.py").write_text(TASK.format(number=1, rows=64))
    suite = tasks.load(tmp_path)
    rows = [
        {"steps": wire.to_json(list(plan(warps=warps))), "status": "passed", "ms": {"candidate": ms}}
        for warps, ms in ((4, 2.0), (8, 1.0))
    ]
    rows.append({"steps": rows[0]["steps"], "status": "wrong_result"})

    def read(*kept: Json) -> lessons.Measured | None:
        entry = {
            "reference": tasks.digest(suite.tasks[0].source),
            "baseline_ms": {"eager": 4.0},
            "rows": kept,
        }
        path = tmp_path / "table.json"
        path.write_text(json.dumps({"device": "cuda", "tasks": {"t": entry}}))
        (found,) = tables.read(path, [suite], Grant(own=True), Tally())
        return lessons.measured(found, suite.tasks[0])

    found = read(*rows)
    assert found is not None and found.first == plan(warps=4)
    assert [(steps, gain) for steps, gain in found.others] == [(plan(warps=8), math.log(2.0))]
    assert read(rows[0]) is None and read(rows[2], rows[1]) is None
