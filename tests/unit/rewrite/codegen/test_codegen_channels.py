"""Whole channels: batch norm in eval mode, global average pools, maximum norms, norms of few long
rows."""

import re

import pytest
from codegen_helpers import for_values, matches, program

pytestmark = pytest.mark.torch
pytest.importorskip("torch")

STATISTICS = "self.norm.running_mean.uniform_(-1, 1), self.norm.running_var.uniform_(0.5, 2)"
AFFINE = "self.norm.weight.data.uniform_(), self.norm.bias.data.uniform_()"
INIT = "self.norm = nn.BatchNorm{}d(5, eps=1e-3{}).eval(); {}"
PLAIN = ", affine=False"
IMAGE = "torch.randn(3, 5, 4, 7), torch.randn(3, 5, 4, 7)"


def agrees(interpreter, source: str, skill: str) -> str:
    """Same NaN and infinities as eager, and as close to float64 as eager is; returns the rewritten
    file."""
    after = for_values(source, skill)
    found = interpreter.ask(before=source, after=after)
    assert not found["fell_back"] and all(found["same_kind"])
    for ours, eager in zip(found["ours"], found["eager"], strict=True):
        assert ours <= 2 * eager + 3e-6
    return after


def normed(rank: int, more: str = "", also: str = f"{STATISTICS}; {AFFINE}") -> str:
    return INIT.format(rank, more, also)


@pytest.mark.parametrize(
    "skill, expression",
    [
        ("fused-pointwise", "F.relu(self.norm(x))"),
        ("fused-pointwise", "F.silu(self.norm(x * 0.5) + y)"),
        ("fused-pointwise", "F.relu(self.norm(F.relu(self.norm(x)) + y))"),
        ("fused-reduction", "F.relu(self.norm(x)).sum((2, 3))"),
        ("fused-reduction", "self.norm(x).amax(1)"),
        ("fused-norm", "F.group_norm(self.norm(x), 5)"),
        ("fused-row-softmax", "torch.softmax(self.norm(x), dim=-1)"),
    ],
)
def test_batch_norm_with_its_statistics_joins_its_neighbors(interpreter, skill, expression):
    after = agrees(interpreter, program(expression, IMAGE, init=normed(2)), skill)
    assert not re.search(r"\bnorm\(", after.split("def forward")[-1])  # the layer is not called


@pytest.mark.parametrize(
    "rank, inputs",
    [(1, "torch.randn(6, 5)"), (1, "torch.randn(2, 5, 9)"), (3, "torch.randn(2, 5, 2, 3, 4)")],
)
def test_batch_norm_of_any_rank(interpreter, rank, inputs):
    source = program("torch.tanh(self.norm(x))", inputs, arguments="x", init=normed(rank))
    agrees(interpreter, source, "fused-pointwise")


def test_batch_norm_without_weight_and_bias(interpreter):
    source = program("F.relu(self.norm(x))", IMAGE, init=normed(2, PLAIN, STATISTICS))
    agrees(interpreter, source, "fused-pointwise")


def test_batch_norm_with_as_many_channels_as_columns(interpreter):
    """The parameters belong to dimension 1 although they would broadcast along the last one as
    well."""
    source = program(
        "F.relu(self.norm(x))", "torch.randn(3, 5, 4, 5)", arguments="x", init=normed(2)
    )
    agrees(interpreter, source, "fused-pointwise")


@pytest.mark.parametrize(
    "init",
    [
        normed(2).replace(".eval()", ".train()"),  # statistics of the batch, and an effect
        normed(2, ", track_running_stats=False", AFFINE),  # the batch's statistics in eval mode too
    ],
)
def test_batch_norm_with_the_batch_s_statistics_is_not_pointwise(init):
    _, found = matches(program("F.relu(self.norm(x)) + y", IMAGE, init=init), "fused-pointwise")
    assert all("batch_norm" not in node.name for match in found for node in match.nodes)


def test_batch_norm_of_a_channels_last_tensor_is_left_to_eager():
    source = program(
        "F.relu(self.norm(x))",
        "torch.randn(3, 5, 4, 7).to(memory_format=torch.channels_last)",
        arguments="x",
        init=normed(2),
    )
    _, found = matches(source, "fused-pointwise")
    assert found == []


@pytest.mark.parametrize(
    "expression",
    [
        "F.adaptive_avg_pool2d(F.relu(x), 1)",
        "F.adaptive_avg_pool2d(x * y, (1, 1)) * 2",
        "torch.sigmoid(F.adaptive_avg_pool2d(x + y, 1)) * x",
    ],
)
def test_a_global_average_pool_is_a_mean(interpreter, expression):
    agrees(interpreter, program(expression, IMAGE), "fused-reduction")


@pytest.mark.parametrize("rank, shape", [(1, "2, 5, 300"), (3, "2, 3, 3, 4, 5")])
def test_global_average_pools_of_other_ranks(interpreter, rank, shape):
    source = program(
        f"F.adaptive_avg_pool{rank}d(F.gelu(x), 1)", f"torch.randn({shape})", arguments="x"
    )
    agrees(interpreter, source, "fused-reduction")


@pytest.mark.parametrize("size", ["2", "(1, 2)", "(None, 1)"])
def test_a_pool_with_several_results_is_no_reduction(size):
    _, found = matches(program(f"F.adaptive_avg_pool2d(x * y, {size})", IMAGE), "fused-reduction")
    assert found == []


@pytest.mark.parametrize("special", ["0.0", "nan", "inf", "-inf"])
def test_a_maximum_norm_keeps_what_is_not_finite(interpreter, special):
    inputs = (
        f"torch.randn(3, 9).index_fill_(1, torch.tensor([4]), float('{special}')), "
        f"torch.randn(3, 9)"
    )
    expression = "torch.linalg.vector_norm(x - y, ord=float('inf'), dim=-1)"
    agrees(interpreter, program(expression, inputs), "fused-reduction")


def test_other_norms_are_left_to_eager():
    for order in ("3", "0", "float('-inf')", "0.5"):
        source = program(f"torch.linalg.vector_norm(x - y, ord={order}, dim=-1)", IMAGE)
        assert matches(source, "fused-reduction")[1] == []


def test_a_layer_norm_of_few_long_rows_is_worth_a_kernel_and_one_of_many_is_not():
    """On a GPU eager gives each row to one of 132 multiprocessors: 16 rows leave 116 of them
    idle."""
    from kernel_lsp.rewrite.codegen.regions import cost

    estimates = []
    for shape in ((16, 2**20), (132, 2**17), (4096, 4096)):
        text = f"F.layer_norm(x, ({shape[1]},))"
        session, _ = matches(program(text, f"torch.empty{shape}", arguments="x"), "fused-norm")
        node = next(node for node in session.graph.nodes if node.name == "layer_norm")
        estimates.append(cost.eager_seconds(session.graph, node))
    assert estimates[0] > 4 * estimates[1] and abs(estimates[1] / estimates[2] - 1) < 0.05


def test_a_layer_norm_over_several_dimensions_of_few_rows(interpreter):
    source = program("F.layer_norm(x, x.shape[1:])", "torch.randn(2, 64, 80, 70)", arguments="x")
    agrees(interpreter, source, "fused-norm")
