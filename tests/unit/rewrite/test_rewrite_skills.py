"""Each plain-PyTorch skill: fires where it is right, agrees with eager, stays away from near
misses."""

import re

import pytest
import torch
from rewrite_helpers import assert_same, instance, module, rewrite, sites

pytestmark = pytest.mark.torch

INF, NAN = float("inf"), float("nan")
X = torch.randn(6, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
WEIRD = X.clone()
WEIRD[0, 0], WEIRD[1, 1], WEIRD[2, 2] = INF, -INF, NAN

# --- reassociate-linear-reduction --------------------------------------------------------

LINEAR = "self.fc = nn.Linear(8, 4000)"
BIG = "torch.randn(640, 8)"


@pytest.mark.parametrize(
    "forward",
    [
        "return self.fc(x).sum(dim=1)",
        "return torch.sum(self.fc(x), dim=-1, keepdim=True)",
        "return self.fc(x).mean(1, keepdim=True)",
        "h = self.fc(x)\nh = h / 2.0\nreturn 3 * h.mean(dim=1)",
        "return self.fc(x).mean(dim=0)",
        "return (x @ self.fc.weight.T).sum(dim=1)",
        "return (x @ self.fc.weight.T).sum(dim=0)",
        "return torch.matmul(x, self.fc.weight.t()).mean(dim=1, keepdim=True)",
        "return self.fc(x).sum()",
        "return self.fc(x).mean((0, 1), keepdim=True)",
        "return (x @ self.fc.weight.T + self.fc.bias).sum(dim=1, keepdim=True)",
        "return (self.fc.bias + F.linear(x, self.fc.weight)).mean(dim=0)",
        "return (x @ self.fc.weight.T + self.fc.bias).mean(0, keepdim=True)",
        "return torch.addmm(self.fc.bias, x, self.fc.weight.t()).neg().sum(1)",
        "return (-(x[:, None] @ self.fc.weight.T) / 2).mean((0, 2))",
        "return (x[None] @ self.fc.weight.T[None]).sum(dim=(1, -1))",
    ],
)
def test_a_reduced_product_becomes_a_smaller_one(forward: str) -> None:
    source = module(forward, LINEAR, BIG)
    made = rewrite(source, "reassociate-linear-reduction")
    assert_same(source, made, torch.randn(640, 8, dtype=torch.float64))


@pytest.mark.parametrize(
    "forward",
    [
        "return F.relu(self.fc(x)).sum(dim=1)",  # a nonlinearity in between
        "return self.fc(x).abs().mean(dim=1)",
        "return self.fc(x).amax(dim=1)",  # no linear reduction
        "return self.fc(x).sum(dim=0)",  # the bias would count once per row
        "h = self.fc(x)\nreturn h.sum(dim=1), h",  # the product is used twice
        "h = self.fc(x)\nreturn (h + x[:, :1]).sum(dim=1)",  # a tensor is added
        "return self.fc(x).sum(dim=1, dtype=torch.float64)",
        "return (x @ self.fc.weight.T + self.fc.bias).sum(dim=0)",
        "return torch.add(x @ self.fc.weight.T, self.fc.bias, alpha=2).sum(dim=1)",
        "return (x @ self.fc.weight.T + x.t().repeat(1, 7)[0, 0]).sum(dim=1)",  # of another shape
        "return self.fc(x).sum(dim=(0, 1), dtype=torch.float64)",
    ],
)
def test_what_is_not_linear_down_to_the_reduction_is_left_alone(forward: str) -> None:
    assert sites(module(forward, LINEAR, BIG), "reassociate-linear-reduction") == []


def test_half_precision_weights_are_not_folded() -> None:
    source = module(
        "return self.fc(x).sum(dim=1)",
        "self.fc = nn.Linear(8, 4000).half()",
        "torch.randn(640, 8).half()",
    )
    assert sites(source, "reassociate-linear-reduction") == []


# --- reassociate-matmul-chain ------------------------------------------------------------


@pytest.mark.parametrize(
    "forward",
    [
        "return (self.a @ self.b) @ x", "return x.T @ (self.b.T @ self.a.T)",
        "return x[:, 0] @ (self.a @ self.b)", "return (self.a @ self.b).mv(x[:, 0])",
    ],
)  # fmt: skip
def test_a_chain_is_multiplied_in_the_cheaper_order(forward: str) -> None:
    init = "self.a = nn.Parameter(torch.randn(64, 64))\nself.b = nn.Parameter(torch.randn(64, 64))"
    source = module(forward, init, "torch.randn(64, 2)")
    assert_same(
        source, rewrite(source, "reassociate-matmul-chain"), torch.randn(64, 2, dtype=torch.float64)
    )


def test_a_chain_in_the_cheaper_order_already_is_left_alone() -> None:
    init = "self.a = nn.Parameter(torch.randn(64, 64))"
    source = module("return self.a @ (self.a @ x)", init, "torch.randn(64, 2)")
    assert sites(source, "reassociate-matmul-chain") == []


# --- max-without-indices -------------------------------------------------------------------


@pytest.mark.parametrize(
    "call",
    [
        "torch.max(x, dim=1).values", "torch.max(x, 0)[0]", "x.min(dim=-1, keepdim=True)[0]",
        "x.min(1).values * x.max(dim=1).values",
    ],
)  # fmt: skip
def test_a_maximum_needs_no_indices(call: str) -> None:
    source = module(f"return {call}")
    made = rewrite(source, "max-without-indices")
    assert_same(source, made, X, exact=True)
    assert_same(source, made, WEIRD, exact=True)


def test_values_that_are_read_twice_are_computed_once() -> None:
    source = module("pair = torch.max(x, dim=1)\nreturn pair.values + pair[0].exp()")
    made = rewrite(source, "max-without-indices")
    assert made.program.split("def forward")[1].count("amax(") == 1
    assert_same(source, made, X, exact=True)


@pytest.mark.parametrize(
    "forward",
    [
        "return tuple(torch.max(x, dim=1))",
        "return x.max(dim=1).indices",
        "values, where = x.max(dim=1)\nreturn values + where",
        "return torch.max(x)",
        "return torch.max(x, x.roll(1, 0))",
        "return x.long().max(dim=1).values",
        "return x.sort(dim=1).values",
        "return x.median(dim=1).values",
    ],
)
def test_a_maximum_whose_indices_count_is_left_alone(forward: str) -> None:
    assert sites(module(forward), "max-without-indices") == []


def test_a_maximum_that_is_trained_through_keeps_its_indices() -> None:
    """Of two that tie, max gives the whole gradient to one, and amax half of it to each."""
    source = module("return torch.max(self.fc(x), dim=1).values", "self.fc = nn.Linear(8, 4)")
    assert sites(source, "max-without-indices", training=True) == []


SHIFTED = [
    "e = torch.exp(h - h.max(dim=1, keepdim=True).values)\nreturn e / e.sum(1, keepdim=True)",
    "e = torch.exp(h - h.max(1)[0].unsqueeze(1))\nreturn e / e.sum(1).unsqueeze(-1)",
    "z = h - h.max(-1, keepdim=True)[0]\nreturn z - z.exp().sum(-1, keepdim=True).log()",
    "return h / h.max(-1, keepdim=True)[0].detach()",
]


@pytest.mark.parametrize("forward", SHIFTED)
def test_the_maximum_of_a_softmax_needs_no_gradient(forward: str) -> None:
    """With ties, so that another share among them would show."""
    source = module(f"h = self.fc(x).relu()\n{forward}", "self.fc = nn.Linear(8, 6)")
    made = rewrite(source, "max-without-indices", training=True)
    assert_same(source, made, X[:, :8], training=True)
    slopes = []
    for text in (source, made.program.replace("torch.float32", "torch.float64")):
        model, x = instance(text, True, torch.float64), X[:, :8].double() - 1.5
        (model(x) * torch.arange(6.0)).square().sum().backward()
        slopes.append([parameter.grad for parameter in model.parameters()])
    torch.testing.assert_close(*slopes)


@pytest.mark.parametrize(
    "forward",
    [
        "e = torch.exp(h - h.max(1, keepdim=True)[0])\nreturn e / (e.sum(1, keepdim=True) + 1e-6)",
        "e = torch.exp(h - h.max(1, keepdim=True)[0])\nreturn e / e.sum(0, keepdim=True)",
        # another row's maximum
        "e = torch.exp(h - h.max(1)[0])\nreturn e / e.sum(1, keepdim=True)",
        "e = torch.exp(h - h.max(1, keepdim=True)[0])\nreturn e / e.sum(1)",
        "e = torch.exp(x - h.max(1, keepdim=True)[0])\nreturn e / e.sum(1, keepdim=True)",
        "e = torch.exp(h - h.max(1, keepdim=True)[0])\nreturn e / e.sum(1, keepdim=True) + e",
        "z = h - h.max(1, keepdim=True)[0]\nreturn z.exp() / z.exp().sum(1, keepdim=True) + z",
        "z = h - h.max(1, keepdim=True)[0]\nreturn z - z.exp().mean(1, keepdim=True).log()",
        "m = h.max(1, keepdim=True)[0]\nreturn (h - m) - (h - m).exp().sum(1, "
        "keepdim=True).log() + m",
        "m = h.max(1, keepdim=True)[0]\nreturn h - m.detach() + m",
        "e = torch.exp(h - h.max(1, keepdim=True)[0])\ns = e.sum(1, keepdim=True)\nreturn e / s, s",
        "e = torch.exp(h - h.max(1, keepdim=True)[0])\ns = e.sum(1).unsqueeze(1)\nreturn e / s, s",
        "m = h.max(1)[0].unsqueeze(1)\ne = torch.exp(h - m)\nreturn e / e.sum(1, keepdim=True), m",
    ],
)
def test_a_maximum_that_does_more_than_shift_keeps_its_indices(forward: str) -> None:
    source = module(f"h = self.fc(x)\n{forward}", "self.fc = nn.Linear(8, 8)", "torch.randn(8, 8)")
    assert sites(source, "max-without-indices", training=True) == []


# --- common-subexpression ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("forward", "calls"),
    [
        (
            "return torch.tanh(x * 2 + 1) * torch.sigmoid(x * 2 + 1)",
            {"* 2": 1, "tanh(": 1, "sigmoid(": 1},
        ),
        (
            "return (x - x.mean(1, keepdim=True)) / (x - x.mean(1, keepdim=True)).std()",
            {"mean(": 1},
        ),
        ("a = x.max(dim=1).values\nb = x.max(dim=1).values\nreturn a * 2 + b.exp()", {"max(": 1}),
        ("return self.fc(x).relu() + self.fc(x).exp()", {"linear(": 1}),
        ("return torch.softmax(x, 1) @ torch.softmax(x, 1).T", {"softmax(": 1}),
    ],
)
def test_what_is_written_twice_is_computed_once(forward: str, calls: dict[str, int]) -> None:
    source = module(forward, "self.fc = nn.Linear(8, 8)")
    made = rewrite(source, "common-subexpression")
    text = made.program.split("def forward")[1]
    text = text.replace("self.fc(", "linear(").replace("torch.nn.functional.linear(", "linear(")
    assert {word: text.count(word) for word in calls} == calls
    assert_same(source, made, X, exact=True)


def test_two_results_that_were_tensors_of_their_own_stay_that() -> None:
    source = module("return x * 2, x * 2")
    made = rewrite(source, "common-subexpression")
    assert_same(source, made, X, exact=True)
    space: dict[str, object] = {}
    exec(made.program, space)
    one, other = space["Model"]()(torch.ones(6, 8))  # type: ignore[operator]
    one.add_(1)
    assert float(other.sum()) == 96.0


@pytest.mark.parametrize(
    "forward",
    [
        "return x * 2 + x * 3",
        "return x * 2 + x * 2.0",  # another type of number: another result for whole numbers
        "return x.sum(dim=1) + x.sum(dim=0)[:6]",
        "return F.dropout(x, 0.5) + F.dropout(x, 0.5)",
        "return torch.rand_like(x) + torch.rand_like(x)",
        "return (x * 2).exponential_() + (x * 2).exponential_()",
        "y = x * 1\na = y * 2\ny.add_(1)\nreturn a + y * 2",  # changed in between
        "return x[:, :4] + x[:, :4]",  # views cost nothing
        "return self.fc(x) + self.other(x)",
    ],
)
def test_what_only_looks_alike_is_computed_twice(forward: str) -> None:
    source = module(forward, "self.fc = nn.Linear(8, 8)\nself.other = nn.Linear(8, 8)")
    assert sites(source, "common-subexpression") == []


def test_statistics_that_change_in_between_are_not_reused() -> None:
    source = module("return self.norm(x * 2) + (x * 2).exp()", "self.norm = nn.BatchNorm1d(8)")
    assert sites(source, "common-subexpression", training=True) == []
    assert sites(source, "common-subexpression", training=False) != []


# --- einsum-as-matmul ----------------------------------------------------------------------

HEADS = "q, k, v = x, x.flip(1) * 0.5, x + 1\n"
HEADS4 = "torch.randn(2, 3, 5, 4)"


@pytest.mark.parametrize(
    ("scores", "out"),
    [
        ("bhid,bhjd->bhij", "bhij,bhjd->bhid"),
        ("bihd,bjhd->bhij", "bhij,bjhd->bihd"),
        ("bhid, bhjd -> bhij", "bhij, bhjd -> bihd"),  # the heads are moved inside
        ("bhid,bhjd->hbij", "hbij,bhjd->bhid"),  # batch labels in another order
    ],
)
def test_attention_in_einsums_is_attention_in_products(scores: str, out: str) -> None:
    forward = (
        f"{HEADS}s = torch.einsum('{scores}', q, k) / 2\n"
        f"return torch.einsum('{out}', torch.softmax(s + 0.1, dim=-1), v)"
    )
    source = module(forward, inputs=HEADS4)
    made = rewrite(source, "einsum-as-matmul")
    assert "einsum(" not in made.program.split("def forward")[1].replace("# This is einsum(", "")
    values = torch.randn(
        2, 3, 5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(2)
    )
    assert_same(source, made, values)


def test_attention_of_rank_three_in_einsums() -> None:
    forward = (
        "s = torch.einsum('bid,bjd->bij', x, x)\nreturn torch.einsum('bij,bjd->bid', "
        "s.softmax(-1), x)"
    )
    source = module(forward, inputs="torch.randn(2, 5, 4)")
    made = rewrite(source, "einsum-as-matmul")
    assert_same(source, made, torch.randn(2, 5, 4, dtype=torch.float64))


@pytest.mark.parametrize(
    "forward",
    [
        "return torch.einsum('bhid,bhjd->bhij', x, x)",  # no attention
        "s = torch.einsum('bhid,bhjd->bhij', x, x)\nreturn torch.einsum('bhij,bhjd->bhid', "
        "s.softmax(-2), x)",
        "s = torch.einsum('bhid,bhjd->bhij', x, x)\nw = s.softmax(-1)\n"
        "return torch.einsum('bhij,bhjd->bhid', w, x), w",  # the weights are returned
        "s = torch.einsum('bhid,bgjd->bhij', x, x)\nreturn torch.einsum('bhij,bhjd->bhid', "
        "s.softmax(-1), x)",
        "s = torch.einsum('bhid,bhjd->bhij', x, x)\nreturn torch.einsum('bhij,bhjd->bid', "
        "s.softmax(-1), x)",
        "s = torch.einsum('...id,...jd->...ij', x, x)\n"
        "return torch.einsum('...ij,...jd->...id', s.softmax(-1), x)",
        "s = torch.einsum('bhid,bhjd->bhij', x, x)\nreturn torch.einsum('bhij,bhjd->bhid', "
        "s.sigmoid(), x)",
        "return torch.softmax(x.min(dim=1).values, dim=-1)",
        "a, b = x.chunk(2, -1)\nreturn torch.einsum('bhij,bhjd->bhid', a.softmax(-1), x[:, :, :2])",
    ],
)
def test_other_einsums_stay(forward: str) -> None:
    assert sites(module(forward, inputs=HEADS4), "einsum-as-matmul") == []


# --- singleton-reduction -----------------------------------------------------------------


@pytest.mark.parametrize(
    "call",
    [
        "torch.sum(y, dim=1, keepdim=True)", "y.mean(dim=1)", "torch.max(y, dim=1)[0]",
        "torch.min(y, 1, keepdim=True)[0]", "y.amax(dim=1)", "torch.logsumexp(y, dim=1, "
                                                             "keepdim=True)",
        "y.prod(1)",
        "torch.softmax(y, dim=1)", "F.log_softmax(y, dim=1)",
    ],
)  # fmt: skip
def test_reductions_over_one_element_keep_infinity_and_nan(call: str) -> None:
    source = module(f"y = x[:, :1]\nreturn {call}")
    assert_same(source, rewrite(source, "singleton-reduction"), WEIRD, exact=True)
    swapped = WEIRD.roll(-1, 1).roll(1, 0)  # -inf and NaN reach the first column as well
    assert_same(source, rewrite(source, "singleton-reduction"), swapped, exact=True)


def test_softmax_over_one_finite_element_is_one() -> None:
    source = module("y = torch.sigmoid(torch.nan_to_num(x[:, :1]))\nreturn torch.softmax(y, dim=1)")
    made = rewrite(source, "singleton-reduction", parameters={"nonfinite": "ignore"})
    assert "torch.softmax(" not in made.program.split("def forward")[1]
    assert_same(source, made, X, exact=True)


@pytest.mark.parametrize(
    "forward",
    [
        "return x.sum(dim=1)",  # 8 elements
        "return x[:, :1].sum(dim=0)",  # the other dimension
        "return x[:, :1].std(dim=1)",  # NaN over one element
        "return tuple(torch.max(x[:, :1], dim=1))",  # the indices are used
        "return x[:, :1].sum(dim=(0, 1))",
        "return (x[:, :1] > 0).sum(dim=1)",  # another dtype
        "return x[:, :1].sum(dim=1, dtype=torch.float64)",
    ],
)
def test_other_reductions_are_left_alone(forward: str) -> None:
    assert sites(module(forward), "singleton-reduction") == []


# --- value-range-collapse ----------------------------------------------------------------


@pytest.mark.parametrize(
    "forward",
    [
        "return F.relu(F.relu(x))", "return F.relu(torch.sigmoid(x))",
        "return F.relu(F.leaky_relu(x, 0.1))",
        "return F.relu(F.elu(x, 0.5))", "return F.elu(torch.sigmoid(x))",
        "return torch.floor(torch.ceil(x))",
        "return torch.clamp(torch.tanh(x), -1.0, 1.0)", "return F.hardtanh(torch.sigmoid(x), "
                                                        "0.0, 1.0)",
        "return torch.clamp(torch.clamp(x, -1.0, 0.5), "
        "0.0, 2.0)", "return F.relu(torch.softmax(x, dim=1))",
        "return torch.abs(torch.sigmoid(x)).mean(dim=1)", "return F.leaky_relu(torch.exp(x), 0.2)",
        "return torch.clamp(x, max=0.25).clamp(min=-0.5)", "return F.relu6(F.hardsigmoid(x))",
    ],
)  # fmt: skip
def test_ops_that_change_no_value_are_dropped_and_nan_survives(forward: str) -> None:
    source = module(forward)
    assert_same(source, rewrite(source, "value-range-collapse"), WEIRD, exact=True)


def test_clamps_that_leave_one_value_keep_nan() -> None:
    source = module("return torch.clamp(torch.clamp(x, max=0.0), 0.0, 1.0)")
    assert_same(source, rewrite(source, "value-range-collapse"), WEIRD, exact=True)
    assert sites(module("return F.relu(-x.abs())"), "value-range-collapse") == []


@pytest.mark.parametrize(
    "forward",
    [
        "return F.relu(x)",  # unknown sign
        "return F.relu(torch.tanh(x))",
        "return F.relu(F.gelu(x))",
        "return torch.clamp(torch.sigmoid(x), 0.1, 1.0)",
        "return F.relu(self.p)",  # parameters may change
        "return F.relu(F.leaky_relu(x, -0.1))",
        "return F.relu(F.selu(x))",
        "return F.relu(F.elu(x, -0.5))",
        "return F.selu(torch.sigmoid(x))",
        "return torch.floor(torch.sigmoid(x) * 3.0)",
        "y = F.leaky_relu(x, 0.1)\nreturn F.relu(y), y",
        "return torch.abs((x > 0).int() - 1)",
    ],
)
def test_ops_that_can_change_a_value_stay(forward: str) -> None:
    found = sites(module(forward, "self.p = nn.Parameter(torch.rand(8))"), "value-range-collapse")
    assert found == []


# --- diagonal-matmul ---------------------------------------------------------------------


@pytest.mark.parametrize("forward", ["return torch.diag(x[0]) @ x.T", "return x @ torch.diag(x[0])",
                                     "return torch.matmul(torch.diag_embed(x[1]), x.T)"])  # fmt: skip
def test_a_product_with_a_diagonal_matrix_is_a_scaling(forward: str) -> None:
    source = module(forward)
    assert_same(source, rewrite(source, "diagonal-matmul"), X)


@pytest.mark.parametrize(
    "forward",
    [
        "return torch.diag(x[0], 1) @ torch.ones(9, 2)",  # not the main diagonal
        "return torch.diag(x) @ x[:6]",  # the diagonal *of* a matrix: a vector
        "return torch.diag(x[0]) @ x[0]",
        "return torch.diag(x[0]) + x[:1]",
    ],
)
def test_other_uses_of_diag_are_left_alone(forward: str) -> None:
    assert sites(module(forward), "diagonal-matmul") == []


# --- hoist-invariant-tensors -------------------------------------------------------------


def test_a_constant_mask_is_built_once_and_state_dict_stays() -> None:
    source = module(
        "mask = torch.ones(8, 8).tril() > 0\nreturn x.unsqueeze(1).masked_fill(mask, -1.0)"
    )
    made = rewrite(source, "hoist-invariant-tensors")
    assert "@functools.cache" in made.program and "register_buffer" not in made.program
    assert_same(source, made, X, exact=True)


@pytest.mark.parametrize(
    "forward",
    [
        "return x + torch.rand(8)",  # random
        "return torch.arange(8)",  # returned
        "return torch.arange(8).view(2, 4)",  # a view of it is returned
        "return x + torch.zeros_like(x)",  # built from an input
    ],
)
def test_tensors_that_may_differ_or_leave_are_not_cached(forward: str) -> None:
    assert sites(module(forward), "hoist-invariant-tensors") == []


@pytest.mark.parametrize(
    ("constant", "pinned"),
    [
        ("torch.arange(x.shape[0])[:, None] * 2", True),
        ("torch.zeros(len(x), 8)", True),
        ("torch.arange(8)", False),
    ],
)
def test_a_constant_as_long_as_the_batch_is_for_this_batch_alone(
    constant: str, pinned: bool
) -> None:
    source = module(f"return x * ({constant} + 1)")
    made = rewrite(source, "hoist-invariant-tensors")
    assert ("x.shape == (6, 8)" in made.program) == pinned
    before, after = (instance(text, None, torch.float32) for text in (source, made.program))
    for batch in (1, 6, 9):
        x = torch.randn(batch, 8)
        assert torch.equal(before(x), after(x))


def test_two_constants_that_a_helper_makes_keep_a_name_each() -> None:
    forward = "def hidden(n):\n    return torch.ones(n, n).triu() > 0\n"
    source = module(
        forward + "return x.masked_fill(hidden(8)[0], 1.0)[:, :4].masked_fill(hidden(4)[1], 2.0)"
    )
    made = rewrite(source, "hoist-invariant-tensors")
    names = re.findall(r"def (\w+_once\w*)\(", made.program)
    assert len(names) == len(set(names)) == 2
    assert_same(source, made, X, exact=True)


def test_what_is_drawn_into_a_constant_is_drawn_on_each_call() -> None:
    source = module("return x + torch.zeros(8).uniform_()")
    assert sites(source, "hoist-invariant-tensors") == ["zeros"]


# --- fold-batchnorm-eval -----------------------------------------------------------------

CONV = "self.conv = nn.Conv2d(3, 5, 3, bias={bias})\nself.bn = nn.BatchNorm2d(5, affine={affine})"
IMAGES = "torch.randn(2, 3, 40, 40)"


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("affine", [True, False])
def test_batch_norm_folds_into_the_convolution_in_eval_mode(bias: bool, affine: bool) -> None:
    source = module("return self.bn(self.conv(x))", CONV.format(bias=bias, affine=affine), IMAGES)
    made = rewrite(source, "fold-batchnorm-eval", training=False)
    assert "not bn.training" in made.program
    assert_same(source, made, torch.randn(2, 3, 40, 40, dtype=torch.float64), training=False)


def test_batch_norm_in_train_mode_or_behind_something_else_stays() -> None:
    init = CONV.format(bias=True, affine=True)
    assert (
        sites(
            module("return self.bn(self.conv(x))", init, IMAGES),
            "fold-batchnorm-eval",
            training=True,
        )
        == []
    )
    twice = "y = self.conv(x)\nreturn self.bn(y) + y"
    assert sites(module(twice, init, IMAGES), "fold-batchnorm-eval", training=False) == []
    between = module("return self.bn(torch.relu(self.conv(x)))", init, IMAGES)
    assert sites(between, "fold-batchnorm-eval", training=False) == []


# --- remove-dead-work --------------------------------------------------------------------


def test_unused_results_and_eval_dropout_go() -> None:
    source = module("unused = x.exp()\nreturn F.dropout(x, 0.5, self.training) * 2")
    made = rewrite(source, "remove-dead-work", training=False)
    fast = made.program.split("def forward")[1]
    assert "exp" not in fast and "dropout" not in fast and "not self.training" in fast
    assert_same(source, made, X, training=False, exact=True)


@pytest.mark.parametrize(
    "init, checked",
    [
        ("self.drop = nn.Dropout(0.0)", "drop.p == 0.0"),
        ("self.drop = nn.Dropout(p=0)", "drop.p == 0"),
        ("self.drop = lambda x: F.dropout(x, 0.0, True)", "self.drop"),
    ],
)
def test_a_dropout_that_drops_nothing_goes_in_train_mode_too(init: str, checked: str) -> None:
    source = module("return self.drop(torch.relu(x)) * 2", init)
    made = rewrite(source, "remove-dead-work", training=True)
    assert checked in made.program.split("def forward")[1]
    assert_same(source, made, X, training=True, exact=True)


def test_effects_stay_even_when_unused() -> None:
    random = module("unused = F.dropout(x, 0.5)\nreturn x * 2")
    assert sites(random, "remove-dead-work", training=True) == []
    statistics = module("unused = self.bn(x)\nreturn x * 2", "self.bn = nn.BatchNorm1d(8)")
    assert sites(statistics, "remove-dead-work", training=True) == []


# --- channels-last-conv ------------------------------------------------------------------


def test_convolutions_run_in_channels_last() -> None:
    init = "self.conv = nn.Conv2d(16, 32, 3)"
    source = module("return torch.relu(self.conv(x))", init, "torch.randn(2, 16, 24, 24)")
    made = rewrite(source, "channels-last-conv")
    assert_same(source, made, torch.randn(2, 16, 24, 24, dtype=torch.float64))


@pytest.mark.parametrize(
    "init, forward",
    [
        ("self.conv = nn.Conv2d(16, 4, 3)", "return self.conv(x)"),
        ("self.conv = nn.Conv2d(16, 16, 3, groups=16)", "return self.conv(x)"),
        ("self.conv = nn.Conv2d(16, 32, 3)", "return self.conv(x).view(2, -1)"),
        (
            "self.conv = nn.Conv2d(16, 32, 3)",
            "return self.conv(x.contiguous(memory_format=torch.channels_last))",
        ),
    ],
)
def test_convolutions_that_would_lose_or_break_are_left_alone(init: str, forward: str) -> None:
    assert sites(module(forward, init, "torch.randn(2, 16, 24, 24)"), "channels-last-conv") == []


# --- avgpool-into-conv -------------------------------------------------------------------


@pytest.mark.parametrize(
    "conv, pool",
    [
        ("nn.Conv2d(3, 5, 3, padding=1)", "F.avg_pool2d(y, 2)"),
        ("nn.Conv2d(4, 6, (3, 5), bias=False, groups=2)", "F.avg_pool2d(y, (2, 3), stride=(2, 3))"),
        ("nn.Conv2d(3, 5, 3)", "F.avg_pool2d(y, 2, stride=3)"),
    ],
)
def test_average_pooling_merges_into_the_convolution(conv: str, pool: str) -> None:
    channels = 4 if "groups" in conv else 3
    source = module(
        f"y = self.conv(x)\nreturn {pool}",
        f"self.conv = {conv}",
        f"torch.randn(8, {channels}, 65, 64)",
    )
    images = torch.randn(8, channels, 65, 64, dtype=torch.float64)
    assert_same(source, rewrite(source, "avgpool-into-conv"), images)


@pytest.mark.parametrize(
    "conv, pool",
    [
        ("nn.Conv2d(3, 5, 3)", "F.avg_pool2d(F.relu(y), 2)"),
        ("nn.Conv2d(3, 5, 3, stride=2)", "F.avg_pool2d(y, 2)"),
        ("nn.Conv2d(3, 5, 3, dilation=2)", "F.avg_pool2d(y, 2)"),
        ("nn.Conv2d(3, 5, 3)", "F.avg_pool2d(y, 2, padding=1)"),
        ("nn.Conv2d(3, 5, 3)", "F.avg_pool2d(y, 3, ceil_mode=True)"),  # 62 ends within a window
        ("nn.Conv2d(3, 5, 3)", "F.avg_pool2d(y, 3, stride=1)"),  # more operations, not fewer
        ("nn.Conv2d(3, 5, 3)", "F.avg_pool2d(y, 2) + y.mean()"),
        ("nn.Conv2d(3, 5, 3)", "F.max_pool2d(y, 2)"),
    ],
)
def test_pooling_that_is_not_such_a_mean_is_left_alone(conv: str, pool: str) -> None:
    source = module(
        f"y = self.conv(x)\nreturn {pool}", f"self.conv = {conv}", "torch.randn(8, 3, 64, 64)"
    )
    assert sites(source, "avgpool-into-conv") == []
