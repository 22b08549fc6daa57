"""Scales, shifts and rising functions that move past layers, pools and reductions."""

from __future__ import annotations

import pytest
import torch
from algebra_helpers import applied, assert_rewritten
from rewrite_helpers import module, sites

pytestmark = pytest.mark.torch
CONV = "self.conv = nn.Conv2d(3, 4, 3)\nself.shift = nn.Parameter(torch.randn(4, 1, 1))"
IMAGES = "torch.randn(2, 3, 12, 12)"


def images() -> torch.Tensor:
    torch.manual_seed(3)
    return torch.randn(2, 3, 12, 12, dtype=torch.float64) * 2


# --- reduce-first ------------------------------------------------------------------------

RISING = [
    "torch.relu(y)",
    "F.relu6(y)",
    "torch.tanh(y)",
    "torch.sigmoid(y)",
    "F.hardsigmoid(y)",
    "torch.clamp(y, -0.5, 0.7)",
    "torch.clamp(y, max=0.3)",
    "F.leaky_relu(y, 0.1)",
    "F.elu(y, 0.5)",
    "F.celu(y)",
    "F.selu(y)",
    "F.softplus(y)",
    "torch.exp(y)",
    "F.logsigmoid(y)",
    "torch.floor(y)",
    "y * 3.0",
    "y / 3.0",
    "y - 0.3",
    "y + self.shift",
    "torch.abs(torch.relu(y))",
    "torch.sqrt(torch.relu(y))",
]


@pytest.mark.parametrize("step", RISING)
@pytest.mark.parametrize(
    "tail", ["F.max_pool2d(y, 2)", "y.amax(dim=(2, 3))", "y.min(dim=3, keepdim=True).values"]
)
def test_what_never_falls_follows_the_extreme_bit_for_bit(step: str, tail: str) -> None:
    source = module(f"y = self.conv(x)\ny = {step}\nreturn {tail}", CONV, IMAGES)
    made = assert_rewritten(source, "reduce-first", images())
    assert "reduced =" in made.program or "pooled =" in made.program


@pytest.mark.parametrize(
    "step",
    [
        "F.gelu(y)",
        "F.silu(y)",
        "F.mish(y)",
        "F.hardswish(y)",
        "y * -2.0",
        "y / -2.0",
        "y * 0.0",
        "1.0 - y",
        "-y",
        "y * self.shift",
        "torch.abs(y)",
        "torch.square(y)",
        "torch.sqrt(y)",
        "torch.clamp(y, 0.7, -0.5)",
        "F.leaky_relu(y, -0.1)",
        "y + y.mean(dim=(2, 3), keepdim=True).expand_as(y)",
        "y + torch.arange(10.0)",
    ],
)
def test_what_falls_or_varies_stays_before_the_maximum(step: str) -> None:
    source = module(f"y = self.conv(x)\ny = {step}\nreturn F.max_pool2d(y, 2)", CONV, IMAGES)
    assert applied(source, "reduce-first") is None


def test_nan_and_infinity_arrive_as_before() -> None:
    source = module(
        "y = torch.tanh(x) * 2.0 + 1.0\nreturn F.max_pool2d(y, 2)", inputs="torch.randn(1, 1, 4, 4)"
    )
    values = torch.randn(1, 1, 4, 4, dtype=torch.float64)
    values[0, 0, 0, 0], values[0, 0, 0, 2], values[0, 0, 2, 0] = torch.nan, torch.inf, -torch.inf
    assert_rewritten(source, "reduce-first", values)


def test_a_pool_that_hands_out_indices_stays() -> None:
    source = module("y = torch.tanh(self.conv(x))\nreturn tuple(y.max(dim=3))", CONV, IMAGES)
    assert applied(source, "reduce-first") is None


def test_a_second_reader_keeps_the_step_where_it_is() -> None:
    source = module("y = torch.tanh(self.conv(x))\nreturn F.max_pool2d(y, 2), y", CONV, IMAGES)
    assert applied(source, "reduce-first") is None


@pytest.mark.parametrize(
    ("step", "tail"),
    [
        ("y * -2.0 + 1.0", "y.mean(dim=(2, 3))"),
        ("y * self.shift", "F.avg_pool2d(y, 2)"),
        ("y * self.shift", "F.avg_pool2d(y, 2, padding=1)"),
        ("y + self.shift", "F.adaptive_avg_pool2d(y, 5)"),
    ],
)
def test_averages_take_scales_and_shifts(step: str, tail: str) -> None:
    source = module(f"y = self.conv(x)\ny = {step}\nreturn {tail}", CONV, IMAGES)
    assert_rewritten(source, "reduce-first", images(), gradients=True)


@pytest.mark.parametrize(
    ("skill", "result"),
    [
        ("reduce-first", "F.max_pool2d(torch.relu(x), 2)"),
        ("merge-pools", "F.max_pool2d(F.max_pool2d(x, 2), 2)"),
        ("value-range-collapse", "torch.sigmoid(x).clamp(-1, 2)"),
    ],
)
def test_what_gradients_would_leave_to_eager_is_no_site_where_they_are_recorded(
    skill: str, result: str
) -> None:
    """Its guard would also close the fast path to every other step of the same rewrite."""
    forward = f"return {result}"
    assert applied(module(forward, "pass", IMAGES), skill) is not None
    trained = IMAGES.replace(")", ", requires_grad=True)")
    assert applied(module(forward, "pass", trained), skill) is None


@pytest.mark.parametrize(
    ("step", "tail"),
    [
        ("y + self.shift", "F.avg_pool2d(y, 2, padding=1)"),  # zeros of the border are not shifted
        ("y + self.shift", "y.mean(dim=1)"),
        ("torch.relu(y)", "y.mean(dim=(2, 3))"),
        ("y + 1.0", "y.sum(dim=(2, 3))"),
    ],
)
def test_averages_that_would_change_stay(step: str, tail: str) -> None:
    source = module(f"y = self.conv(x)\ny = {step}\nreturn {tail}", CONV, IMAGES)
    assert applied(source, "reduce-first") is None


# --- fold-affine -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layer", "shape", "shift"),
    [
        ("nn.Conv1d(3, 4, 3)", (2, 3, 9), (4, 1)),
        ("nn.Conv2d(4, 6, 3, groups=2, bias=False)", (2, 4, 7, 8), (1, 6, 1, 1)),
        ("nn.Conv3d(2, 3, 2, stride=2)", (2, 2, 5, 6, 7), (1, 1, 1)),
        ("nn.ConvTranspose1d(4, 6, 3, groups=2)", (2, 4, 6), (6, 1)),
        ("nn.ConvTranspose2d(3, 5, 4, stride=2, padding=1)", (2, 3, 5, 6), (5, 1, 1)),
        ("nn.ConvTranspose3d(4, 4, 2, groups=4, bias=False)", (2, 4, 3, 4, 3), (4, 1, 1, 1)),
        ("nn.Linear(5, 7)", (4, 5), (7,)),
        ("nn.Linear(5, 7, bias=False)", (3, 4, 5), (1,)),
    ],
)
@pytest.mark.parametrize(
    "chain",
    [
        "y / 3.0 * 2.0 / 3.0 + s",
        "y * s - 0.5",
        "s + y",
        "y - s",
        "(y + 1.0) * s",
        "y * 4.0",
        "y / s",
    ],
)
def test_scales_and_shifts_fold_into_any_layer(
    layer: str, shape: tuple[int, ...], shift: tuple[int, ...], chain: str
) -> None:
    init = f"self.layer = {layer}\nself.shift = nn.Parameter(torch.randn{shift})"
    source = module(
        f"y, s = self.layer(x), self.shift\nreturn torch.tanh({chain})", init, f"torch.randn{shape}"
    )
    torch.manual_seed(0)
    made = assert_rewritten(
        source, "fold-affine", torch.randn(shape, dtype=torch.float64), gradients=True
    )
    assert "layer(x)" not in made.program.split("return self._forward_eager(x)")[1]


@pytest.mark.parametrize(
    "forward", ["self.conv(x * 3.0)", "self.conv(x / 7.0) * 2.0 + self.shift", "self.up(0.5 * x)"]
)
def test_a_scaled_input_is_a_scaled_weight(forward: str) -> None:
    init = f"{CONV}\nself.up = nn.ConvTranspose2d(3, 4, 3, padding=1, bias=False)"
    source = module(f"return torch.relu({forward})", init, IMAGES)
    made = assert_rewritten(source, "fold-affine", images(), gradients=True)
    assert "conv(x" not in made.program.split("return self._forward_eager(x)")[1]


@pytest.mark.parametrize(
    "forward",
    [
        "self.conv(x + 1.0)",
        "self.conv(x * 0.0)",
        "self.conv(x * self.scale)",
        "self.conv(x * 1e30)",
    ],
)
def test_other_steps_before_a_layer_stay(forward: str) -> None:
    source = module(
        f"return torch.relu({forward})",
        f"{CONV}\nself.scale = nn.Parameter(torch.ones(3, 1, 1))",
        IMAGES,
    )
    assert applied(source, "fold-affine") is None


@pytest.mark.parametrize(
    "tail",
    [
        "torch.relu(y) + self.shift",
        "y * 0.0",
        "y + x.mean()",
        "y + self.image",
        "torch.add(y, self.shift, alpha=2)",
        "y + y",
        "y / 1e30 * 1e30",
        "y * 1e25 / 1e25",
        "torch.div(y, 2.0, rounding_mode='floor')",
        "1.0 / y",
    ],
)
def test_what_is_not_affine_by_channel_stays(tail: str) -> None:
    init = f"{CONV}\nself.image = nn.Parameter(torch.randn(10, 10))"
    source = module(f"y = self.conv(x)\nreturn {tail}", init, IMAGES)
    assert applied(source, "fold-affine") is None


def test_a_layer_with_a_second_reader_stays() -> None:
    source = module("y = self.conv(x)\nreturn (y + self.shift) * y", CONV, IMAGES)
    assert applied(source, "fold-affine") is None


@pytest.mark.parametrize(("step", "folds"), [("y * 3.0", False), ("y + self.shift", True)])
def test_sixteen_bits_take_a_shift_but_no_scale(step: str, folds: bool) -> None:
    shift = "self.shift = nn.Parameter(torch.randn(4, 1, 1).bfloat16())"
    init = f"self.conv = nn.Conv2d(3, 4, 3).bfloat16()\n{shift}"
    source = module(
        f"y = self.conv(x)\nreturn torch.relu({step})",
        init,
        f"{IMAGES[:-1]}, dtype=torch.bfloat16)",
    )
    assert (applied(source, "fold-affine") is not None) == folds


def test_a_weight_larger_than_the_output_is_not_worth_it() -> None:
    source = module(
        "return torch.relu(self.fc(x) * 3.0)",
        "self.fc = nn.Linear(512, 512)",
        "torch.randn(2, 512)",
    )
    assert applied(source, "fold-affine") is not None and sites(source, "fold-affine") == []


# --- fold-batchnorm-eval -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("layer", "norm", "shape"),
    [
        ("ConvTranspose1d(4, 6, 3, groups=2)", "BatchNorm1d(6)", (2, 4, 6)),
        (
            "ConvTranspose2d(3, 5, 4, stride=2, padding=1, bias=False)",
            "BatchNorm2d(5)",
            (2, 3, 5, 6),
        ),
        ("ConvTranspose3d(4, 4, 2, groups=4)", "BatchNorm3d(4, affine=False)", (2, 4, 3, 4, 3)),
        ("Conv2d(4, 6, 3, groups=2)", "BatchNorm2d(6)", (2, 4, 7, 8)),
        ("Linear(5, 7)", "BatchNorm1d(7)", (4, 5)),
    ],
)
def test_batch_norm_folds_into_any_layer(layer: str, norm: str, shape: tuple[int, ...]) -> None:
    init = f"self.layer = nn.{layer}\nself.norm = nn.{norm}"
    source = module("return torch.relu(self.norm(self.layer(x)))", init, f"torch.randn{shape}")
    torch.manual_seed(0)
    values = torch.randn(shape, dtype=torch.float64)
    made = assert_rewritten(source, "fold-batchnorm-eval", values, training=False, gradients=True)
    assert "batch_norm(" not in made.program
    assert applied(source, "fold-batchnorm-eval", True) is None
