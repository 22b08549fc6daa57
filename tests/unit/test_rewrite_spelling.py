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
        ("return x.view(2, 3, 8).flatten(1).sum(-1)", ["view", "sum"]),
        ("return x.view(2, 3, 8).reshape(2, -1).logsumexp(1)", ["view", "logsumexp"]),
        ("return x.view(2, 3, 4, 2).view(2, 3, -1).norm(dim=2)", ["view", "linalg_vector_norm"]),
        ("return x.view(1, 2, 3, 8).flatten(1).std(1)", ["view", "std"]),
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
        ("return x.view(2, 3, 8).view(2, 4, 6).sum(-1)", "view"),  # it was split
        ("return x.view(2, 3, 8).flatten().cumsum(0)", "flatten"),
        ("return x.view(2, 3, 8).flatten(1).sum(1, keepdim=True)", "flatten"),
        ("return x.view(2, 3, 8).flatten(0, 1).sum(1)", "flatten"),  # rows that stay together
        ("return x.view(2, 3, 8).flatten(1).max(1)[0]", "flatten"),
        ("return torch.stack(F.max_pool1d(x, 2, return_indices=True))", "max_pool1d_with_indices"),
    ],
)
def test_what_is_another_operation_stays(forward: str, kept: str) -> None:
    assert kept in operations(forward)


@pytest.mark.parametrize("reduction", ["sum(2)", "mean(-1)", "amax((2,))", "var(2)", "norm(1, 2)"])
def test_flattened_dimensions_are_reduced_as_they_were(reduction: str) -> None:
    init = "self.ct = nn.ConvTranspose2d(3, 4, 3, stride=2, padding=1)"
    source = module(f"return self.ct(x).flatten(2).{reduction}", init, "torch.randn(2, 3, 5, 5)")
    graph = graph_of(source)
    assert [node.target._opname for node in graph.nodes][-1] == reduction.split("(")[0].replace(
        "norm", "linalg_vector_norm"
    )
    assert [item for item in graph.nodes[-1].args if isinstance(item, list)] == [[2, 3]]


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
