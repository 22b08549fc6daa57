"""Layers of one input, diagonals of products, totals behind a softmax: fires where right, and only
there."""

import pytest
import torch
from rewrite_helpers import assert_same, module, rewrite, sites

pytestmark = pytest.mark.torch

INF = float("inf")
X = torch.randn(6, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))

# --- merge-sibling-products ----------------------------------------------------------------

THREE = "self.a, self.b, self.c = nn.Linear(8, 4), nn.Linear(8, 5), nn.Linear(8, 4)"
TALL = "torch.randn(20000, 8)"


@pytest.mark.parametrize(
    ("forward", "init"),
    [
        ("return self.a(x).exp() + self.b(x).sum() - self.c(x).abs()", THREE),
        ("return self.a(x).exp() + self.b(x).sum() - "
         "self.c(x).abs()", THREE.replace(")", ", bias=False)")),
        ("a, c = torch.relu(self.a(x) * 2), torch.relu(self.c(x) * 2)\nreturn a @ "
         "c.T[:, :3]", THREE),
        ("return self.a(x).view(-1, 2, 2).transpose(1, 2) * self.c(x).sum() + "
         "self.b(x).mean()", THREE),
        ("y = x.view(-1, 2, 8)\nreturn torch.cat([self.a(y), self.b(y), self.c(y)], -1)", THREE),
    ],
)  # fmt: skip
def test_layers_of_one_input_are_one_product(forward: str, init: str) -> None:
    source = module(forward, init, TALL)
    made = rewrite(source, "merge-sibling-products")
    text = made.program.split("def forward")[1]
    assert text.count("linear(") == 1 and text.count("joined_weight = torch.cat(") == 1
    assert_same(source, made, torch.randn(20000, 8, dtype=torch.float64))


def test_the_joined_product_is_trained() -> None:
    source = module("return self.a(x).exp() + self.b(x).sum() - self.c(x).abs()", THREE, TALL)
    assert sites(source, "merge-sibling-products", training=True) != []


@pytest.mark.parametrize(
    "forward",
    [
        "return self.a(x), self.b(x), self.c(x)",  # each is a tensor of its own
        "return self.a(x).T, self.b(x).T, self.c(x)[None]",
        "return self.a(x).exp() + self.b(x + 1).sum() - self.c(x + 2).abs()",
        "return self.a(x).exp() - self.b(torch.cat([x, x])).sum() + self.c(x * 2)",
        "return self.a(x).view(-1) * self.b(x).sum() - self.c(x).view(-1)",  # rows lie apart
    ],
)  # fmt: skip
def test_layers_that_cannot_share_a_tensor_are_left_alone(forward: str) -> None:
    assert sites(module(forward, THREE, TALL), "merge-sibling-products") == []


def test_weights_that_take_longer_to_join_than_to_launch_are_left_alone() -> None:
    init = "self.a, self.b = nn.Linear(512, 512), nn.Linear(512, 512)"
    source = module("return self.a(x).exp() * self.b(x).exp()", init, "torch.randn(2, 512)")
    assert sites(source, "merge-sibling-products") == []


# --- diagonal-of-product -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("forward", "given"),
    [
        ("return torch.trace(x @ x.T) * 2", (600, 400)),
        ("return torch.diagonal(x @ x.T).exp()", (600, 400)),
        ("return torch.diag(torch.mm(x.T, x)) + 1", (600, 400)),
        ("return torch.diagonal(x @ x[:300].T)", (600, 400)),
        ("return torch.diagonal(x[:300] @ x.T) + 1", (600, 400)),
        (
            "return torch.diagonal(torch.bmm(x, x.transpose(1, 2)), dim1=-2, dim2=-1).sum(0)",
            (3, 600, 400),
        ),
        ("return torch.diagonal(x @ x[0].T, dim1=2, dim2=1)", (3, 600, 400)),
    ],
)
def test_the_diagonal_of_a_product_needs_no_product(forward: str, given: tuple[int, ...]) -> None:
    source = module(forward, inputs=f"torch.randn{given}")
    made = rewrite(source, "diagonal-of-product")
    lines = made.program.split("return self._forward_eager")[1].splitlines()
    assert not any(" @ " in line or "mm(" in line for line in lines if "#" not in line)
    assert_same(source, made, torch.randn(given, dtype=torch.float64))


@pytest.mark.parametrize(
    "forward",
    [
        "return torch.diagonal(x @ x.T, offset=1)",
        "y = x @ x.T\nreturn torch.trace(y) + y.sum()",
        "y = x @ x.T\nreturn torch.trace(y), y",
        "return torch.diagonal(x.bfloat16() @ x.bfloat16().T)",
        "return torch.diagonal((x @ x.T).exp())",
        "return torch.diagonal((x @ x.T).view(600, 600, 1))",
        "return torch.diagonal(torch.stack([x, x]) @ x.T)",  # of the first two dimensions
        "return torch.trace(x * 2)",
    ],
)
def test_other_diagonals_are_left_alone(forward: str) -> None:
    assert sites(module(forward, inputs="torch.randn(600, 600)"), "diagonal-of-product") == []


# --- total-by-rows -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "forward",
    [
        "return F.kl_div(F.log_softmax(x, 1), torch.softmax(x * 2, -1), reduction='batchmean')",
        "return F.kl_div(F.log_softmax(x / 2, 1), torch.relu(x), reduction='sum')",
        "p = torch.softmax(x, -1)\nreturn -(p * torch.log(p + 1e-9)).sum()",
        "return (torch.softmax(x, -1) * F.log_softmax(x, -1)).mean() * 3",
        "p = torch.softmax(x[None], -1)\nreturn (p ** 2).mean()",
    ],
)
def test_a_total_behind_a_softmax_is_taken_by_rows(forward: str) -> None:
    source = module(forward)
    made = rewrite(source, "total-by-rows")
    assert (
        "by_row" in made.program
        and "kl_div" not in made.program.split("return self._forward_eager")[1]
    )
    assert_same(source, made, X)
    weird = X.clone()
    weird[0, 0], weird[1, 1] = INF, -INF
    assert_same(source, made, weird)


@pytest.mark.parametrize(
    "forward",
    [
        "return torch.softmax(x, 0).sum()",
        "return torch.softmax(x, -1).sum(0)",
        "p = torch.softmax(x, -1)\nreturn p, (p * x).sum()",
        "p = torch.softmax(x, -1)\nreturn (p @ x.T).sum() + (p * x).sum()",
        "return torch.softmax(x.bfloat16(), -1).square().sum()",
        "return F.kl_div(F.log_softmax(x, 1), torch.softmax(x, -1), reduction='none')",
        "return F.kl_div(F.log_softmax(x, 1), F.log_softmax(x, -1), reduction='sum', "
        "log_target=True)",
        "return F.kl_div(F.log_softmax(x, 1), torch.softmax(x, -1)[:1], reduction='sum')",
        "return (x * 2).sum()",
        "return torch.softmax(x, -1).sum(dtype=torch.float64)",
    ],
)
def test_other_totals_are_left_alone(forward: str) -> None:
    assert sites(module(forward), "total-by-rows") == []


def test_a_total_that_is_trained_keeps_its_backward() -> None:
    source = module(
        "return torch.softmax(self.fc(x), -1).square().sum()", "self.fc = nn.Linear(8, 8)"
    )
    assert sites(source, "total-by-rows", training=True) == []
