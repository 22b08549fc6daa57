"""requires and recipe: every fault is named, and a machine says where a skill fits."""

from pathlib import Path

import pytest
from test_skillbook_format import GOOD, skill

from kernel_lsp.records import ArgSpec, Bounds, Requirements
from kernel_lsp.skillbook import conditions, lint
from kernel_lsp.skillbook.conditions import Surroundings
from kernel_lsp.skillbook.format import read


def with_metadata(text: str) -> str:
    return GOOD.replace("  version: 2\n", f"  version: 2\n{text}")


WHOLE = """  requires:
    device: cuda
    architectures: [sm_90]
    dtypes: [float32]
    layouts: [contiguous]
    ranks: {least: 2, most: 4}
    elements: {least: 1024, most: 65536}
    multiple: 16
    torch: "2.6"
  recipe:
    - skill: fused-norm
      covers: [layer_norm]
      parameters: {num_warps: 8, plan: tiles}
      every: true
    - skill: cuda-graph
"""


def test_a_recipe_and_what_it_requires_are_read(tmp_path: Path) -> None:
    found = read(skill(tmp_path, with_metadata(WHOLE)))
    assert found.requires == Requirements(
        device="cuda",
        architectures=("sm_90",),
        dtypes=("float32",),
        layouts=("contiguous",),
        ranks=Bounds(least=2, most=4),
        elements=Bounds(least=1024, most=65536),
        multiple=16,
        torch="2.6",
    )
    assert [(s.skill, s.covers, s.parameters, s.every) for s in found.recipe] == [
        ("fused-norm", ("layer_norm",), {"num_warps": 8, "plan": "tiles"}, True),
        ("cuda-graph", (), {}, False),
    ]


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("  requires: fast\n", "metadata.requires"),
        ("  requires: {device: tpu}\n", "metadata.requires.device"),
        ("  requires: {dtypes: float32}\n", "metadata.requires.dtypes"),
        ("  requires: {layouts: [dense]}\n", "metadata.requires.layouts"),
        ("  requires: {elements: {least: 9, most: 3}}\n", "metadata.requires.elements"),
        ("  requires: {ranks: {least: 1}}\n", "metadata.requires.ranks"),
        ("  requires: {multiple: 0}\n", "metadata.requires.multiple"),
        ("  requires: {torch: 2.6}\n", "metadata.requires.torch"),
        ("  requires: {gpu: yes}\n", "metadata.requires.gpu"),
        ("  recipe: []\n", "metadata.recipe"),
        ("  recipe: [fused-norm]\n", "metadata.recipe[0]"),
        ("  recipe: [{skill: Fused Norm}]\n", "metadata.recipe[0].skill"),
        (
            "  recipe: [{skill: a, on: [x]}]\n",
            "metadata.recipe[0].True",
        ),  # YAML 1.1 reads `on` as true
        ("  recipe: [{skill: a, covers: linear}]\n", "metadata.recipe[0].covers"),
        ("  recipe: [{skill: a, parameters: {B: [1, 2]}}]\n", "metadata.recipe[0].parameters"),
        ("  recipe: [{skill: a, every: often}]\n", "metadata.recipe[0].every"),
        ("  recipe: [{skill: a, planned: 1}]\n", "metadata.recipe[0].planned"),
        ("  requires: {planned: fused-norm}\n", "metadata.requires.planned"),
        ("  requires: {unplanned: [Fused]}\n", "metadata.requires.unplanned"),
        ("  recipe: [{skill: a, planned: true}, {skill: b}]\n", "metadata.recipe"),
    ],
)
def test_each_fault_names_its_field(tmp_path: Path, text: str, field: str) -> None:
    assert field in [problem.field for problem in lint(skill(tmp_path, with_metadata(text)))]


def test_a_recipe_beside_a_rewrite_is_refused(tmp_path: Path) -> None:
    rewrite = (
        "parameters = {}\ndef match(g): ...\ndef preconditions(g, m): ...\ndef apply(g, m, "
        "p): ...\n"
    )
    found = lint(skill(tmp_path, with_metadata("  recipe: [{skill: a}]\n"), rewrite))
    assert [problem.field for problem in found] == ["metadata.recipe"]


X = ArgSpec(name="x", dtype="float32", shape=(64, 128))
HERE = Surroundings(
    device="cuda", inputs=(X,), capability="sm_90", torch="2.11.0+cu130", triton="3.6.0"
)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (Requirements(), None),
        (Requirements(device="cpu"), "it is for cpu, this is cuda"),
        (Requirements(architectures=("sm_80",)), "it is for sm_80, this is sm_90"),
        (Requirements(dtypes=("bfloat16",)), "a tensor is float32"),
        (Requirements(layouts=("strided",)), "a tensor is contiguous"),
        (Requirements(ranks=Bounds(least=3, most=4)), "has 2 dimensions"),
        (Requirements(elements=Bounds(least=1, most=8191)), "has 8192 elements"),
        (Requirements(elements=Bounds(least=8192, most=8192)), None),
        (Requirements(multiple=64), None),
        (Requirements(multiple=48), "a tensor ends in 128, it was learned on multiples of 48"),
        (Requirements(torch="2.6", triton="3.6"), None),
        (Requirements(torch="2.12"), "it needs torch 2.12, this is 2.11.0"),
        (Requirements(triton="3.10"), "it needs triton 3.10"),
    ],
)
def test_what_a_job_lacks(asked: Requirements, said: str | None) -> None:
    found = list(conditions.unmet(asked, HERE))
    assert found == [] if said is None else said in found[0]


@pytest.mark.parametrize(
    ("shape", "stride", "name"),
    [
        ((2, 3, 4, 5), None, "contiguous"),
        ((2, 3, 4, 5), (60, 20, 5, 1), "contiguous"),
        ((2, 3, 4, 5), (60, 1, 15, 3), "channels_last"),
        ((2, 3, 4, 5, 6), (360, 1, 90, 18, 3), "channels_last"),
        ((4, 5), (1, 4), "strided"),
        ((4, 5), (0, 1), "strided"),
    ],
)
def test_layouts(shape: tuple[int, ...], stride: tuple[int, ...] | None, name: str) -> None:
    assert (
        conditions.layout(ArgSpec(name=None, dtype="float32", shape=shape, stride=stride)) == name
    )
