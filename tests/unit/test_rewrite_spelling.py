"""Several spellings of one operation are captured as one; what is another operation stays as it is."""

import pytest
import torch
from rewrite_helpers import assert_same, graph_of, module, rewrite

pytestmark = pytest.mark.torch

WEIGHTS = (
    "self.w, self.v = nn.Parameter(torch.randn(4, 8)), nn.Parameter(torch.randn(8))\n"
    "self.b, self.m = nn.Parameter(torch.randn(4)), nn.Parameter(torch.randn(6, 4))"
)
POOL = "self.pool = nn.MaxPool1d(2, return_indices=True)"


def operations(forward: str, init: str = WEIGHTS, inputs: str = "torch.randn(6, 8)") -> list[str]:
    graph = graph_of(module(forward, init, inputs))
    return [getattr(node.target, "_opname", "getitem") for node in graph.nodes]


@pytest.mark.parametrize(
    "forward, expected",
    [
        ("return torch.inner(x, self.w)", ["linear"]),
        ("return torch.tensordot(x, self.w, dims=([1], [1]))", ["linear"]),
        ("return torch.tensordot(x, self.w.t(), 1)", ["t", "matmul"]),
        ("return torch.addmm(self.b, x, self.w.t())", ["linear"]),
        ("return torch.addmm(self.b, x, self.w.T)", ["linear"]),
        ("return x.mv(self.v)", ["matmul"]),
        ("return torch.diagflat(self.v) @ x.T", ["diag", "numpy_T", "matmul"]),
        ("return torch.linalg.diagonal(x @ x.T)", ["numpy_T", "matmul", "diagonal"]),
        ("return F.max_pool1d(x, 2, return_indices=True)[0]", ["max_pool1d"]),
    ],
)
def test_a_spelling_becomes_the_one_that_skills_know(forward: str, expected: list[str]) -> None:
    assert operations(forward) == expected


@pytest.mark.parametrize(
    "forward, kept",
    [
        ("return torch.addmm(self.b, x, self.w.t(), beta=2)", "addmm"),
        ("return torch.addmm(self.m, x, self.w.t())", "addmm"),  # a bias for each row
        ("return torch.addmm(self.b, x, x[:4, :8].t())", "linear"),
        ("return torch.tensordot(x, x, 2)", "tensordot"),
        ("return torch.inner(self.v, self.v) + x", "inner"),
        ("return torch.diagflat(x)", "diagflat"),
        ("return torch.stack(F.max_pool1d(x, 2, return_indices=True))", "max_pool1d_with_indices"),
    ],
)
def test_what_is_another_operation_stays(forward: str, kept: str) -> None:
    assert kept in operations(forward)


def test_the_rewritten_program_computes_what_the_spelling_does() -> None:
    """Through a layer, whose call returns the indices too."""
    source = module(
        "v, i = self.pool(torch.inner(x, self.w))\nreturn v.relu().relu() + 0 * torch.addmm(self.b, x, "
        "self.w.t()).amax()",
        f"{WEIGHTS}\n{POOL}",
    )
    made = rewrite(source, "value-range-collapse")
    assert "inner" not in made.program.split("def forward")[1]
    assert_same(source, made, torch.randn(6, 8, dtype=torch.float64))
