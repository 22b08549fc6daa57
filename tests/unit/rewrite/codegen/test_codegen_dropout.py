"""Dropout inside of fused kernels: the mask that torch's CUDA kernel draws by a generator's state,
forwards and backwards, in Triton's interpreter."""

import pytest
from codegen_helpers import program
from rewrite_helpers import sites
from training_helpers import for_values, session

pytestmark = pytest.mark.torch
pytest.importorskip("torch")

STATES = [(1234, 0, 256), (2**63 + 12345, 2**32 - 1, 64), (7, 3, 8)]
"""Seed, turn and threads: one step of the threads, a counter past 32 bits, many steps."""
CHAINS = [
    ("x + F.dropout(y, 0.1)", "4, 6, 32"),
    ("F.dropout(F.gelu(x), 0.3) * y", "5, 64"),
    ("torch.tanh(x + F.dropout(x * y, 0.5))", "3, 7, 8"),
    ("F.dropout(x + y[0], 0.2) * y", "16, 24"),
]
ROWS = [
    ("fused-row-softmax", "F.dropout(torch.softmax(x * 0.5, -1), 0.1) + y", "6, 40"),
    ("fused-norm", "F.layer_norm(x + F.dropout(y, 0.1), (24,), self.w)", "9, 24"),
]


def source(expression: str, shape: str, dtype: str = "float32", width: int = 24) -> str:
    one = f"torch.randn({shape}, dtype=torch.{dtype}, requires_grad=True)"
    init = f"self.w = nn.Parameter(torch.rand({width}, dtype=torch.{dtype}))"
    return program(expression, f"{one}, {one}", init=init if "self.w" in expression else "")


def agrees(trainer, skill: str, before: str, state) -> str:
    after = for_values(before, skill)
    vector = 4 if "float32" in before else 8
    found = trainer.ask(before=before, after=after, state=list(state), vector=vector)
    assert all(found["same_kind"])
    slack = 3e-6 if "float32" in before else 2**-5  # another mask is off by far more
    for ours, eager in zip(found["ours"], found["eager"], strict=True):
        assert ours <= 2 * eager + slack
    return after


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("expression, shape", CHAINS)
def test_a_chain_draws_as_torch_does(trainer, expression, shape, dtype, state) -> None:
    after = agrees(trainer, "fused-pointwise", source(expression, shape, dtype), state)
    assert "dropout(" not in after.split("def forward(self")[1]  # drawn once


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("skill, expression, shape", ROWS)
def test_rows_draw_as_torch_does(trainer, skill, expression, shape, dtype) -> None:
    agrees(trainer, skill, source(expression, shape, dtype), STATES[2])


def found(expression: str, training: bool = True) -> list[str]:
    opened = session(source(expression, "64, 64"), "fused-pointwise", training)
    return [match.label for match in opened.rewrites["fused-pointwise"].match(opened.graph)]


def test_draws_keep_their_order() -> None:
    both = "(lambda a, b: (b * 2, a * 3))(F.dropout(x + 1, 0.1), F.dropout(y + 1, 0.1))"
    assert all(label.count("dropout") < 2 for label in found(both))
    crossed = "(lambda a, b: x * b + a)(F.dropout(x, 0.1), torch.rand_like(y))"
    assert not any("dropout" in label for label in found(crossed))


@pytest.mark.parametrize(
    "expression", ["F.dropout(x, 0.1)", "F.dropout(x, 1.0) + y", "F.dropout(x.t(), 0.1) + y"]
)
def test_what_is_left_to_torch(expression) -> None:
    assert sites(source(expression, "1024, 1024"), "fused-pointwise", training=True) == []


def test_without_gradients_the_launcher_draws() -> None:
    from codegen_helpers import rewritten

    after = rewritten(source("x + F.dropout(y, 0.1)", "64, 64").replace(", requires_grad=True", ""),
                      "fused-pointwise")  # fmt: skip
    assert "return fused_dropout_add_forward(y, x, next_draws(y))" in after
