"""Conditions on all layers of a list, in one line."""

import pytest

from kernel_lsp.rewrite.printing.repeated import LayerChecks, fold, lines

SIZES = {"self.blocks": 2, "self.stages": 2, "self.stages[0]": 2, "self.stages[1]": 2}


@pytest.mark.parametrize(
    "conditions, folded",
    [
        (["x.is_cuda", "type(self.blocks[0]) is B", "type(self.blocks[1]) is B"],
         ["x.is_cuda", "all(type(layer) is B for layer in self.blocks)"]),
        (["self.blocks[0].k == 1", "self.blocks[1].k == 2"],
         ["self.blocks[0].k == 1", "self.blocks[1].k == 2"]),
        (["self.blocks[0].k == 1"], ["self.blocks[0].k == 1"]),
        (["self.blocks[0].k is self.blocks[1].k"] * 2, ["self.blocks[0].k is self.blocks[1].k"] * 2),
        (["self.blocks[0].k == self.k", "self.blocks[1].k == self.k"],
         ["self.blocks[0].k == self.k", "self.blocks[1].k == self.k"]),
        (["self.blocks[0].a or b", "self.blocks[1].a or b"],
         ["all((layer.a or b) for layer in self.blocks)"]),
        (["not (self.blocks[0].a or b)", "not (self.blocks[1].a or b)"],
         ["all(not (layer.a or b) for layer in self.blocks)"]),
        (["self.blocks[0].a", "len(layer)", "self.blocks[1].a"],
         ["all(layer_2.a for layer_2 in self.blocks)", "len(layer)"]),
        ([f"self.stages[{i}][{j}].k == 1" for i in range(2) for j in range(2)],
         ["all(all(layer.k == 1 for layer in layer_2) for layer_2 in self.stages)"]),
        (["type(self.blocks[0]) is A", "self.blocks[0].a.k == 1",
          "type(self.blocks[1]) is B", "self.blocks[1].a.k == 1"],
         ["type(self.blocks[0]) is A", "self.blocks[0].a.k == 1",
          "type(self.blocks[1]) is B", "self.blocks[1].a.k == 1"]),
        (["self.blocks[0].b", "self.blocks[0].a", "self.blocks[1].a", "self.blocks[1].b"],
         ["self.blocks[0].b", "all(layer.a for layer in self.blocks)", "self.blocks[1].b"]),
        ([text for i in range(2) for text in (f"self.stages[{i}].n == 2",
          *(f"self.stages[{i}][{j}].k == 1" for j in range(2)), f"self.stages[{i}].m == 1")],
         ["all(layer_2.n == 2 and all(layer.k == 1 for layer in layer_2) and layer_2.m == 1 "
          "for layer_2 in self.stages)"]),
        (["self.other[0].k == 1", "self.other[1].k == 1"],
         ["self.other[0].k == 1", "self.other[1].k == 1"]),
    ],
)  # fmt: skip
def test_what_is_asked_of_every_layer_is_asked_once(conditions, folded) -> None:
    assert fold(conditions, SIZES.get) == folded


def test_a_folded_condition_has_a_line_for_each_part() -> None:
    condition = "and all(f(a and b) and c for layer in self.blocks)"
    assert lines(condition, "  ") == [
        "and all(", "  f(a and b)", "  and c", "  for layer in self.blocks", ")"
    ]  # fmt: skip
    assert lines("x and y", "  ") is None


def test_what_is_long_is_a_function_in_which_each_part_is_looked_up_once() -> None:
    asked = [
        text for i in range(2) for block in [f"self.blocks[{i}]"] for text in (
            f"type({block}) is B", f"type({block}.a) is A", f"not {block}.a.hooks",
            f"{block}.a.k == 1", f"len({block}.few) == 2",
            *(f"{block}.few[{j}].{name} == 1" for j in range(2) for name in "abcd"),
        )
    ]  # fmt: skip
    sizes = {"self.blocks": 2, "self.blocks[0].few": 2, "self.blocks[1].few": 2}
    paths = [path for i in range(2) for block in [f"self.blocks[{i}]"]
             for path in ("self.blocks", block, f"{block}.a", f"{block}.few")]  # fmt: skip
    checks = LayerChecks("Net", "_is_one_of_net_blocks_0_few = 1", paths)
    moved = checks.move_out(["x.is_cuda", *fold(asked, sizes.get)])
    assert moved == ["x.is_cuda", "all(map(_is_one_of_net_blocks, self.blocks))"]
    assert checks.functions == [
        ("_is_one_of_net_blocks_0_few_2", [f"layer.{name} == 1" for name in "abcd"]),
        ("_is_one_of_net_blocks",
         ["type(layer) is B", "type(a := layer.a) is A", "not a.hooks", "a.k == 1",
          "len(few := layer.few) == 2", "all(map(_is_one_of_net_blocks_0_few_2, few))"]),
    ]  # fmt: skip


def test_few_conditions_stay_where_they_are_asked() -> None:
    few = ["all(layer.a and layer.b for layer in self.blocks)"]
    checks = LayerChecks("Net", "", [])
    assert checks.move_out(few) == few and not checks.functions
