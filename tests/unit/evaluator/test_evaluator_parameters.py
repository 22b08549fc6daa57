"""New parameters for a candidate: what they are afterwards, whichever way they came."""

import pytest
import torch

from kernel_lsp.evaluator.running import parameters
from kernel_lsp.evaluator.running.worker import Worker

pytestmark = pytest.mark.torch


def mixed() -> torch.nn.Module:
    """Weights in 16 bits, statistics in float32, as mixed precision has them."""
    norm = torch.nn.BatchNorm1d(4).half()
    norm.running_mean = norm.running_mean.float()
    return norm


def dtypes(module: torch.nn.Module) -> dict[str, torch.dtype]:
    return {name: tensor.dtype for name, tensor in module.state_dict().items()}


@pytest.mark.parametrize("way", ["round_trip", "load_state_dict", "data", "copy"])
def test_every_tensor_keeps_its_dtype(way: str) -> None:
    norm, before = mixed(), dtypes(mixed())
    state = {name: torch.ones_like(value) for name, value in norm.state_dict().items()}
    parameters.update(norm, state, way)
    assert dtypes(norm) == before
    assert all(torch.equal(value, state[name]) for name, value in norm.state_dict().items())


def test_a_trial_in_float32_leaves_no_float32_behind() -> None:
    worker = Worker("cpu")
    norm, before = mixed(), dtypes(mixed())
    worker.callee.target = norm
    with worker._in_single():
        assert norm.weight.dtype == torch.float32
        parameters.update(norm, norm.state_dict(), "round_trip")  # makes new buffers
    assert dtypes(norm) == before
