"""Pools that merge with each other and averages that merge into (transposed) convolutions."""

from __future__ import annotations

import pytest
import torch
from algebra_helpers import applied, assert_rewritten
from example_helpers import examples
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from rewrite_helpers import module, sites

from kernel_lsp.rewrite.algebra.pools import PoolDim, merged_axis

pytestmark = pytest.mark.torch


def two(first: str, second: str, size: int = 24, rank: int = 2) -> str:
    shape = (2, 3, *[size] * rank)
    return module(
        f"return {second.replace('X', first.replace('X', 'x'))}", inputs=f"torch.randn{shape}"
    )


# --- pool of pool ------------------------------------------------------------------------


def test_two_maxima_over_two_are_one_over_four() -> None:
    first, second = (PoolDim(size=n, out=n // 2, kernel=2, stride=2, padding=0) for n in (12, 6))
    made = merged_axis(first, second, None)
    assert made == PoolDim(size=12, out=3, kernel=4, stride=4, padding=0)


@settings(max_examples=examples(10), deadline=None)
@given(st.data())
def test_pools_that_merge_give_the_same_values(data: st.DataObject) -> None:
    what, rank = data.draw(st.sampled_from(["max", "avg"])), data.draw(st.sampled_from([1, 2, 3]))
    shape = (2, 2, *data.draw(st.tuples(*[st.integers(1, 14)] * rank)))
    calls, sizes = [], list(shape[2:])
    for _ in range(2):
        kernel, stride = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 4))
        assume(min(sizes) >= kernel)  # what torch takes in 3-D
        padding, ceil = data.draw(st.integers(0, kernel // 2)), data.draw(st.booleans())
        more = f", count_include_pad={data.draw(st.booleans())}" if what == "avg" else ""
        calls.append(
            f"F.{what}_pool{rank}d(X, {kernel}, {stride}, padding={padding}, "
            f"ceil_mode={ceil}{more})"
        )
        sizes = [(size + 2 * padding - kernel) // stride + 1 for size in sizes]
        assume(min(sizes) > 0)
    forward = calls[1].replace("X", calls[0].replace("X", "x"))
    source = module(f"return {forward}", inputs=f"torch.randn{shape}")
    if applied(source, "merge-pools") is not None:
        torch.manual_seed(0)
        assert_rewritten(source, "merge-pools", torch.randn(shape, dtype=torch.float64))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("F.max_pool2d(X, 2)", "F.max_pool2d(X, 2)"),
        ("F.max_pool2d(X, 3, 1)", "F.max_pool2d(X, 2)"),  # overlapping maxima do merge
        ("F.max_pool2d(X, 3, 2, padding=1)", "F.max_pool2d(X, 2)"),
        ("F.avg_pool2d(X, 2)", "F.avg_pool2d(X, 3)"),
        ("F.avg_pool2d(X, 2)", "F.avg_pool2d(X, 2, padding=1, count_include_pad=False)"),
        ("F.avg_pool2d(X, 2)", "F.adaptive_avg_pool2d(X, 4)"),
        ("F.max_pool2d(X, (2, 3))", "F.max_pool2d(X, (2, 1))"),
    ],
)
def test_two_pools_become_one(first: str, second: str) -> None:
    images = torch.randn(2, 3, 24, 24, dtype=torch.float64)
    images[0, 0, 3, 5], images[1, 2, 9, 9] = torch.nan, -torch.inf
    made = assert_rewritten(two(first, second), "merge-pools", images)
    assert made.program.split("def forward")[1].count("_pool2d(") == 1


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("F.max_pool2d(X, 2, 3)", "F.max_pool2d(X, 2)"),  # gaps between the windows
        ("F.avg_pool2d(X, 3, 1)", "F.avg_pool2d(X, 2)"),  # positions in the middle count twice
        ("F.avg_pool2d(X, 2)", "F.max_pool2d(X, 2)"),
        ("F.max_pool2d(X, 2)", "F.avg_pool2d(X, 2)"),
        ("F.max_pool2d(X, 2, dilation=2)", "F.max_pool2d(X, 2)"),
        ("F.avg_pool2d(X, 2)", "F.avg_pool2d(X, 2, divisor_override=3)"),
        ("F.max_pool2d(X, 2)", "F.max_pool2d(F.relu(X), 2)"),
    ],
)
def test_pools_with_other_windows_stay_two(first: str, second: str) -> None:
    assert applied(two(first, second), "merge-pools") is None


def test_a_dropped_row_keeps_pools_apart() -> None:
    # 9 // 2 = 4 drops position 8; the third window of the merged pool, 4 wide from 6, would hold it
    source = two("F.max_pool2d(X, 2)", "F.max_pool2d(X, 2, 2, padding=1)", size=9)
    assert applied(source, "merge-pools") is None


def test_a_first_pool_with_two_readers_stays() -> None:
    source = module(
        "y = F.max_pool2d(x, 2)\nreturn y.sum() + F.max_pool2d(y, 2)",
        inputs="torch.randn(2, 3, 8, 8)",
    )
    assert applied(source, "merge-pools") is None


# --- average into convolution ------------------------------------------------------------


@st.composite
def pooled_convolutions(draw: st.DrawFn) -> tuple[str, str, tuple[int, ...]]:
    rank, transposed = draw(st.integers(1, 3)), draw(st.booleans())
    groups, kernel = draw(st.sampled_from([1, 2])), draw(st.tuples(*[st.integers(1, 4)] * rank))
    stride = draw(st.tuples(*[st.integers(1, 3)] * rank)) if transposed else (1,) * rank
    padding = draw(st.tuples(*[st.integers(0, 2)] * rank))
    size = draw(st.tuples(*[st.integers(2, 9)] * rank))
    more = tuple(draw(st.integers(0, s - 1)) for s in stride) if transposed else (0,) * rank
    window = draw(st.tuples(*[st.integers(1, 4)] * rank))
    step = tuple(
        s * draw(st.integers(1, 2)) if transposed else draw(st.integers(1, 4)) for s in stride
    )
    grown = [
        (n - 1) * s - 2 * p + k + m if transposed else n + 2 * p - k + 1
        for n, s, p, k, m in zip(size, stride, padding, kernel, more, strict=True)
    ]
    assume(all(g >= w for g, w in zip(grown, window, strict=True)))
    extra = f", output_padding={more}" if transposed else ""
    layer = (
        f"nn.Conv{'Transpose' if transposed else ''}{rank}d({2 * groups}, {3 * groups}, {kernel},"
        f" stride={stride}, padding={padding}, groups={groups}{extra})"
    )
    return layer, f"F.avg_pool{rank}d(self.conv(x), {window}, {step})", (2, 2 * groups, *size)


@settings(max_examples=examples(10), deadline=None)
@given(pooled_convolutions())
def test_average_pooling_merges_into_any_convolution(
    case: tuple[str, str, tuple[int, ...]],
) -> None:
    layer, forward, shape = case
    source = module(f"return {forward}", f"self.conv = {layer}", f"torch.randn{shape}")
    if applied(source, "avgpool-into-conv") is not None:
        torch.manual_seed(0)
        assert_rewritten(source, "avgpool-into-conv", torch.randn(shape, dtype=torch.float64))


def test_an_averaged_transposed_convolution_becomes_a_strided_one() -> None:
    source = module(
        "return F.avg_pool3d(self.conv(x), 4)",
        "self.conv = nn.ConvTranspose3d(3, 4, 3, stride=2, padding=1)",
        "torch.randn(2, 3, 6, 8, 8)",
    )
    made = assert_rewritten(
        source, "avgpool-into-conv", torch.randn(2, 3, 6, 8, 8, dtype=torch.float64)
    )
    body = made.program.split("def forward")[1]
    assert (
        "F.conv3d(x, weight, conv.bias, stride=(2, 2, 2)" in body and "conv_transpose" not in body
    )


@pytest.mark.parametrize(
    ("layer", "pool"),
    [
        ("ConvTranspose2d(3, 4, 3, stride=2)", "F.avg_pool2d(y, 3)"),  # 3 is no multiple of 2
        ("ConvTranspose2d(3, 4, 3, stride=2, dilation=2)", "F.avg_pool2d(y, 2)"),
        ("ConvTranspose2d(3, 4, 3, stride=2)", "F.avg_pool2d(y, 2, padding=1)"),
        ("ConvTranspose2d(3, 4, 3, stride=2)", "F.avg_pool2d(torch.tanh(y), 2)"),
        ("ConvTranspose2d(3, 4, 3, stride=2)", "F.max_pool2d(y, 2)"),
        ("ConvTranspose2d(3, 4, 3, stride=2)", "F.avg_pool2d(y, 2) + y.mean()"),
        ("ConvTranspose2d(3, 4, 3, stride=2)", "F.avg_pool2d(y, 2, divisor_override=1)"),
        ("ConvTranspose2d(3, 4, 3, stride=2)", "F.avg_pool2d(y, 4, 2, ceil_mode=True)"),
        ("Conv2d(3, 4, 3, dilation=2)", "F.avg_pool2d(y, 2)"),
        ("Conv2d(3, 4, 3, stride=2)", "F.avg_pool2d(y, 2)"),
    ],
)
def test_pooling_that_is_not_such_an_average_stays(layer: str, pool: str) -> None:
    source = module(
        f"y = self.conv(x)\nreturn {pool}", f"self.conv = nn.{layer}", "torch.randn(2, 3, 16, 16)"
    )
    assert applied(source, "avgpool-into-conv") is None


def test_it_is_offered_for_large_volumes() -> None:
    source = module(
        "return F.avg_pool3d(self.conv(x), 2)",
        "self.conv = nn.ConvTranspose3d(16, 24, 3, stride=2, padding=1)",
        "torch.randn(8, 16, 12, 24, 24)",
    )
    assert len(sites(source, "avgpool-into-conv")) == 1
