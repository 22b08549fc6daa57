"""fused-pool: windows of every kind against torch, neighbors on both sides, and what must be left
alone."""

import pytest
from codegen_helpers import for_values, matches, program, rewritten
from example_helpers import examples
from hypothesis import given, settings
from hypothesis import strategies as st

pytestmark = pytest.mark.torch
pytest.importorskip("torch")

IMAGE = "torch.randn(2, 3, 17, 19)"
LINE = "torch.randn(2, 3, 67)"
EVEN = "torch.randn(2, 3, 16, 15)"
CHANNEL = "torch.randn(3, 1, 1)"
CASES = [
    ("F.max_pool2d(x, 2)", IMAGE),
    ("F.max_pool2d(x, 3, stride=2, padding=1)", IMAGE),
    ("F.max_pool2d(x, (3, 2), stride=(1, 2), padding=(1, 0))", IMAGE),
    ("F.max_pool2d(x, 3, stride=2, padding=1, dilation=2, ceil_mode=True)", IMAGE),
    ("F.max_pool1d(x, 4)", LINE),
    ("F.max_pool1d(x, 5, stride=3, padding=2, ceil_mode=True)", LINE),
    ("F.max_pool3d(x, 2)", "torch.randn(2, 3, 6, 7, 8)"),
    ("F.avg_pool2d(x, 3, stride=1, padding=1, count_include_pad=False)", IMAGE),
    ("F.avg_pool2d(x, 3, stride=2, padding=1, ceil_mode=True)", IMAGE),
    ("F.avg_pool2d(x, 3, stride=2, padding=1, ceil_mode=True, count_include_pad=False)", IMAGE),
    ("F.avg_pool1d(x, 8, stride=4, padding=2)", LINE),
    ("F.avg_pool3d(x, 3, stride=2)", "torch.randn(2, 3, 9, 7, 8)"),
    ("F.avg_pool2d(x, (3, 2), divisor_override=5)", IMAGE),
    ("F.adaptive_max_pool2d(x, 1)", IMAGE),
    ("F.adaptive_avg_pool2d(x, (4, 3))", EVEN),
    ("F.adaptive_max_pool2d(x, (4, 3))", EVEN),
    ("F.max_pool2d(x, 2)", "torch.randn(3, 17, 19)"),
    ("F.avg_pool2d(x.half(), 2)", IMAGE),
]
FUSED = [
    ("torch.tanh(F.max_pool2d(torch.relu(x * y), 2) + z)", f"{IMAGE}, {CHANNEL}, {CHANNEL}"),
    ("F.avg_pool2d(torch.sigmoid(x) * y, 2) * z", f"{IMAGE}, {IMAGE}, {CHANNEL}"),
    ("F.max_pool2d(F.leaky_relu(x + y, 0.1), 3, "
     "3, 1) / z", f"{IMAGE}, {CHANNEL}, torch.rand(1) + 1"),
    # exp(0) is 1, not 0: the padding must not pass through what comes before the pool.
    ("F.avg_pool2d(torch.exp(x), 2, padding=1) + y + z", f"{IMAGE}, torch.randn(9, 10), "
                                                         f"torch.randn(1)"),
    ("F.max_pool2d(torch.exp(x), 2, padding=1) - y * z", f"{IMAGE}, torch.randn(9, 10), "
                                                         f"torch.randn(1)"),
]  # fmt: skip


def agrees(interpreter, source) -> None:
    """As close to float64 as eager is, up to rounding; NaN and infinities at the same places."""
    found = interpreter.ask(before=source, after=for_values(source, "fused-pool"))
    assert not found["fell_back"]
    assert all(found["same_kind"])
    assert all(
        ours <= 2 * eager + 3e-6 for ours, eager in zip(found["ours"], found["eager"], strict=True)
    )


@pytest.mark.parametrize("expression, inputs", CASES)
def test_pools_agree_with_torch(interpreter, expression, inputs):
    agrees(interpreter, program(expression, inputs, arguments="x"))


@pytest.mark.parametrize("expression, inputs", FUSED)
def test_pools_with_neighbors_agree_with_torch(interpreter, expression, inputs):
    agrees(interpreter, program(expression, inputs, arguments="x, y, z"))


def test_nan_wins_and_padding_never_does(interpreter):
    inputs = (
        "torch.full((1, 2, 8, 8), float('-inf')).index_fill_(2, torch.tensor([3]), float('nan'))"
        ".index_fill_(3, torch.tensor([0]), -5.0)"
    )
    for pool in ("F.max_pool2d(x, 2)", "F.max_pool2d(x, 3, 2, 1)", "F.adaptive_max_pool2d(x, 1)"):
        agrees(interpreter, program(pool, inputs, arguments="x"))


@settings(max_examples=examples(8), deadline=None)
@given(
    size=st.tuples(st.integers(4, 12), st.integers(4, 12)),
    kernel=st.integers(1, 4),
    stride=st.integers(1, 4),
    ceil=st.booleans(),
    data=st.data(),
)
def test_any_window_gives_the_shape_and_values_of_torch(
    interpreter, size, kernel, stride, ceil, data
):
    padding = data.draw(st.integers(0, kernel // 2))
    include = data.draw(st.booleans())
    inputs = f"torch.randn(2, 2, {size[0]}, {size[1]})"
    given_ = f"{kernel}, {stride}, {padding}"
    for pool in (
        f"F.max_pool2d(x, {given_}, ceil_mode={ceil})",
        f"F.avg_pool2d(x, {given_}, {ceil}, {include})",
    ):
        source = program(pool, inputs, arguments="x")
        if matches(source, "fused-pool")[1]:
            agrees(interpreter, source)


LEFT_ALONE = [
    ("F.max_pool2d(x, 2, return_indices=True)", IMAGE),
    ("F.adaptive_max_pool2d(x, 1, return_indices=True)", IMAGE),
    ("F.adaptive_avg_pool2d(x, (4, 3))", IMAGE),  # 17 is no multiple of 4: windows differ in size
    ("F.max_pool2d(x.transpose(2, 3), 2)", IMAGE),  # a copy nobody asked for
    ("F.max_pool2d(x.to(memory_format=torch.channels_last), 2)", IMAGE),
    ("F.max_pool2d(x.double(), 2)", IMAGE),
    ("F.lp_pool2d(x, 2, 2)", "torch.randn(2, 3, 16, 16).double()"),
    ("F.fractional_max_pool2d(x, 2, 5)", IMAGE),
    ("F.max_pool2d(x, 9)", IMAGE),  # 81 unrolled loads
]


@pytest.mark.parametrize("expression, inputs", LEFT_ALONE)
def test_other_pools_are_left_alone(expression, inputs):
    assert matches(program(expression, inputs, arguments="x"), "fused-pool")[1] == []


def test_what_feeds_overlapping_windows_is_computed_once():
    source = program("F.max_pool2d(torch.tanh(x), 3, stride=1)", IMAGE, arguments="x")
    assert all("tanh" not in match.label for match in matches(source, "fused-pool")[1])


def test_a_result_that_others_read_ends_the_kernel(interpreter):
    source = program(
        "(lambda p: (p, torch.relu(p), p * y))(F.max_pool2d(x, 2))", f"{IMAGE}, {CHANNEL}"
    )
    assert all("relu" not in match.label for match in matches(source, "fused-pool")[1])
    agrees(interpreter, source)


def test_a_global_average_is_left_to_the_library():
    found = matches(program("F.adaptive_avg_pool2d(x, 1)", "torch.randn(32, 64, 128, 128)", arguments="x"),
                    "fused-pool")[1]  # fmt: skip
    assert [match.benefit for match in found] == [0.0]


@pytest.mark.parametrize(
    "expression, inputs",
    [
        ("F.max_pool2d(F.gelu(x), 2) * 2", "torch.randn(32, 64, 128, 128)"),
        ("F.avg_pool3d(x, 3, 2, 1, count_include_pad=False)", "torch.randn(8, 32, 48, 64, 64)"),
    ],
)
def test_pools_compile_without_spills(compiler, expression, inputs):
    kernels = compiler.ask(
        after=rewritten(program(expression, inputs, arguments="x"), "fused-pool")
    )
    assert {kernel["arch"] for kernel in kernels} == {80, 90}
    assert all(kernel["spill_bytes"] == 0 for kernel in kernels), kernels
