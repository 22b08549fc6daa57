"""The trainer's rollouts by a real vLLM: replies and numbers of its own sampler, also after new
weights."""

from dataclasses import replace
from pathlib import Path

import pytest

pytestmark = [pytest.mark.vllm, pytest.mark.torch, pytest.mark.timeout(900)]


def test_vllm_samples_from_the_weights_of_the_step(vllm_environment: Path, tmp_path: Path) -> None:
    import torch

    from trainer.config import ModelConfig, Recipe, Rl, RolloutsConfig
    from trainer.policies import models
    from trainer.rollouts.generation import Ask, LocalSampler
    from trainer.rollouts.serving import Served
    from trainer.rollouts.worlds import TableWorld
    from trainer.tasks import spaces

    world = TableWorld(spaces.synthetic(4, 0))
    shape = ModelConfig(
        hidden=128, layers=2, heads=4, key_heads=2, head=32, inner=256, vocabulary=500, context=512
    )
    model, tokenizer = models.load(Recipe(name="t", model=shape, rl=Rl()), world.texts())
    told = RolloutsConfig(
        engine="vllm", gpus=0, python=str(vllm_environment / "python"), max_tokens=16
    )
    held = [world.selection(name) for name in world.names]
    asks: list[Ask] = held + [replace(ask, choices=None) for ask in held]
    served, local = (
        Served(model.config, tokenizer, tmp_path, told, 0),
        LocalSampler(model, tokenizer, max_tokens=16),
    )
    try:
        for version in range(2):
            served.refresh(model.state_dict(), version)
            found = served.generate(asks, 1, greedy=True)
            expected = local.generate(asks, 1, greedy=True)
            for mine, theirs in zip(expected, found, strict=True):
                assert (mine.reply_ids, mine.allowed or None) == (
                    theirs.reply_ids,
                    theirs.allowed or mine.allowed,
                )
                assert theirs.version == version and mine.logprobs and theirs.logprobs
                assert torch.allclose(
                    torch.tensor(mine.logprobs), torch.tensor(theirs.logprobs), atol=1e-4
                )
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.add_(torch.randn_like(parameter) * 0.05)
        # Sampled, not greedy.
        assert len({one.text for one in served.generate(held * 8, 3)}) > len(held)
    finally:
        served.close()
