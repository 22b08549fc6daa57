"""Losses and distances of two or three tensors in Triton's interpreter, against float64 and
eager."""

import pytest
from codegen_helpers import for_values, matches, program
from training_helpers import agrees as trained_agrees

pytestmark = pytest.mark.torch
pytest.importorskip("torch")

ROWS = "torch.randn(5, 13), torch.randn(5, 13)"
TRIPLES = "torch.randn(5, 13), torch.randn(5, 13), torch.randn(5, 13)"
CLASSES = "torch.randn(6, 11), torch.randint(0, 11, (6,))"


def agrees(interpreter, source: str, skill: str, slack: float = 3e-6) -> None:
    found = interpreter.ask(before=source, after=for_values(source, skill))
    assert not found["fell_back"] and all(found["same_kind"])
    for ours, eager in zip(found["ours"], found["eager"], strict=True):
        assert ours <= 2 * eager + slack


@pytest.mark.parametrize(
    "expression, inputs",
    [
        ("F.cosine_similarity(x, y, dim=1)", ROWS),
        (
            "F.cosine_similarity(x, y, dim=1)",
            "torch.randn(5, 13) * 1e25, torch.randn(5, 13) * 1e-3",
        ),
        ("F.cosine_similarity(x, y, dim=1)", "torch.zeros(5, 13), torch.randn(5, 13)"),
        (
            "F.cosine_similarity(x, y, dim=-1, eps=1e-3) * 2",
            "torch.randn(3, 4, 9), torch.randn(3, 4, 9) * 1e-4",
        ),
        ("F.cosine_similarity(x, y, dim=0)", ROWS),
        ("F.pairwise_distance(x, y)", ROWS),
        ("F.pairwise_distance(x, y, p=1.0, eps=0.5)", ROWS),
        ("F.pairwise_distance(x, x)", ROWS),
    ],
)
def test_reductions_of_pairs(interpreter, expression: str, inputs: str) -> None:
    agrees(interpreter, program(expression, inputs), "fused-reduction")


@pytest.mark.parametrize(
    "expression",
    [
        "F.cosine_similarity(x, y[:1], dim=1)",  # broadcast
        "F.pairwise_distance(x, y, p=3.0)",
        "F.cosine_similarity(x, y.double(), dim=1)",
        "F.cosine_similarity(x.double(), y.double(), dim=1)",
    ],
)
def test_pairs_that_are_not_covered(expression: str) -> None:
    _, found = matches(program(expression, ROWS), "fused-reduction")
    assert not any("cosine" in match.label or "pairwise" in match.label for match in found)


@pytest.mark.parametrize(
    "settings", ["", ", margin=0.3, reduction='sum'", ", p=1.0", ", margin=4.0, reduction='none'"]
)
def test_triplet_losses(interpreter, settings: str) -> None:
    expression = f"F.triplet_margin_loss(x, y, z{settings})"
    agrees(interpreter, program(expression, TRIPLES, arguments="x, y, z"), "fused-loss")


def trained(shape: str, dtype: str, count: int, scale: str = "1") -> str:
    one = f"(torch.randn({shape}) * {scale}).to(torch.{dtype}).requires_grad_()"
    return ", ".join([one] * count)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize(
    "expression, scale",
    [
        ("F.cosine_similarity(x, y, dim=-1)", "1"),
        ("(1 - F.cosine_similarity(x, y, dim=-1, eps=1e-2)).mean()", "1e-3"),  # short: raised
        ("F.pairwise_distance(x, y)", "1"),
        ("F.pairwise_distance(x, y, p=1.0, eps=0.5)", "1"),
    ],
)
def test_pairs_train(trainer, expression: str, scale: str, dtype: str) -> None:
    trained_agrees(
        trainer, program(expression, trained("67, 31", dtype, 2, scale)), "fused-reduction"
    )


def test_vectors_of_length_zero_have_the_gradient_of_eager(trainer) -> None:
    inputs = "torch.zeros(3, 13, requires_grad=True), torch.randn(3, 13, requires_grad=True)"
    trained_agrees(trainer, program("F.cosine_similarity(x, y)", inputs), "fused-reduction")


@pytest.mark.parametrize("settings", [", margin=0.3", ", p=1.0, reduction='none'"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_triplet_losses_train(trainer, settings: str, dtype: str) -> None:
    expression = f"F.triplet_margin_loss(x, y, z{settings})"
    source = program(expression, trained("13, 70", dtype, 3), arguments="x, y, z")
    trained_agrees(trainer, source, "fused-loss")


@pytest.mark.parametrize("expression", ["x, y, z, swap=True", "x, y, z[:1]", "x, y, z, p=3.0"])
def test_triplets_that_are_not_covered(expression: str) -> None:
    source = program(f"F.triplet_margin_loss({expression})", TRIPLES, arguments="x, y, z")
    assert not matches(source, "fused-loss")[1]


@pytest.mark.parametrize(
    "expression",
    [
        "F.nll_loss(F.log_softmax(x, dim=1), y)",
        "F.nll_loss(F.log_softmax(x, -1), y, reduction='sum')",
        "F.nll_loss(F.log_softmax(x, dim=1), y, ignore_index=3, reduction='none')",
        "F.cross_entropy(x, y)",
        "F.cross_entropy(x, y, label_smoothing=0.3)",
    ],
)
@pytest.mark.parametrize("shift", ["0", "3e4"])
def test_negative_log_likelihood_is_cross_entropy(interpreter, expression: str, shift: str) -> None:
    """Also for logits with a large common part, where log-sum-exp alone has lost its digits."""
    inputs = CLASSES.replace("torch.randn(6, 11)", f"torch.randn(6, 11) + {shift}")
    agrees(interpreter, program(expression, inputs), "fused-loss", slack=1e-6)


@pytest.mark.parametrize(
    "expression",
    [
        "F.nll_loss(F.log_softmax(x, dim=0), y)",
        "F.nll_loss(F.softmax(x, dim=1), y)",
        "F.nll_loss(F.log_softmax(x, dim=1, dtype=torch.float64), y)",
        "F.nll_loss(F.softmax(x, dim=1).log(), y, weight=torch.rand(11))",
    ],
)
def test_likelihoods_of_something_else_are_left_alone(expression: str) -> None:
    assert not matches(program(expression, CLASSES), "fused-loss")[1]


def test_logarithms_that_somebody_else_reads_are_kept() -> None:
    source = program("(F.nll_loss(p := F.log_softmax(x, dim=1), y), p)", CLASSES)
    assert not matches(source, "fused-loss")[1]


@pytest.mark.parametrize("columns, worth", [(50_000, True), (8_192, True), (1_024, False)])
def test_a_softmax_speaks_up_alone_only_for_rows_that_eager_reads_more_than_once(
    columns, worth
) -> None:
    source = program("F.log_softmax(x, dim=-1)", f"torch.randn(1024, {columns})", arguments="x")
    _, found = matches(source, "fused-row-softmax")
    assert [match.benefit > 0 for match in found] == [worth]


@pytest.mark.parametrize("dim, worth", [(0, True), (1, False)])
def test_a_softmax_over_another_dimension_speaks_up_alone(dim, worth) -> None:
    """Eager takes 5 ms there where bytes take 0.06 (H200, 4096 x 8192); short rows it reads
    once."""
    source = program(f"F.softmax(x, dim={dim})", "torch.randn(50000, 512)", arguments="x")
    assert [match.benefit > 0 for match in matches(source, "fused-row-softmax")[1]] == [worth]
