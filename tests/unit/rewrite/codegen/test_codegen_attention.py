"""flash-attention: any mask is kept, and what is not quite attention is left alone."""

import pytest
from codegen_helpers import for_values, matches, program, rewritten

pytestmark = pytest.mark.torch
pytest.importorskip("torch")

# The interpreter knows no bf16x6.
SMALL = {"BLOCK_QUERIES": 16, "BLOCK_KEYS": 16, "precision": "tf32x3"}
CROSS = "torch.randn(2, 3, 17, 16), torch.randn(2, 3, 20, 16), torch.randn(2, 3, 20, 24)"
SELF = "torch.randn(2, 3, 20, 16), torch.randn(2, 3, 20, 16), torch.randn(2, 3, 20, 16)"
FLAT = "torch.randn(3, 17, 16), torch.randn(3, 20, 16), torch.randn(3, 20, 24)"
GROUPED = "torch.randn(2, 6, 17, 16), torch.randn(2, 2, 20, 16), torch.randn(2, 2, 20, 16)"
HIDDEN = "torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).triu(1)"
ROWS = "torch.arange(17)[:, None].expand(17, 20) % 5 == 0"
LATER = HIDDEN.replace("triu(1)", "triu(2)")
SEEN = HIDDEN.replace("triu(1)", "tril()")
SCORES = "q @ k.transpose(-2, -1) / 4.0"
WIDEN = "[:, :, None].expand(2, 2, 3, 20, 16).reshape(2, 6, 20, 16)"

CASES = [
    (f"torch.softmax({SCORES}, dim=-1) @ v", CROSS),
    (f"torch.softmax(({SCORES}).masked_fill({HIDDEN}, float('-inf')), dim=-1) @ v", SELF),
    (f"torch.softmax(({SCORES}).masked_fill({HIDDEN}, float('-inf')), dim=-1) @ v", CROSS),
    (f"torch.softmax(torch.where({SEEN}, {SCORES}, float('-inf')), -1) @ v", SELF),
    (f"torch.softmax(({SCORES}).masked_fill(~torch.ones(20, 20).bool().tril(3), float('-inf')), "
     f"-1) @ v",
     SELF),
    (f"torch.softmax({SCORES} + (1 - torch.tril(torch.ones(20, 20))) * -1e9, dim=-1) @ v", SELF),
    (f"torch.relu(({SCORES}).masked_fill({HIDDEN}, 0.0)) @ v", SELF),
    (f"torch.softmax(({SCORES}).masked_fill({HIDDEN.replace('1)', '-1)')}, float('-inf')), -1) @ v",
     SELF),
    ("torch.softmax(torch.bmm(q, k.transpose(1, 2)) * 0.3, dim=-1).bmm(v)", FLAT),
    ("F.dropout(torch.softmax(50 * torch.tanh(q @ k.mT / 50), -1), 0.5, False) @ v", CROSS),
    ("F.dropout(torch.softmax(q @ k.mT / 2, -1), 0.0, True) @ v", CROSS),
    ("torch.softmax(q @ k.repeat_interleave(3, dim=1).mT * 0.3, -1) @ "
     "v.repeat_interleave(3, 1)", GROUPED),
    (f"torch.softmax(q @ k{WIDEN}.transpose(-2, -1) * 0.3, dim=-1) @ v{WIDEN}", GROUPED),
    ("torch.softmax(q @ k.mT, dim=-1) @ v[:, :1]", SELF),
    ("F.scaled_dot_product_attention(q, k, v)", CROSS),
    ("F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.3).transpose(1, "
     "2).flatten(2)", CROSS),
]  # fmt: skip

MASKED = [
    ("torch.softmax(q @ k.transpose(-2, -1) * 0.3 + b, dim=-1) @ v", "torch.randn(3, 17, 20)"),
    ("torch.softmax((q @ k.mT * 0.3).masked_fill(b == 0, float('-inf')), -1) @ v",
     "(torch.rand(2, 1, 1, 20) > 0.5).float()"),
    ("torch.softmax((q @ k.mT).masked_fill(b[:, None, None, :], -1e9), "
     "-1) @ v", "torch.rand(2, 20) > 0.5"),
    # Every key of some queries is hidden: the mean of all values, or NaN, as hand-written attention
    # has it.
    ("torch.softmax((q @ k.mT).masked_fill(b, -1e9), -1) @ v", ROWS),
    ("torch.softmax((q @ k.mT).masked_fill(b, float('-inf')), -1) @ v", ROWS),
]  # fmt: skip


def agrees(interpreter, source) -> None:
    """As close to float64 as eager is, up to rounding; NaN at the same places."""
    found = interpreter.ask(before=source, after=for_values(source, "flash-attention", **SMALL))
    assert not found["fell_back"]
    assert all(found["same_kind"])
    assert all(
        ours <= 2 * eager + 3e-6 for ours, eager in zip(found["ours"], found["eager"], strict=True)
    )


@pytest.mark.parametrize("expression, inputs", CASES)
def test_attention_agrees_with_torch(interpreter, expression, inputs):
    agrees(interpreter, program(expression, inputs, arguments="q, k, v"))


@pytest.mark.parametrize("expression, mask", MASKED)
def test_masks_and_biases_of_any_shape_are_read(interpreter, expression, mask):
    agrees(interpreter, program(expression, f"{CROSS}, {mask}", arguments="q, k, v, b"))


@pytest.mark.parametrize("special", ["nan", "inf", "-inf"])
def test_special_scores_spread_as_in_torch(interpreter, special):
    spoiled = (
        f"torch.randn(2, 3, 20, 16).index_fill_(3, torch.tensor([2]), 1.0), "
        f"{SELF.split('), ', 1)[1]}"
    )
    at = "(torch.tensor([3]), torch.tensor([5]))"
    bias = f"torch.zeros(20, 20).index_put_({at}, torch.tensor(float('{special}')))"
    source = program(
        f"torch.softmax({SCORES} + b, -1) @ v", f"{spoiled}, {bias}", arguments="q, k, v, b"
    )
    agrees(interpreter, source)


def test_views_of_one_product_are_read_where_they_lie(interpreter):
    body = (
        "(lambda t: torch.softmax(t[0] @ t[1].transpose(-2, -1) * 0.25, -1) @ t[2])"
        "(x.view(2, 20, 3, 3, 16).permute(2, 0, 3, 1, 4))"
    )
    source = program(body, "torch.randn(2, 20, 144)", arguments="x")
    assert (
        ".contiguous()"
        not in rewritten(source, "flash-attention", **SMALL).split("_forward_eager")[0]
    )
    agrees(interpreter, source)


NEAR_MISSES = [
    "torch.softmax(q @ k.mT, dim=-2) @ v",  # over the queries
    "(torch.softmax(q @ k.mT, dim=-1) * b) @ v",  # a mask after softmax
    "torch.softmax(q @ k.mT, dim=-1).masked_fill(b == 0, 0.0) @ v",
    "F.dropout(torch.softmax(q @ k.mT, dim=-1), 0.1, True) @ v",
    "(lambda w: (w @ v, w))(torch.softmax(q @ k.mT, dim=-1))",  # the weights are returned
    "(lambda s: (torch.softmax(s, -1) @ v, s.amax()))(q @ k.mT)",  # the scores are read
    "torch.softmax(q @ k.mT, dim=-1, dtype=torch.float64).float() @ v",
    "(q @ k.mT * 0.1) @ v",  # nothing between the products: better reassociated
    "v.mT @ torch.softmax(q @ k.mT, dim=-1)",  # weights on the right
    "torch.softmax((q @ k.mT).half(), dim=-1).float() @ v",
]


@pytest.mark.parametrize("expression", NEAR_MISSES)
def test_what_is_not_quite_attention_is_left_alone(expression):
    source = program(expression, f"{SELF}, torch.rand(2, 3, 20, 20)", arguments="q, k, v, b")
    assert matches(source, "flash-attention")[1] == []


def test_a_mask_from_outside_is_read_though_it_may_be_causal():
    """A buffer or an argument may hold anything: no tile is skipped and the library's flag is not
    used."""
    source = program(
        f"torch.softmax(({SCORES}).masked_fill(b, float('-inf')), -1) @ v",
        f"{SELF}, torch.ones(20, 20).bool().triu(1)", arguments="q, k, v, b",
    )  # fmt: skip
    found = matches(source, "flash-attention")[1]
    assert [match.plain for match in found] == [False]
    assert "b_ptr" in rewritten(source, "flash-attention")
    assert "longest first" not in rewritten(source, "flash-attention")


@pytest.mark.parametrize("diagonal, skips", [(1, True), (2, True), (0, False), (-3, False)])
def test_only_triangles_that_leave_each_query_a_key_are_skipped(diagonal, skips):
    hidden = HIDDEN.replace("triu(1)", f"triu({diagonal})")
    expression = f"torch.softmax(({SCORES}).masked_fill({hidden}, float('-inf')), dim=-1) @ v"
    source = program(expression, SELF, arguments="q, k, v")
    assert ("longest first" in rewritten(source, "flash-attention")) == skips


def test_a_row_that_is_broadcast_over_queries_is_no_triangle(interpreter):
    hidden = "torch.ones(1, k.shape[2], dtype=torch.bool).triu(10)"
    expression = f"torch.softmax(({SCORES}).masked_fill({hidden}, float('-inf')), -1) @ v"
    source = program(expression, SELF, arguments="q, k, v")
    assert "longest first" not in rewritten(source, "flash-attention")
    agrees(interpreter, source)


def test_a_library_call_keeps_the_layout_of_its_result():
    source = program("F.scaled_dot_product_attention(q, k, v)", SELF, arguments="q, k, v")
    assert "out.transpose(1, 2)  # as the library lays it out" in rewritten(
        source, "flash-attention"
    )


def test_a_finite_fill_skips_nothing():
    source = program(
        f"torch.softmax(({SCORES}).masked_fill({HIDDEN}, -1e9), -1) @ v", SELF, arguments="q, k, v"
    )
    assert "longest first" not in rewritten(source, "flash-attention")


@pytest.mark.parametrize(
    "expression, offered",
    [
        (f"torch.softmax({SCORES}, dim=-1) @ v", True),
        (f"torch.softmax(({SCORES}).masked_fill({HIDDEN}, float('-inf')), dim=-1) @ v", True),
        (f"torch.softmax({SCORES} + 1.0, dim=-1) @ v", False),
        (f"torch.softmax(({SCORES}).masked_fill({LATER}, float('-inf')), dim=-1) @ v", False),
        (f"torch.relu({SCORES}) @ v", False),
        ("torch.softmax(1.0 / (q @ k.mT), dim=-1) @ v", False),
    ],
)  # fmt: skip
def test_the_library_is_called_only_where_it_means_the_same(interpreter, expression, offered):
    from kernel_lsp.records import Step

    source = program(expression, SELF, arguments="q, k, v")
    session, found = matches(source, "flash-attention")
    plain = [match for match in found if match.plain]
    assert bool(plain) == offered
    if offered:
        after = session.propose(
            [Step(skill="flash-attention", site=plain[0].label)]
        ).candidate.program
        assert "scaled_dot_product_attention(" in after
        result = interpreter.ask(before=source, after=after)
        assert not result["fell_back"]
        assert all(result["same_kind"])
        assert result["ours"][0] <= 2 * result["eager"][0] + 3e-6


def test_low_precision_and_wide_heads():
    half = ", ".join(["torch.randn(2, 3, 20, {}, dtype=torch.float16)"] * 3)
    for size, count in ((256, 1), (512, 0)):
        inputs = half.format(*[size] * 3)
        source = program(f"torch.softmax({SCORES}, -1) @ v", inputs, arguments="q, k, v")
        found = matches(source, "flash-attention")[1]
        assert len([match for match in found if not match.plain]) == count


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_attention_compiles_without_spills_for_heads_of_64(compiler, dtype):
    inputs = ", ".join([f"torch.randn(8, 12, 1024, 64, dtype=torch.{dtype})"] * 3)
    after = rewritten(
        program(f"torch.softmax({SCORES}, -1) @ v", inputs, arguments="q, k, v"), "flash-attention"
    )
    kernels = [kernel for kernel in compiler.ask(after=after) if kernel["arch"] == 90]
    assert kernels
    assert all(kernel["spill_bytes"] == 0 for kernel in kernels), kernels


PADDED = "torch.zeros(2, 1, 1, 20).index_fill(3, torch.tensor([3, 19]), float('-inf'))"
BLIND = "torch.randn(2, 1, 20, 20).index_fill(2, torch.tensor([4]), float('-inf'))"
INFINITE = "torch.zeros(2, 1, 1, 20).index_fill(3, torch.tensor([1]), float('inf'))"
UNKNOWN = "torch.zeros(2, 1, 1, 20).index_fill(3, torch.tensor([1]), float('nan'))"
BIASED = f"torch.softmax({SCORES} + b, dim=-1) @ v"


def _called(source: str) -> str:
    """The program with the library's attention in the place of what is written by hand."""
    from kernel_lsp.records import Step

    session, found = matches(source, "flash-attention")
    (plain,) = [match for match in found if match.plain]
    steps = [Step(skill="flash-attention", site=plain.label)]
    return session.propose(steps).candidate.program


@pytest.mark.parametrize("mask", [PADDED, BLIND, INFINITE, UNKNOWN, "torch.randn(20, 20)"])
def test_the_library_adds_a_mask_and_a_query_without_keys_stays_nan(interpreter, mask):
    source = program(BIASED, f"{SELF}, {mask}", arguments="q, k, v, b")
    after = _called(source)
    assert "scaled_dot_product_attention(" in after
    result = interpreter.ask(before=source, after=after)
    assert not result["fell_back"]
    assert all(result["same_kind"])
    assert result["ours"][0] <= 2 * result["eager"][0] + 3e-6


@pytest.mark.parametrize(
    "expression",
    [
        f"torch.softmax({SCORES} + b, dim=-1) @ v",
        "torch.softmax(q @ k.transpose(-2, -1) / 3 + b, -1, dtype=torch.float32).to(q.dtype) @ v",
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_gradients_through_a_masked_call_are_eager_s(trainer, expression, dtype):
    inputs = SELF.replace(")", f", dtype=torch.{dtype}, requires_grad=True)")
    mask = PADDED.replace("20).", f"20, dtype=torch.{dtype}).")
    source = program(expression, f"{inputs}, {mask}", arguments="q, k, v, b")
    found = trainer.ask(before=source, after=_called(source), twice=False)
    assert not found["fell_back"] and all(found["same_kind"])
    slack = 2**-6 if dtype == "bfloat16" else 3e-6
    for ours, eager in zip(found["ours"], found["eager"], strict=True):
        assert ours <= 2 * eager + slack


@pytest.mark.parametrize(
    "expression, mask",
    [
        (f"torch.softmax(({SCORES} + b) * 2, dim=-1) @ v", PADDED),  # scaled behind the mask
        (f"torch.softmax({SCORES} + b + b, dim=-1) @ v", PADDED),
        (f"torch.softmax({SCORES} - b, dim=-1) @ v", PADDED),
        (f"torch.softmax({SCORES} + b, dim=-1) @ v", "torch.zeros(20, 1)"),  # one for all keys
        (f"torch.softmax({SCORES} + b, dim=-1) @ v", "torch.zeros(20)"),  # no matrix
        (f"torch.softmax(({SCORES}).masked_fill(b, float('-inf')), -1) @ v", "torch.rand(20, 20) > 2"),
        (f"torch.softmax({SCORES} + b, dim=-1).nan_to_num(0.0) @ v", PADDED),
    ],
)  # fmt: skip
def test_other_masks_are_not_handed_to_the_library(expression, mask):
    source = program(expression, f"{SELF}, {mask}", arguments="q, k, v, b")
    assert [m for m in matches(source, "flash-attention")[1] if m.plain] == []


def test_a_mask_that_is_trained_is_not_handed_to_the_library():
    source = program(BIASED, f"{SELF}, torch.randn(20, 20, requires_grad=True)",
                     arguments="q, k, v, b")  # fmt: skip
    assert [m for m in matches(source, "flash-attention")[1] if m.plain] == []


def test_a_mask_of_another_type_would_be_rounded():
    inputs = SELF.replace(")", ", dtype=torch.bfloat16)")
    expression = f"torch.softmax(({SCORES}).float() + b, dim=-1).to(v.dtype) @ v"
    source = program(expression, f"{inputs}, torch.randn(20, 20)", arguments="q, k, v, b")
    found = matches(source, "flash-attention")[1]
    assert [match.plain for match in found] == [False]
