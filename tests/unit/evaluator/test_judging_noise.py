"""What was drawn in a call's own dtype is told to the same call in float64, or there is no
oracle."""

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from kernel_lsp.evaluator.judging.noise import NoiseRecording, NoiseReplay, UnmatchedNoise

pytestmark = pytest.mark.torch
Call = Callable[[torch.Tensor], torch.Tensor]
TOLD: dict[str, Call] = {
    "dropout": lambda x: F.dropout(x, 0.3) * 2,
    "dropout as on a GPU": lambda x: torch.native_dropout(x, 0.3, True)[0],
    "dropout that is off": lambda x: torch.native_dropout(x, 0.3, False)[0] + torch.rand_like(x),
    "whole channels": lambda x: F.dropout2d(x.view(1, 4, 4, 4), 0.5),
    "alpha dropout": lambda x: F.alpha_dropout(x, 0.2, training=True),
    "noise": lambda x: x + torch.randn_like(x) * torch.rand(8),
    "in place": lambda x: x * torch.empty_like(x).exponential_(),
    "mask": lambda x: x * torch.bernoulli(torch.full_like(x, 0.4)),
    "order": lambda x: x[torch.randperm(len(x))] * torch.randint(1, 5, (8,)),
    "choice": lambda x: x.gather(1, torch.multinomial(x.softmax(1), 2)),
    "gumbel": lambda x: F.gumbel_softmax(x, tau=0.5),
    "attention": lambda x: F.scaled_dot_product_attention(
        x[None], x[None], x[None], dropout_p=0.25
    ),
}


def called(call: Call, values: torch.Tensor, seed: int) -> torch.Tensor:
    torch.manual_seed(seed)
    return call(values)


def in_both(call: Call) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The call's result, the same in float64, and in float64 with noise of its own."""
    values = torch.randn(8, 8, generator=torch.Generator().manual_seed(0))
    with NoiseRecording("cpu") as recording:
        narrow = called(call, values, 1)
    with NoiseReplay(recording.draws) as telling:
        wide = called(call, values.double(), 2)
    telling.end()
    assert torch.equal(narrow, called(call, values, 1)), "recording changes nothing"
    return narrow, wide, called(call, values.double(), 2)


@pytest.mark.parametrize("name", TOLD)
def test_the_same_noise_under_inference_mode(name: str) -> None:
    values = torch.randn(8, 8, generator=torch.Generator().manual_seed(0))
    with NoiseRecording("cpu") as recording:
        narrow = called(TOLD[name], values, 1)
    with torch.inference_mode(), NoiseReplay(recording.draws) as replay:
        wide = called(TOLD[name], values.double(), 2)
    replay.end()
    torch.testing.assert_close(wide.float(), narrow, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", TOLD)
def test_the_same_noise_in_float64(name: str) -> None:
    narrow, wide, other = in_both(TOLD[name])
    assert wide.dtype is torch.float64
    torch.testing.assert_close(wide.float(), narrow, rtol=1e-5, atol=1e-6)
    assert not torch.allclose(other.float(), narrow, rtol=1e-3, atol=1e-3), (
        "the noise decides nothing here"
    )


@pytest.mark.parametrize(
    "layer",
    [
        nn.LSTM(8, 8, num_layers=2, dropout=0.5, batch_first=True),
        nn.TransformerEncoderLayer(8, 2, 16, batch_first=True),
    ],
    ids=["LSTM", "transformer"],
)
def test_layers_in_training_and_their_gradients(layer: nn.Module) -> None:
    def call(values: torch.Tensor) -> torch.Tensor:
        leaf = values[None].clone().requires_grad_()
        result = layer.to(values.dtype)(leaf)
        (result[0] if isinstance(result, tuple) else result).square().sum().backward()
        assert leaf.grad is not None
        return leaf.grad

    narrow, wide, _ = in_both(call)
    torch.testing.assert_close(wide.float(), narrow, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    "call",
    [
        lambda x: F.rrelu(x, training=True),
        lambda x: torch.distributions.Gamma(x.abs() + 1, 1.0).rsample(),
        lambda x: torch.normal(x, 1.0),
    ],
    ids=["rrelu", "gamma", "normal around a result"],
)
def test_what_is_drawn_within_is_not_told(call: Call) -> None:
    with pytest.raises(UnmatchedNoise, match="draws within"):
        in_both(call)


def test_another_order_or_number_of_draws_is_not_told() -> None:
    with NoiseRecording("cpu") as recording:
        torch.rand(3), torch.randn(3)
    with (
        pytest.raises(UnmatchedNoise, match="randn is asked for where rand was drawn"),
        NoiseReplay(recording.draws),
    ):
        torch.randn(3)
    with (
        pytest.raises(UnmatchedNoise, match="rand is asked for where rand was drawn"),
        NoiseReplay(recording.draws),
    ):
        torch.rand(4)
    with (
        pytest.raises(UnmatchedNoise, match="rand is asked for where nothing was drawn"),
        NoiseReplay(()),
    ):
        torch.rand(3)
    with NoiseReplay(recording.draws) as telling:
        torch.rand(3)
    with pytest.raises(UnmatchedNoise, match="1 draws were not asked for"):
        telling.end()
