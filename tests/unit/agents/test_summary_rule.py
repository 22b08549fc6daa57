"""The summary without a model: what is generalized, what goes, and that the result is a skill."""

from pathlib import Path

import pytest
from library_helpers import ROWS, seen

from kernel_lsp import skillbook
from kernel_lsp.agents import summary, summary_rule
from kernel_lsp.records import ArgSpec, Bounds, RecipeStep, Requirements, Step
from kernel_lsp.skillbook import learned, lint
from kernel_lsp.skillbook.format import read


@pytest.mark.parametrize(
    ("site", "operations"),
    [
        ("linear_1+gelu+mul_2", ("linear",)),
        ("conv2d_default+sigmoid+sum_1", ("conv2d", "sum")),
        ("matmul+matmul_1", ("matmul",)),
        ("conv_transpose3d+avg_pool3d_1", ("conv_transpose3d", "avg_pool3d")),
        ("layer_norm+gelu", ("layer_norm",)),
        ("add+tanh_127", ()),
        ("x", ()),
    ],
)
def test_of_a_site_its_operations_that_are_not_pointwise_stay(
    site: str, operations: tuple[str, ...]
) -> None:
    assert summary_rule.anchors(site) == operations


def test_the_same_at_the_next_place_becomes_one_step_and_semantics_stay_out() -> None:
    told = {"plan": "tiles", "precision": "tf32", "nonfinite": "fast"}
    steps = [
        Step(skill="fused-matmul", site=f"linear_{n}+relu_{n}", parameters=told) for n in range(3)
    ]
    steps += [Step(skill="cuda-graph", site="x")]
    steps += [Step(skill="fused-matmul", site="linear_9", parameters={"plan": "parts"})]
    assert list(summary_rule.generalize_steps(steps)) == [
        RecipeStep(
            skill="fused-matmul", covers=("linear",), parameters={"plan": "tiles"}, every=True
        ),
        RecipeStep(skill="cuda-graph"),
        RecipeStep(skill="fused-matmul", covers=("linear",), parameters={"plan": "parts"}),
    ]


def test_parameters_alone_are_those_on_which_all_sites_of_a_kind_agree() -> None:
    steps = [
        Step(
            skill="fused-matmul",
            site="linear",
            parameters={"plan": "tiles", "precision": "tf32", "warps": 8},
        ),
        Step(skill="fused-norm", site="layer_norm", parameters={"warps": 4}),
        Step(skill="fused-matmul", site="linear_1+relu", parameters={"plan": "parts", "warps": 8}),
        Step(skill="cuda-graph", site="x"),
    ]
    matmul = RecipeStep(
        skill="fused-matmul", covers=("linear",), parameters={"warps": 8}, planned=True
    )
    norm = RecipeStep(
        skill="fused-norm", covers=("layer_norm",), parameters={"warps": 4}, planned=True
    )
    assert list(summary_rule.tune_steps(steps)) == [matmul, norm]
    before = [Step(skill="fused-norm", site="layer_norm", parameters={"warps": 4, "rows": 1})]
    assert list(summary_rule.tune_steps(steps, before)) == [matmul]
    assert [draft.recipe for draft in summary_rule.drafts(steps, seen(ROWS), before)][1:] == [
        (matmul,)
    ]


@pytest.mark.parametrize(
    ("skills", "scope"),
    [
        (("triton-block-size", "triton-unmasked"), "triton"),
        (("fused-matmul", "cuda-graph"), "graph"),
    ],
)
def test_what_was_learned_of_a_persons_own_kernel_is_shown_on_kernels(
    skills: tuple[str, ...], scope: str
) -> None:
    made = summary_rule.draft([Step(skill=name, site="x") for name in skills], seen(ROWS))
    assert made is not None and made.scope == scope


def test_names_tell_which_built_in_skills_are_of_kernels() -> None:
    book = skillbook.load([skillbook.built_in_folder()])
    for skill in book.skills:
        if skill.executable:
            assert skill.name.startswith(summary_rule.OF_KERNELS) == (skill.scope == "triton"), (
                skill.name
            )


def test_an_order_is_for_where_what_it_lacks_is_planned(tmp_path: Path) -> None:
    """It was shown instead of that, and has one more step."""
    steps = [Step(skill="fused-norm", site="layer_norm"), Step(skill="cuda-graph", site="x")]
    before = [
        Step(skill="fused-norm", site="layer_norm"),
        Step(skill="fused-matmul", site="linear"),
    ]
    (draft,) = summary_rule.drafts(steps, seen(ROWS), before)
    asked = draft.requires
    assert asked is not None and (asked.planned, asked.unplanned) == (
        ("fused-matmul",),
        ("cuda-graph",),
    )
    assert draft.description.endswith("instead of fused-matmul")
    (tmp_path / draft.name).mkdir()
    (tmp_path / draft.name / "SKILL.md").write_text(learned.text_of(draft))
    assert read(tmp_path / draft.name, "learned").requires == asked
    (other,) = summary_rule.drafts(steps, seen(ROWS))
    assert other.name != draft.name and other.requires is not None and other.requires.planned == ()


def test_what_it_asks_for_is_what_held_with_sizes_a_factor_of_sixteen_around() -> None:
    """4096 x 1000 elements lie between 2^21 and 2^22: from 2^(21 - 4) to 2^(22 + 4)."""
    small = ArgSpec(name="scale", dtype="bfloat16", shape=(1000,))
    found = summary_rule.requirements(
        seen(ArgSpec(name=None, dtype="float32", shape=(4096, 1000)), small, device="cuda")
    )
    assert found == Requirements(
        device="cuda",
        architectures=("sm_90",),
        dtypes=("bfloat16", "float32"),
        layouts=("contiguous",),
        ranks=Bounds(least=2, most=2),
        elements=Bounds(least=2**17, most=2**26),
        torch="2.11",
        triton="3.6",
    )


@pytest.mark.parametrize(
    ("elements", "least", "most"),
    [(4096, 2**7, 2**16), (4097, 2**8, 2**17), (8192, 2**8, 2**17), (2, 1, 2**5), (1, 1, 2**4)],
)
def test_a_size_lies_between_the_powers_of_two_around_it(
    elements: int, least: int, most: int
) -> None:
    found = summary_rule.requirements(seen(ArgSpec(name=None, dtype="float32", shape=(elements,))))
    assert found.elements == Bounds(least=least, most=most)


@pytest.mark.parametrize("number", [0, 1], ids=["ordered", "tuned"])
def test_a_draft_is_a_whole_skill_and_is_read_back_as_it_was_written(
    tmp_path: Path, number: int
) -> None:
    told = {"plan": "tiles 128x128x64 warps 8", "deep": True, "share": 0.5}
    steps = [Step(skill="fused-matmul", site="linear+relu", parameters=told)]
    draft = summary_rule.drafts(steps, seen(ROWS))[number]
    assert draft.recipe[0].planned == bool(number) and not list(summary_rule.faults(draft))
    assert not list(summary.faults(draft, set()))
    folder = tmp_path / draft.name
    folder.mkdir()
    (folder / "SKILL.md").write_text(learned.text_of(draft))
    assert lint(folder) == ()
    skill = read(folder, "learned")
    assert (skill.recipe, skill.requires) == (draft.recipe, draft.requires)
    assert "1.80x (1.70x to 1.90x)" in skill.body and "2^20 elements" in skill.body
    assert not skill.executable


def test_nothing_comes_of_no_steps() -> None:
    assert summary_rule.draft([], seen(ROWS)) is None


def test_many_steps_have_a_name_and_a_description_that_fit(tmp_path: Path) -> None:
    names = [
        "reassociate-linear-reduction",
        "value-range-collapse",
        "fused-row-softmax",
        "batch-norm-train",
    ]
    steps = [Step(skill=name, site="scaled_dot_product_attention+log_softmax") for name in names]
    draft = summary_rule.draft(steps, seen())
    assert draft is not None and len(draft.name) <= 64 and len(draft.description) <= 120
    folder = tmp_path / draft.name
    folder.mkdir()
    (folder / "SKILL.md").write_text(learned.text_of(draft))
    assert lint(folder) == ()
