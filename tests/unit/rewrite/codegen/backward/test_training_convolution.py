"""Depthwise convolutions in training: one kernel for the result and the gradient of the input, the
library for the others, against float64."""

import pytest
from codegen_helpers import program
from training_helpers import agrees, rewritten, session

pytestmark = pytest.mark.torch
pytest.importorskip("torch")

TURNED = {
    "images": ("nn.Conv2d(2, 2, 3, padding=1, groups=2)", "1, 2, 5, 7"),
    "a filter of two sizes": ("nn.Conv2d(3, 3, (5, 1), padding=(2, 0), groups=3, bias=False)", "1, 3, 13, 3"),
    "gaps in the filter": ("nn.Conv1d(3, 3, 5, padding=4, dilation=2, groups=3)", "2, 3, 37"),
}  # fmt: skip
BY_THE_LIBRARY = {
    "zeros on both sides of a causal filter": ("nn.Conv1d(3, 3, 4, padding=3, groups=3)", "2, 3, 17"),
    "a stride": ("nn.Conv2d(4, 4, 3, stride=2, padding=1, groups=4, bias=False)", "2, 4, 9, 5"),
    "two results of each channel": ("nn.Conv2d(3, 6, 3, padding=1, groups=3)", "2, 3, 5, 7"),
}  # fmt: skip


def _source(layer: str, shape: str, dtype: str = "float32") -> str:
    inputs = f"torch.randn({shape}, dtype=torch.{dtype}, requires_grad=True)"
    init = f"self.conv = {layer[:-1]}, dtype=torch.{dtype})"
    return program("self.conv(x)", inputs, arguments="x", init=init)


@pytest.mark.parametrize("name", TURNED)
def test_a_filter_turned_around_makes_the_gradient_of_the_input(trainer, name) -> None:
    after = agrees(trainer, _source(*TURNED[name]), "depthwise-conv")
    assert ".flip((2" in after


@pytest.mark.parametrize("name", BY_THE_LIBRARY)
def test_where_it_does_not_the_library_makes_it(trainer, name) -> None:
    after = agrees(trainer, _source(*BY_THE_LIBRARY[name]), "depthwise-conv")
    assert ".flip(" not in after and "convolution_backward" in after


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_16_bit_gradients_are_as_close_as_the_library_s(trainer, dtype) -> None:
    agrees(trainer, _source(*TURNED["images"], dtype), "depthwise-conv")


def test_gradients_can_be_differentiated_again(trainer) -> None:
    agrees(trainer, _source(*TURNED["images"]), "depthwise-conv", twice=True)


def test_an_input_without_a_gradient_costs_none(trainer) -> None:
    source = _source(*TURNED["images"]).replace(", requires_grad=True", "")
    agrees(trainer, source, "depthwise-conv")


def test_what_follows_stays_outside_while_training() -> None:
    source = _source(*TURNED["images"]).replace("self.conv(x)", "torch.relu(self.conv(x))")
    assert "F.relu(conv2d_fused)" in rewritten(source, "depthwise-conv")


def test_other_convolutions_keep_the_original_path_while_training() -> None:
    source = _source("nn.Conv2d(4, 4, 3, padding=1)", "2, 4, 9, 5")
    opened = session(source, "fused-conv", device="cuda")
    assert opened.sites(opened.graph) == ()
