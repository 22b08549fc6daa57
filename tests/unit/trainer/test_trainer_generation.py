"""The sampler and the scorer agree: what was sampled, among what, with which probability."""

import math
from collections import Counter
from typing import Any

import pytest
import torch

from kernel_lsp.records import Message, Role
from trainer.algorithms import batches
from trainer.algorithms.batches import Example
from trainer.config import Lora, ModelConfig, Recipe, Rl
from trainer.policies import models
from trainer.rollouts.generation import Ask, LocalSampler, nucleus, tree
from trainer.training.runs import merge_adapters

pytestmark = pytest.mark.torch
SHAPE = ModelConfig(
    hidden=32, layers=2, heads=2, key_heads=1, head=16, inner=48, vocabulary=320, context=256
)
TEXTS = ["apply BLOCK 128 256 512 WARPS 1 2 4", "select fuse-rows split-reduction"]
CALLS = ("BLOCK 128 WARPS 1", "BLOCK 128 WARPS 4", "BLOCK 512 WARPS 1", "none")


@pytest.fixture(scope="module")
def made() -> tuple[Any, Any]:
    return models.load(Recipe(name="t", model=SHAPE, rl=Rl()), TEXTS)


def ask(text: str, choices: tuple[str, ...] | None = CALLS) -> Ask:
    return Ask(messages=(Message(role=Role.USER, text=text),), choices=choices)


def test_a_tree_of_replies() -> None:
    assert tree([[1, 2], [1, 3], [4]]) == {1: {2: {}, 3: {}}, 4: {}}


def test_every_reply_is_one_of_the_choices_and_its_forced_tokens_are_certain(
    made: tuple[Any, Any],
) -> None:
    found = LocalSampler(*made).generate(
        [ask("a"), ask("what now, a longer one"), ask("b")], seed=1
    )
    for one in found:
        assert one.text in CALLS and one.allowed is not None and one.logprobs is not None
        assert one.reply_ids[-1] == made[1].eos_token_id
        for token, among, value in zip(one.reply_ids, one.allowed, one.logprobs, strict=True):
            assert among is not None and token in among and (value == 0.0) == (len(among) == 1)


def test_the_scorer_finds_the_probabilities_that_the_sampler_told(made: tuple[Any, Any]) -> None:
    """Rows of different lengths, read in pieces with padding on the left, against one pass without
    any."""
    model, tokenizer = made
    asks = [ask("a"), ask("much longer " * 9), ask("b c", None), ask("d", ("none",))]
    found = LocalSampler(model, tokenizer, max_tokens=7, temperature=0.7).generate(asks, seed=3)
    examples = [
        Example(prompt=s.prompt_ids, reply=s.reply_ids, allowed=s.allowed, sampled=s.logprobs)
        for s in found
    ]
    batch = batches.collate(examples, tokenizer.pad_token_id)
    with torch.no_grad():
        again = models.logprobs(model, batch, temperature=0.7)
    assert batch.mask[3].sum() == 0 and batch.mask[2].sum() == len(found[2].reply_ids)
    assert torch.allclose(again[batch.mask], batch.sampled[batch.mask], atol=1e-4)


def test_a_nucleus_holds_the_likeliest_tokens_alone() -> None:
    logits = torch.log(torch.tensor([0.5, 0.15, 0.3, 0.05]))
    assert nucleus(logits, 0.75) == (0, 2) and nucleus(logits, 0.85) == (0, 1, 2)
    assert nucleus(logits, 0.01) == (0,)


def test_the_scorer_knows_what_a_nucleus_left_out(made: tuple[Any, Any]) -> None:
    model, tokenizer = made
    sampler = LocalSampler(model, tokenizer, max_tokens=6, temperature=0.8, top_p=0.5)
    (found,) = sampler.generate([ask("a", None)], seed=2)
    assert found.allowed is not None
    assert all(among and len(among) < len(tokenizer) for among in found.allowed)
    example = Example(
        prompt=found.prompt_ids,
        reply=found.reply_ids,
        allowed=found.allowed,
        sampled=found.logprobs,
    )
    batch = batches.collate([example], tokenizer.pad_token_id)
    with torch.no_grad():
        again = models.logprobs(model, batch, temperature=0.8)
    assert torch.allclose(again[batch.mask], batch.sampled[batch.mask], atol=1e-4)


def test_choices_are_drawn_as_often_as_their_probability(made: tuple[Any, Any]) -> None:
    """The product over a reply's branches is a distribution over replies, and sampling follows
    it."""
    sampler, count = LocalSampler(*made), 600
    drawn = sampler.generate([ask("x")] * count, seed=5)
    chances = {one.text: math.exp(sum(one.logprobs or ())) for one in drawn}
    assert sum(chances.values()) == pytest.approx(1.0, abs=1e-3)
    for text, seen in Counter(one.text for one in drawn).items():
        spread = math.sqrt(count * chances[text] * (1 - chances[text]))
        assert abs(seen - count * chances[text]) < 5 * spread


def test_the_same_seed_gives_the_same_replies_and_greedy_needs_none(made: tuple[Any, Any]) -> None:
    sampler = LocalSampler(*made)
    asks = [ask(str(number)) for number in range(8)]
    first = [one.text for one in sampler.generate(asks, seed=2)]
    assert first == [one.text for one in sampler.generate(asks, seed=2)]
    assert first != [one.text for one in sampler.generate(asks, seed=4)]
    greedy = [[one.text for one in sampler.generate(asks, seed=s, greedy=True)] for s in (1, 2)]
    assert greedy[0] == greedy[1]


def test_a_question_without_a_valid_reply_is_refused(made: tuple[Any, Any]) -> None:
    with pytest.raises(ValueError, match="0 valid replies"):
        LocalSampler(*made).generate([ask("x", ())], seed=0)


def test_gradients_are_finite_where_only_some_rows_are_held_to_a_list(
    made: tuple[Any, Any],
) -> None:
    model, tokenizer = made
    held = Example(prompt=(5, 6), reply=(7, 8), allowed=((7, 9), (8, 9, 10)))
    batch = batches.collate([held, Example(prompt=(5,), reply=(6, 7))], tokenizer.pad_token_id)
    models.logprobs(model, batch).sum().backward()  # type: ignore[no-untyped-call]
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    model.zero_grad(set_to_none=True)


def test_the_vocabulary_knows_every_byte(made: tuple[Any, Any]) -> None:
    text = 'µ × {"BLOCK":128}\n\x00 日本'
    ids = made[1](text, add_special_tokens=False)["input_ids"]
    assert made[1].decode(ids) == text


def test_another_vocabulary_has_another_hash(made: tuple[Any, Any]) -> None:
    other = models.make_tokenizer(["entirely other words here"], 320, 256)
    assert models.vocabulary_hash(made[1]) != models.vocabulary_hash(other)
    assert models.vocabulary_hash(made[1]) == models.vocabulary_hash(
        models.make_tokenizer(TEXTS, 320, 256)
    )


def test_a_merged_adapter_answers_like_the_model_with_the_adapter() -> None:
    recipe = Recipe(name="t", model=SHAPE, rl=Rl(), lora=Lora(rank=4, alpha=8.0))
    adapted, tokenizer = models.load(recipe, TEXTS)
    for name, parameter in adapted.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    plain, _ = models.load(Recipe(name="t", model=SHAPE, rl=Rl()), TEXTS)
    weights = merge_adapters({k: v.detach() for k, v in adapted.state_dict().items()}, 8.0 / 4)
    plain.load_state_dict(weights)
    batch = batches.collate([Example(prompt=(5, 6, 7), reply=(8, 9))], tokenizer.pad_token_id)
    with torch.no_grad():
        found, before = models.logprobs(adapted, batch), models.logprobs(plain, batch)
    assert torch.allclose(found, before, atol=1e-5)
