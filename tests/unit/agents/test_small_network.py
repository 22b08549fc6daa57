"""The shipped policy's runtime against transformers, and against files that are not what they
should be."""

import json
from pathlib import Path

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")

import tiny_policy  # noqa: E402

from kernel_lsp.agents.backbones.small import shape, tensors  # noqa: E402
from kernel_lsp.agents.backbones.small.decoding import Decoder  # noqa: E402
from kernel_lsp.agents.backbones.small.network import KeyValueCache, Network  # noqa: E402
from kernel_lsp.agents.backbones.small.shape import UnfitCheckpoint  # noqa: E402
from kernel_lsp.agents.prompt_encoding import TOKENS, WORDS, grammar, tokenizer  # noqa: E402


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("policy")
    tiny_policy.write(made, dtype=torch.float32, **tiny_policy.TINY)
    return made


@pytest.fixture(scope="module")
def network(folder: Path) -> Network:
    return Network(shape.read(folder), tensors.load(folder / "model.safetensors"))


@pytest.fixture(scope="module")
def theirs(folder: Path):
    transformers = pytest.importorskip("transformers")
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def talk(length: int, seed: int = 0) -> "torch.Tensor":
    return torch.randint(2, len(WORDS), (length,), generator=torch.Generator().manual_seed(seed))


def test_logits_are_those_of_transformers(network: Network, theirs) -> None:
    tokens = talk(90)
    with torch.inference_mode():
        wanted = theirs(tokens[None]).logits[0]
    found = network(tokens, KeyValueCache(network.shape))
    assert wanted.abs().max() > 1.0  # or equality would say nothing
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


def test_a_talk_read_in_pieces_is_the_same_talk(network: Network) -> None:
    tokens = talk(700, seed=1)  # longer than the cache's first room
    whole, cache = network(tokens, KeyValueCache(network.shape)), KeyValueCache(network.shape)
    pieces = [network(part, cache) for part in tokens.split([500, 1, 150, 49])]
    torch.testing.assert_close(torch.cat(pieces), whole, rtol=1e-4, atol=1e-4)
    cache.keep(200)
    torch.testing.assert_close(
        network(tokens[200:230], cache), whole[200:230], rtol=1e-4, atol=1e-4
    )


def test_the_tokenizer_that_transformers_makes_reads_every_word(folder: Path) -> None:
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    words = list(WORDS[2:])
    text = "".join(f"{word} " for word in words)
    assert theirs(text)["input_ids"] == [TOKENS[word] for word in words]
    assert theirs.decode([TOKENS[word] for word in words]) == text
    assert theirs.eos_token_id == TOKENS["<end>"]


def test_greedy_takes_the_likeliest_valid_word_and_forced_ones_are_free(network: Network) -> None:
    start = grammar.chain(["apply_skill"], grammar.either(
        grammar.chain(["@0", "BLOCK_SIZE", "p10", "."]), grammar.chain(["@1", "."])
    ))  # fmt: skip
    tokens = talk(40, seed=2).tolist()
    said = Decoder(network).reply(tokens, grammar.table(start, TOKENS))
    logits = network(torch.tensor([*tokens, TOKENS["apply_skill"]]), KeyValueCache(network.shape))[
        -1
    ]
    known = torch.log_softmax(logits[[TOKENS["@0"], TOKENS["@1"]]], dim=0)
    best = ("@0", "@1")[int(known.argmax())]
    assert start.accepts([WORDS[token] for token in said.tokens])
    assert WORDS[said.tokens[1]] == best
    assert said.logprobs == pytest.approx(
        [0.0, float(known.max())] + [0.0] * (len(said.tokens) - 2), abs=1e-5
    )
    assert list(said.choices) == [1]


def test_another_talk_does_not_hear_the_one_before(network: Network) -> None:
    table = grammar.table(
        grammar.either(*(grammar.chain([f"K{n}", "."]) for n in range(9))), TOKENS
    )
    decoder, one, other = Decoder(network), talk(60, 3).tolist(), talk(45, 4).tolist()
    first = decoder.reply(one, table)
    decoder.reply([*one[:20], *other], table)
    again = decoder.reply(one, table)
    assert again.tokens == first.tokens
    assert again.logprobs == pytest.approx(first.logprobs, abs=1e-4)


def test_sampling_repeats_with_its_seed_and_follows_the_probabilities(network: Network) -> None:
    start = grammar.either(*(grammar.chain([f"K{n}", "."]) for n in range(4)))
    table, tokens, decoder = grammar.table(start, TOKENS), talk(30, 5).tolist(), Decoder(network)
    drawn = [
        decoder.reply(tokens, table, temperature=1.0, seed=seed).tokens[0] for seed in range(400)
    ]
    assert drawn[:20] == [
        decoder.reply(tokens, table, temperature=1.0, seed=s).tokens[0] for s in range(20)
    ]
    for token, logprob in decoder.reply(tokens, table).choices[0]:
        share = float(torch.tensor(logprob).exp())
        assert abs(drawn.count(token) / 400 - share) < 4 * (share * (1 - share) / 400) ** 0.5 + 1e-9


@pytest.mark.parametrize("keep", [0, 7, 9, 2000])
def test_a_cut_file_is_refused(folder: Path, tmp_path: Path, keep: int) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes((folder / "model.safetensors").read_bytes()[:keep])
    with pytest.raises(UnfitCheckpoint):
        tensors.load(file)


def test_offsets_beyond_the_file_are_refused(tmp_path: Path) -> None:
    header = json.dumps({"a": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}).encode()
    file = tmp_path / "model.safetensors"
    file.write_bytes(len(header).to_bytes(8, "little") + header + b"\0" * 12)
    with pytest.raises(UnfitCheckpoint, match="not in the file"):
        tensors.load(file)


def test_half_precision_is_read_as_it_was_written(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    wanted = torch.randn(3, 5)
    save_file({"a": wanted.bfloat16(), "b": wanted.half()}, tmp_path / "model.safetensors")
    found = tensors.load(tmp_path / "model.safetensors")
    assert torch.equal(found["a"], wanted.bfloat16().float())
    assert torch.equal(found["b"], wanted.half().float())


def test_weights_that_are_no_numbers_are_refused(folder: Path) -> None:
    weights = tensors.load(folder / "model.safetensors")
    weights["model.layers.1.mlp.down_proj.weight"][0, 0] = float("nan")
    with pytest.raises(UnfitCheckpoint, match="holds NaN"):
        Network(shape.read(folder), weights)


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("model_type", "llama", "model_type"),
        ("vocab_size", 64, "vocabulary"),
        ("hidden_size", 100000, "million parameters"),
        ("num_key_value_heads", 3, "do not fit"),
        ("rope_scaling", {"rope_type": "yarn"}, "rope_type"),
        ("num_hidden_layers", None, "cannot be read"),
    ],
)
def test_a_shape_that_cannot_be_run_is_refused(
    folder: Path, tmp_path: Path, key: str, value: object, words: str
) -> None:
    told = json.loads((folder / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**told, key: value}))
    with pytest.raises(UnfitCheckpoint, match=words):
        shape.read(tmp_path)


def test_the_shipped_shape_fits_the_wheel() -> None:
    made = shape.NetworkShape()
    assert made.parameters * 2 <= 60e6
    weights = tiny_policy.random_weights(shape.NetworkShape(**tiny_policy.TINY), 0)
    assert (
        sum(w.numel() for w in weights.values())
        == shape.NetworkShape(**tiny_policy.TINY).parameters
    )


def test_files_of_the_tokenizer_belong_to_this_version(folder: Path) -> None:
    told = json.loads((folder / "tokenizer.json").read_text())
    assert tokenizer.belongs(told)
    told["model"]["vocab"].popitem()
    assert not tokenizer.belongs(told)
