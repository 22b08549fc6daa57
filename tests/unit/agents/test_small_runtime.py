"""The policy's child, seen from the parent: real processes, valid replies, reasons where it
fails."""

import json
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")
import talks  # noqa: E402
import tiny_policy  # noqa: E402

from kernel_lsp.agents.backbones.small import shape, tensors  # noqa: E402
from kernel_lsp.agents.backbones.small.decoding import Decoder  # noqa: E402
from kernel_lsp.agents.backbones.small.network import Network  # noqa: E402
from kernel_lsp.agents.backbones.small.runtime import Runtime  # noqa: E402
from kernel_lsp.agents.prompt_encoding import (  # noqa: E402
    TOKENS,
    WORDS,
    Dialog,
    Situation,
    grammar,
    question,
    value_model,
)
from kernel_lsp.errors import BackboneError, ModelError  # noqa: E402
from kernel_lsp.records import CallCost  # noqa: E402


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch may be imported for long beside other tests."""
    monkeypatch.setattr("kernel_lsp.agents.backbones.small.runtime.LOAD_S", 240.0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("policy")
    tiny_policy.write(made, **tiny_policy.TINY)
    return made


async def test_replies_are_valid_and_those_of_the_decoder_and_its_life_has_an_end(
    folder: Path,
) -> None:
    here = Decoder(Network(shape.read(folder), tensors.load(folder / "model.safetensors")))
    runtime = Runtime(folder, sys.executable, reply_s=60.0)
    try:
        await runtime.warm()
        for seed in range(12):
            talk = talks.spoken(seed, replies=seed % 4)
            said = await runtime.reply(talk)
            assert talk.offer.accepts(said.words)
            wanted = here.reply(talk.tokens, grammar.table(talk.offer, TOKENS))
            assert said.words == tuple(WORDS[token] for token in wanted.tokens)
            assert said.logprob == pytest.approx(sum(wanted.logprobs), abs=1e-4)
            for choice in said.choices:
                assert said.words[choice.place] in choice.words
                assert sum(torch.tensor(choice.logprobs).exp()) == pytest.approx(1.0, abs=1e-4)
        sampled = [await runtime.reply(talk, temperature=1.0, seed=7) for _ in range(2)]
        assert sampled[0].words == sampled[1].words
        plan = value_model.plan(
            [], CallCost(host_s=3e-5, device_s=1e-5, replayed_s=2e-5, launches=3)
        )
        asked = value_model.PlanQuestion(
            situation=talk.situation, before=plan.cost, rule=plan, ranked_plan=plan
        )
        (choice,) = (await runtime.reply(asked)).choices
        assert (
            choice.words == question.GAINS
            and abs(value_model.expected_gain(choice.words, choice.logprobs)) < 1.4
        )
        child = runtime._child
        assert child is not None
        await child.process.end()
        assert talk.offer.accepts((await runtime.reply(talk)).words)  # it is there again
        runtime._reply_s = 0.0
        with pytest.raises(BackboneError, match="gave no answer"):  # too slow
            await runtime.reply(talks.spoken(1))
        runtime._reply_s = 60.0
        with pytest.raises(BackboneError, match="gave no answer"):
            # and so it is left alone for a while
            await runtime.reply(talks.spoken(1))
        runtime._lost_at -= 301.0
        runtime.python = "/nowhere/python"
        with pytest.raises(BackboneError, match="/nowhere/python"):
            await runtime.reply(talks.spoken(1))
    finally:
        await runtime.close()


async def test_a_model_that_gives_no_number_is_given_up_with_its_reason(
    folder: Path, tmp_path: Path
) -> None:
    from safetensors.torch import save_file

    weights = tensors.load(folder / "model.safetensors")
    # Finite, and so its check passes, but its logits are not.
    weights["model.norm.weight"].fill_(3e38)
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    save_file(weights, tmp_path / "model.safetensors")
    runtime, talk = Runtime(tmp_path, sys.executable, reply_s=60.0), talks.spoken(3)
    try:
        with pytest.raises(BackboneError, match="not finite"):
            await runtime.reply(talk)
        child, runtime.python = runtime._child, "/nowhere/python"
        assert child is not None
        await child.process.end()
        with pytest.raises(BackboneError, match="not finite"):  # at once: nobody is asked any more
            await runtime.reply(talk)
        assert runtime.trouble is not None and "models rollback" in str(runtime._given_up("x"))
    finally:
        await runtime.close()


async def test_what_must_not_be_loaded_starts_no_process(folder: Path) -> None:
    def refused() -> None:
        raise ModelError("its files changed", "fetch it again")

    runtime = Runtime(folder, "/nowhere/python", check=refused)
    with pytest.raises(BackboneError, match="its files changed"):
        await runtime.reply(talks.spoken(1))
    await runtime.close()


async def test_a_talk_that_is_too_long_is_refused_and_the_model_kept(folder: Path) -> None:
    runtime, talk = Runtime(folder, "/nowhere/python"), talks.spoken(1)
    talk.words += ["relu"] * 4000
    with pytest.raises(BackboneError, match="the dialog has grown"):
        await runtime.reply(talk)
    assert runtime.trouble is None
    await runtime.close()


def test_the_child_needs_torch_alone(folder: Path) -> None:
    """A user's project has nothing else: no transformers, tokenizers, safetensors or numpy of
    ours."""
    import subprocess

    code = (
        "import sys; before = set(sys.modules); import torch; torched = set(sys.modules)\n"
        "import kernel_lsp.agents.backbones.small.child\n"
        "new = {n.partition('.')[0] for n in set(sys.modules) - torched}\n"
        "print(sorted(new - set(sys.stdlib_module_names) - {'kernel_lsp', 'torch'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert json.loads(done.stdout.replace("'", '"')) == []


def test_an_empty_situation_has_something_to_say() -> None:
    from kernel_lsp.records import GraphView

    talk = Dialog(Situation(graph=GraphView(operations=()), sites=(), device="cuda"))
    assert talk.offer.words == ("stop",)
