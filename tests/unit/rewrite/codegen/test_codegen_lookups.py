"""Bags of embeddings and gradients of tables against float64, in Triton's interpreter."""

import pytest
from codegen_helpers import as_close_as_eager, for_values, matches, program
from training_helpers import agrees as trained_agrees

pytestmark = pytest.mark.torch
pytest.importorskip("torch")

TABLE = "self.w = nn.Parameter(torch.randn({n}, {d}, dtype=torch.{dtype}))"
OFFSETS = "torch.tensor([0, 3, 3, 4, 50, 97])"  # the second bag is empty
BAGS = [
    ("F.embedding_bag(x, self.w, y, mode='sum')", "torch.randint(0, 9, (97,)), " + OFFSETS),
    ("F.embedding_bag(x, self.w, y, mode='mean')", "torch.randint(0, 9, (97,)), " + OFFSETS),
    ("F.embedding_bag(x, self.w, mode='mean')", "torch.randint(0, 9, (7, 13))"),
    ("F.embedding_bag(x, self.w)", "torch.randint(0, 9, (7, 3), dtype=torch.int32)"),
]
LOOKUPS = [
    ("F.embedding(x, self.w)", "torch.randint(0, 9, (3, 5))"),  # one chunk
    ("F.embedding(x, self.w, padding_idx=2)", "torch.randint(0, 4, (171,))"),  # runs over chunks
    ("F.embedding(x, self.w)", "torch.full((100,), 3)"),
    ("F.embedding(x, self.w)", "torch.arange(64) // 32"),  # runs that end where chunks do
]


def _source(expression: str, inputs: str, dtype: str = "float32") -> str:
    arguments = "x, y" if "y" in expression.replace("y=", "") else "x"
    init = TABLE.format(n=9, d=37, dtype=dtype)
    return program(expression, inputs, arguments=arguments, init=init)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("expression, inputs", BAGS)
def test_bags_are_summed(interpreter, expression, inputs, dtype) -> None:
    source = _source(expression, inputs, dtype)
    as_close_as_eager(interpreter, source, for_values(source, "summed-lookups"))


@pytest.mark.parametrize("number, case", list(enumerate([*BAGS, *LOOKUPS])))
def test_the_gradient_of_the_table_is_added_up(trainer, number, case) -> None:
    dtype = ("float32", "float16")[number % 2]
    trained_agrees(trainer, _source(*case, dtype), "summed-lookups")


def test_gradients_of_gradients(trainer) -> None:
    """Of bags torch has none."""
    source = _source("F.embedding(x, self.w, padding_idx=2) ** 2", "torch.arange(40) % 9")
    trained_agrees(trainer, source, "summed-lookups", twice=True)


def test_only_its_row_gets_a_gradient_that_is_infinite(trainer) -> None:
    weights = "torch.ones(40).index_fill(0, torch.tensor([7]), float('inf'))"
    source = _source("F.embedding(x, self.w) * y[:, None]", f"torch.arange(40) % 9, {weights}")
    trained_agrees(trainer, source, "summed-lookups")


@pytest.mark.parametrize("expression, inputs", [
    ("F.embedding_bag(x, self.w, y, mode='max')", "torch.randint(0, 9, (97,)), " + OFFSETS),
    ("F.embedding_bag(x, self.w, y, padding_idx=1)", "torch.randint(0, 9, (97,)), " + OFFSETS),
    ("F.embedding_bag(x, self.w, y, include_last_offset=True)", "torch.randint(0, 9, (97,)), " + OFFSETS),
    ("F.embedding(x, self.w)", "torch.randint(0, 9, (7, 3))"),  # a copy of rows
])  # fmt: skip
def test_what_is_left_alone(expression, inputs) -> None:
    assert matches(_source(expression, inputs), "summed-lookups")[1] == []
