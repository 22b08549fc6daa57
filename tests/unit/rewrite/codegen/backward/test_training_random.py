"""Random pointwise trees: their backward kernels agree with float64 torch as eager's gradients
do."""

import pytest
from codegen_helpers import program
from example_helpers import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from training_helpers import agrees

pytestmark = pytest.mark.torch
pytest.importorskip("torch")

INPUTS = "torch.randn(3, 17, requires_grad=True), torch.randn(3, 17, requires_grad=True)"
UNARY = [
    "torch.tanh({})", "torch.sigmoid({})", "F.gelu({})", "F.silu({})", "torch.sin({})",
    "F.softplus({})",
    "torch.exp(-({}).abs())", "F.leaky_relu({}, 0.2)", "({} * 0.5 + 1)",
    "torch.clamp({}, -0.75, 0.75)",
]  # fmt: skip
BINARY = ["({} + {})", "({} * {})", "({} - {})", "torch.maximum({}, {})", "({} / (1 + ({}).abs()))"]


def trees() -> st.SearchStrategy[str]:
    leaves = st.sampled_from(["x", "y", "self.b"])
    return st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.builds(str.format, st.sampled_from(UNARY), inner),
            st.builds(str.format, st.sampled_from(BINARY), inner, inner),
        ),
        max_leaves=6,
    )


@settings(
    max_examples=examples(10),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(tree=trees())
def test_a_random_tree_has_the_gradients_of_eager(trainer, tree) -> None:
    # Both inputs and the broadcast parameter take part, so that all three kinds of gradient are
    # made.
    expression = f"torch.tanh({tree}) * x + F.silu(y * self.b)"
    source = program(expression, INPUTS, init="self.b = nn.Parameter(torch.randn(17))")
    agrees(trainer, source, "fused-pointwise")
