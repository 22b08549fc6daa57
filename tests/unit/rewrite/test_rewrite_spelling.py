"""Several spellings of one operation are captured as one; what is another operation stays as it
is."""

import pytest
import torch
from rewrite_helpers import assert_same, graph_of, instance, module, rewrite

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
        ("return torch.linalg.norm(x, dim=-1)", ["linalg_vector_norm"]),
        ("return torch.linalg.norm(x, 1, dim=0, keepdim=True)", ["linalg_vector_norm"]),
        ("return torch.linalg.norm(x)", ["linalg_vector_norm"]),
        ("return torch.linalg.norm(self.v, 3) + x", ["linalg_vector_norm", "add"]),
        ("return x / x.sum(1).view(-1, 1)", ["sum", "unsqueeze", "div"]),
        ("return x / x.sum(0).reshape(1, 8)", ["sum", "unsqueeze", "div"]),
        ("return x - x.max(1)[0].view(6, 1)", ["max", "getitem", "unsqueeze", "sub"]),
        (
            "return x * (x.square().mean(-1) + 1e-6).rsqrt().view(x.shape[0], 1)",
            ["square", "mean", "add", "rsqrt", "unsqueeze", "mul"],
        ),
        (
            "v, m = torch.var_mean(x, 1, keepdim=True, correction=0)\nreturn (x - m) / v",
            ["var", "mean", "sub", "div"],
        ),
        (
            "v, m = torch.std_mean(x, 1, keepdim=True)\nreturn (x - m) / v",
            ["std", "mean", "sub", "div"],
        ),
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
        ("return torch.linalg.norm(x, 1)", "linalg_norm"),  # of a matrix
        ("return torch.linalg.norm(x, dim=(0, 1), ord=2)", "linalg_norm"),
        ("return torch.linalg.norm(x, 'nuc')", "linalg_norm"),
        ("return torch.linalg.norm(x, dim=1, dtype=torch.float64)", "linalg_norm"),
        ("return x.sum(1).view(1, 6) + x.T", "view"),  # another place
        ("return x.sum(1).view(2, 3)", "view"),
        ("return x.view(6, 1, 8)", "view"),  # of nothing reduced
        ("return x / x.sum(1, keepdim=True).view(6, 1, 1)[0]", "view"),
        ("return torch.stack(torch.var_mean(x, 1))", "var_mean"),
        ("v, m = torch.var_mean(x, 1)\nreturn v + m", "var_mean"),
        ("v, m = torch.var_mean(x)\nreturn (x - m) / v", "var_mean"),
        ("return x - torch.var_mean(x, 1, keepdim=True)[1]", "var_mean"),
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
        "v, i = self.pool(torch.inner(x, self.w))\nreturn v.relu().relu() + 0 * "
        "torch.addmm(self.b, x, "
        "self.w.t()).amax()",
        f"{WEIGHTS}\n{POOL}",
    )
    made = rewrite(source, "value-range-collapse")
    assert "inner" not in made.program.split("def forward")[1]
    assert_same(source, made, torch.randn(6, 8, dtype=torch.float64))


HAND = """
v, m = torch.{0}_mean(x, 1, keepdim=True{1})
n = x / x.sum(1).view(-1, 1) + torch.linalg.norm(x, dim=1).reshape(-1, 1)
return ((x - m) / (v + 1)).relu().relu() + n
"""


@pytest.mark.parametrize("moments", ["var", "std"])
@pytest.mark.parametrize("options", ["", ", correction=0", ", correction=2", ", unbiased=False"])
def test_moments_and_restored_dimensions_stay_what_they_are(moments: str, options: str) -> None:
    source = module(HAND.format(moments, options).strip())
    made = rewrite(source, "value-range-collapse")
    assert made.program.count("relu") == source.count("relu") * 2 - 1
    assert "torch.linalg.vector_norm(x, dim=1)" in made.program
    assert_same(source, made, torch.randn(6, 8, dtype=torch.float64))


def test_gradients_of_the_spelling_are_those_of_the_original() -> None:
    source = module(HAND.format("std", "").strip())
    wide = rewrite(source, "value-range-collapse").program.replace("torch.float32", "torch.float64")
    slopes = []
    for text in (source, wide):
        x = torch.linspace(-1, 2, 48, dtype=torch.float64).view(6, 8).sin().requires_grad_()
        instance(text, None, torch.float64)(x).square().sum().backward()
        slopes.append(x.grad)
    torch.testing.assert_close(*slopes)
