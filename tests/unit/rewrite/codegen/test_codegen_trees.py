"""Random trees of pointwise operations agree with torch, whatever is nested in what."""

import pytest
from codegen_helpers import matches, program
from example_helpers import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytestmark = pytest.mark.torch
pytest.importorskip("torch")

LEAVES = st.sampled_from(["x", "y", "b", "0.5", "2.0"])
UNARY = [
    "torch.tanh({})",
    "F.silu({})",
    "torch.relu({})",
    "({}).abs()",
    "F.softplus({})",
    "torch.sigmoid({})",
]
BINARY = [
    "({} + {})",
    "({} * {})",
    "({} - {})",
    "torch.where(x > 0, {}, {})",
    "({} / (1.5 + ({}) ** 2))",
]


def grown(children):
    one = st.builds(lambda form, a: form.format(f"(x * 0 + {a})"), st.sampled_from(UNARY), children)
    two = st.builds(
        lambda form, a, b: form.format(a, b), st.sampled_from(BINARY), children, children
    )
    return one | two


@settings(max_examples=examples(12), deadline=None, suppress_health_check=list(HealthCheck))
@given(
    tree=st.recursive(LEAVES, grown, max_leaves=8),
    shape=st.sampled_from([(3, 5, 7), (1, 9), (4, 1), (2, 3, 1, 6)]),
)
def test_random_trees_agree_with_torch(interpreter, tree, shape):
    bias = (shape[1],) + (1,) * (len(shape) - 2)
    inputs = f"torch.randn({shape}), torch.randn({shape}), torch.randn({bias})"
    source = program(f"torch.sigmoid(x + {tree}) * y", inputs, arguments="x, y, b")
    session, found = matches(source, "fused-pointwise")
    assert found
    from kernel_lsp.records import Step

    steps = [
        Step(skill="fused-pointwise", site=max(found, key=lambda match: len(match.nodes)).label)
    ]
    answer = interpreter.ask(before=source, after=session.propose(steps).candidate.program)
    assert not answer["fell_back"] and all(answer["same_kind"])
    assert all(o <= 2 * e + 3e-6 for o, e in zip(answer["ours"], answer["eager"], strict=True))
