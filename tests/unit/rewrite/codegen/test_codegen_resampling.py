"""Bilinear and bicubic resampling against float64, in Triton's interpreter, and its gradients."""

import pytest
from codegen_helpers import as_close_as_eager, for_values, matches, program
from training_helpers import agrees as trained_agrees

pytestmark = pytest.mark.torch
pytest.importorskip("torch")

CALLS = [
    "scale_factor=2, mode='bilinear'",
    "scale_factor=2, mode='bilinear', align_corners=True",
    "size=(13, 5), mode='bilinear', align_corners=True",
    "size=(4, 25), mode='bilinear'",
    "scale_factor=(1.7, 0.6), mode='bilinear'",
    "scale_factor=2.3, mode='bilinear', recompute_scale_factor=True",
    "scale_factor=2, mode='bicubic'",
    "size=(13, 5), mode='bicubic', align_corners=True",
    "scale_factor=(1.7, 0.6), mode='bicubic'",
]
GATHERED = [call for call in CALLS if call != "size=(13, 5), mode='bicubic', align_corners=True"]
"""The other one has a test of its own, on a smaller image."""
SHAPE = "2, 5, 7, 9"


def _source(call: str, inputs: str) -> str:
    return program(f"F.interpolate(x, {call})", inputs, arguments="x")


@pytest.mark.parametrize("call", CALLS)
def test_images_are_resampled_as_torch_does(interpreter, call) -> None:
    source = _source(call, f"torch.randn({SHAPE}, dtype=torch.bfloat16)")
    as_close_as_eager(interpreter, source, for_values(source, "direct-upsample"))


@pytest.mark.parametrize("number, call", list(enumerate(GATHERED)))
def test_gradients_are_gathered(trainer, number, call) -> None:
    dtype = ("float32", "float16")[number % 2]
    inputs = f"torch.randn({SHAPE}, dtype=torch.{dtype}, requires_grad=True)"
    trained_agrees(trainer, _source(call, inputs), "direct-upsample")


def test_gradients_between_corners_that_are_aligned(trainer) -> None:
    inputs = "torch.randn(1, 2, 4, 5, requires_grad=True)"
    source = _source("size=(7, 3), mode='bicubic', align_corners=True", inputs)
    trained_agrees(trainer, source, "direct-upsample")


@pytest.mark.parametrize("call", CALLS[:2])
def test_gradients_of_gradients(trainer, call) -> None:
    source = program(
        f"F.interpolate(x * x, {call}) ** 2", f"torch.randn({SHAPE}, requires_grad=True)",
        arguments="x",
    )  # fmt: skip
    trained_agrees(trainer, source, "direct-upsample", twice=True)


@pytest.mark.parametrize("call, inputs", [
    ("scale_factor=2", f"torch.randn({SHAPE})"),  # nearest
    ("scale_factor=2, mode='bilinear', antialias=True", f"torch.randn({SHAPE})"),
    ("scale_factor=2, mode='trilinear'", "torch.randn(1, 2, 3, 4, 5)"),
    ("scale_factor=2, mode='bilinear'", f"torch.randn({SHAPE}).to(memory_format=torch.channels_last)"),
    ("size=(1, 8), mode='bilinear'", f"torch.randn({SHAPE})"),
    ("scale_factor=2, mode='bilinear'", f"torch.randn({SHAPE}, dtype=torch.float64)"),
])  # fmt: skip
def test_what_is_left_alone(call, inputs) -> None:
    assert matches(_source(call, inputs), "direct-upsample")[1] == []
