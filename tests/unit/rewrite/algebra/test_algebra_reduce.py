"""Sums and means of convolutions from sums of their input: exact for any padding, stride and
dilation."""

from __future__ import annotations

import pytest
import torch
from algebra_helpers import applied, assert_rewritten
from example_helpers import examples
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from rewrite_helpers import module, sites

from kernel_lsp.rewrite.algebra.convolution import ConvolutionDim, positions

pytestmark = pytest.mark.torch
SKILL = "reduce-before-conv"


def axis(size: int, out: int, kernel: int, **settings: int) -> ConvolutionDim:
    usual = {"stride": 1, "padding": 0, "output_padding": 0, "dilation": 1}
    return ConvolutionDim(size=size, out=out, kernel=kernel, **{**usual, **settings})


def test_each_tap_of_a_padded_convolution_misses_the_other_edge() -> None:
    assert positions(axis(5, 5, 3, padding=1), False) == (range(0, 4), range(0, 5), range(1, 5))


def test_a_strided_convolution_meets_every_other_input() -> None:
    # out = (7 - 3) // 2 + 1 = 3: tap 0 meets 0, 2, 4, tap 1 meets 1, 3, 5, tap 2 meets 2, 4, 6
    assert [list(r) for r in positions(axis(7, 3, 3, stride=2), False)] == [
        [0, 2, 4],
        [1, 3, 5],
        [2, 4, 6],
    ]


def test_an_unpadded_transposed_convolution_uses_every_input_for_every_tap() -> None:
    assert positions(axis(4, 6, 3), True) == (range(4),) * 3


def test_the_crop_of_a_transposed_convolution_costs_the_outer_taps_an_input() -> None:
    # out = (4 - 1) * 2 - 2 + 4 = 8; tap 0 writes 2i - 1: i = 0 falls off; tap 3 writes 2i + 2
    taps = positions(axis(4, 8, 4, stride=2, padding=1), True)
    assert taps == (range(1, 4), range(4), range(4), range(3))


@st.composite
def convolutions(draw: st.DrawFn) -> tuple[str, tuple[int, ...]]:
    """(layer, shape of its input)."""
    rank, transposed = draw(st.integers(1, 3)), draw(st.booleans())
    groups = draw(st.sampled_from([1, 1, 2]))
    small = st.tuples(*[st.integers(1, 4)] * rank)
    kernel, stride = draw(small), draw(st.tuples(*[st.integers(1, 3)] * rank))
    dilation = draw(st.tuples(*[st.integers(1, 2)] * rank))
    padding = draw(st.tuples(*[st.integers(0, 3)] * rank))
    size = draw(st.tuples(*[st.integers(1, 7)] * rank))
    extra = ""
    if transposed:
        more = tuple(
            draw(st.integers(0, max(s, d) - 1)) for s, d in zip(stride, dilation, strict=True)
        )
        extra = f", output_padding={more}"
        out = [
            (n - 1) * s - 2 * p + d * (k - 1) + m + 1
            for n, s, p, d, k, m in zip(size, stride, padding, dilation, kernel, more, strict=True)
        ]
    else:
        out = [
            (n + 2 * p - d * (k - 1) - 1) // s + 1
            for n, s, p, d, k in zip(size, stride, padding, dilation, kernel, strict=True)
        ]
    assume(min(out) > 0)
    name = f"nn.Conv{'Transpose' if transposed else ''}{rank}d"
    bias = draw(st.booleans())
    layer = (
        f"{name}({2 * groups}, {3 * groups}, {kernel}, stride={stride}, padding={padding},"
        f" dilation={dilation}, groups={groups}, bias={bias}{extra})"
    )
    return layer, (2, 2 * groups, *size)


@settings(max_examples=examples(10), deadline=None)
@given(convolutions(), st.data())
def test_any_sum_or_mean_of_any_convolution(
    case: tuple[str, tuple[int, ...]], data: st.DataObject
) -> None:
    layer, shape = case
    spatial = list(range(2, len(shape)))
    chosen = data.draw(st.lists(st.sampled_from(spatial), min_size=1, unique=True))
    dims = tuple(chosen) + tuple(data.draw(st.sampled_from([(), (), (1,), (0, 1)])))
    what, keep = data.draw(st.sampled_from(["sum", "mean"])), data.draw(st.booleans())
    source = module(
        f"y = self.conv(x) * 0.75\nreturn y.{what}(dim={dims}, keepdim={keep})",
        f"self.conv = {layer}",
        f"torch.randn{shape}",
    )
    torch.manual_seed(0)
    images = torch.randn(shape, dtype=torch.float64)
    assert_rewritten(source, SKILL, images)


def test_taps_that_meet_only_padding_count_nothing() -> None:
    layer = "self.conv = nn.Conv1d(2, 3, 3, padding=1)"
    source = module("return self.conv(x).sum(dim=2)", layer, "torch.randn(2, 2, 1)")
    assert_rewritten(source, SKILL, torch.randn(2, 2, 1, dtype=torch.float64))


@pytest.mark.parametrize(
    "tail",
    [
        "F.adaptive_avg_pool2d(y, 1)",
        "F.avg_pool2d(y, (8, 7))",
        "y.mean()",
        "y.sum()",
        "y.mean(dim=(-1, -2))",
    ],
)
def test_other_ways_to_write_a_global_average(tail: str) -> None:
    source = module(
        f"y = self.conv(x)\nreturn {tail}",
        "self.conv = nn.Conv2d(2, 3, 3, padding=1)",
        "torch.randn(2, 2, 8, 7)",
    )
    assert_rewritten(source, SKILL, torch.randn(2, 2, 8, 7, dtype=torch.float64))


def test_gradients_flow_as_before() -> None:
    source = module(
        "return self.conv(x).mean(dim=(2, 3))",
        "self.conv = nn.ConvTranspose2d(4, 6, 4, stride=2, padding=1)",
        "torch.randn(2, 4, 5, 6)",
    )
    assert_rewritten(source, SKILL, torch.randn(2, 4, 5, 6, dtype=torch.float64), gradients=True)


@pytest.mark.parametrize(
    "forward",
    [
        "return torch.relu(self.conv(x)).mean(dim=(2, 3))",
        "y = self.conv(x)\nreturn y.mean(dim=(2, 3)) + y.amax(dim=(2, 3))",
        "y = self.conv(x)\nreturn y, y.mean(dim=(2, 3))",
        "return self.conv(x).amax(dim=(2, 3))",
        "return self.conv(x).mean(dim=1)",
        "return self.conv(x).mean(dim=(2, 3), dtype=torch.float64)",
        "return F.avg_pool2d(self.conv(x), 3)",
        "return F.adaptive_avg_pool2d(self.conv(x), 2)",
        "return self.conv(x).pow(2).mean(dim=(2, 3))",
    ],
)
def test_what_is_no_sum_of_a_convolution_is_left_alone(forward: str) -> None:
    source = module(forward, "self.conv = nn.Conv2d(2, 3, 3)", "torch.randn(2, 2, 8, 8)")
    assert applied(source, SKILL) is None


def test_sixteen_bit_weights_are_left_alone() -> None:
    source = module(
        "return self.conv(x).mean(dim=(2, 3))",
        "self.conv = nn.Conv2d(2, 3, 3).bfloat16()",
        "torch.randn(2, 2, 8, 8, dtype=torch.bfloat16)",
    )
    assert applied(source, SKILL) is None


def test_it_is_offered_where_it_pays() -> None:
    source = module(
        "return self.conv(x).mean(dim=(2, 3))",
        "self.conv = nn.ConvTranspose2d(8, 8, 3, stride=2)",
        "torch.randn(4, 8, 64, 64)",
    )
    assert len(sites(source, SKILL)) == 1
