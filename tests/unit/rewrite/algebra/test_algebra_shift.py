"""Shifts that a normalization subtracts again are left out, with the running mean and NaN as they
were."""

from __future__ import annotations

import pytest
import torch
from algebra_helpers import applied, assert_rewritten
from rewrite_helpers import instance, module

pytestmark = pytest.mark.torch
INIT = """self.conv = nn.Conv2d(3, 4, 3)
self.norm = nn.BatchNorm2d(4)
self.bare = nn.BatchNorm2d(4, affine=False, track_running_stats=False)
self.shift = nn.Parameter(torch.randn(4, 1, 1))"""
IMAGES = "torch.randn(2, 3, 9, 8)"


def images() -> torch.Tensor:
    torch.manual_seed(5)
    return torch.randn(2, 3, 9, 8, dtype=torch.float64)


@pytest.mark.parametrize(
    "tail",
    [
        "F.instance_norm(self.conv(x))",
        "self.norm(self.conv(x))",
        "self.bare(self.conv(x))",
        "self.norm(torch.tanh(self.conv(x)) - self.shift)",
        "F.instance_norm(torch.tanh(x) + 0.3)",
        "self.norm(torch.tanh(self.conv(x)) + 2.0)",
        "F.layer_norm(torch.tanh(x) - 0.3, (9, 8))",
        "F.group_norm(torch.tanh(x) + 1.5, 3)",
        "F.softmax(torch.tanh(x) + 1.5, dim=1)",
        "F.log_softmax(torch.tanh(x) - 1.5, dim=3)",
        "(torch.tanh(x) + 1.5).var(dim=1)",
    ],
)
@pytest.mark.parametrize("choice", ["keep", "ignore"])
def test_a_shift_before_a_norm_is_left_out(tail: str, choice: str) -> None:
    source = module(f"return {tail}", INIT, IMAGES)
    assert_rewritten(source, "cancel-shift", images(), training=True, nonfinite=choice)


def test_centering_cancels_a_number() -> None:
    source = module("y = torch.tanh(x) - 0.3\nreturn y - y.mean(dim=1, keepdim=True)", INIT, IMAGES)
    assert_rewritten(source, "cancel-shift", images())


def test_gradients_flow_as_before() -> None:
    source = module("return self.norm(self.conv(x))", INIT, IMAGES)
    made = applied(source, "cancel-shift", True)
    assert made is not None
    wide = made.program.replace("torch.float32", "torch.float64")
    before, after = (instance(text, True, torch.float64) for text in (source, wide))
    for model in (before, after):
        model(images()).pow(3).sum().backward()
    torch.testing.assert_close(after.conv.weight.grad, before.conv.weight.grad)
    torch.testing.assert_close(after.conv.bias.grad, before.conv.bias.grad, atol=1e-9, rtol=0.0)
    torch.testing.assert_close(after.norm.running_mean, before.norm.running_mean)


def test_a_broken_bias_breaks_the_same_channel() -> None:
    source = module("return F.instance_norm(self.conv(x))", INIT, IMAGES)
    made = applied(source, "cancel-shift")
    assert made is not None
    before, after = (instance(text, None, torch.float32) for text in (source, made.program))
    for model in (before, after):
        with torch.no_grad():
            model.conv.bias[1], model.conv.bias[3] = torch.nan, torch.inf
    with torch.no_grad():
        got, expected = after(images().float()), before(images().float())
    assert torch.equal(got.isnan(), expected.isnan()) and got[:, 1].isnan().all()


@pytest.mark.parametrize(
    "tail",
    [
        "F.group_norm(self.conv(x), 2)",  # two channels share a mean
        "F.instance_norm(self.conv(x) * 2.0)",  # epsilon is not scaled
        "F.layer_norm(self.conv(x), (7, 6)) + self.conv.bias.sum()",
        "F.layer_norm(torch.tanh(self.conv(x)) + self.shift, (4, 7, 6))",
        "F.softmax(torch.tanh(self.conv(x)) + self.shift, dim=1)",
        "F.normalize(torch.tanh(x) + 1.0)",
        "F.rms_norm(torch.tanh(x) + 1.0, (8,))",
        "F.instance_norm(torch.relu(self.conv(x)))",
        "F.batch_norm(self.conv(x), self.norm.running_mean, self.norm.running_var)",
    ],
)
def test_what_does_not_cancel_stays(tail: str) -> None:
    assert applied(module(f"return {tail}", INIT, IMAGES), "cancel-shift", True) is None


@pytest.mark.parametrize(
    "forward",
    ["y = self.conv(x)\nreturn self.norm(y) + y", "y = self.conv(x)\nreturn self.norm(y), y"],
)
def test_a_second_reader_needs_the_shift(forward: str) -> None:
    assert applied(module(forward, INIT, IMAGES), "cancel-shift", True) is None


def test_batch_norm_in_eval_mode_subtracts_something_else() -> None:
    assert (
        applied(module("return self.norm(self.conv(x))", INIT, IMAGES), "cancel-shift", False)
        is None
    )


def test_centering_along_channels_keeps_what_varies_along_them() -> None:
    source = module(
        "y = torch.tanh(self.conv(x)) + self.shift\nreturn y - y.mean(dim=1, keepdim=True)",
        INIT,
        IMAGES,
    )
    assert applied(source, "cancel-shift") is None
