"""Models and tokenizers: from a folder, or a small Qwen3 of random weights with a vocabulary of
its own.

`logprobs` is the one forward pass of every training loop: it computes the last layer only where a
reply token was really chosen, which with a vocabulary of 150,000 is most of the memory of a step.
Rows are padded on the right and attention is causal, so no mask is needed: what is behind a token
never changes it. Not covered: sampling (generation.py), several processes (accelerate, in the
scripts)."""

from __future__ import annotations

import dataclasses
import hashlib
import tempfile
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers, trainers
from tokenizers import models as token_models
from torch import Tensor, nn

from kernel_lsp.agents.backbones.small import shape as compact_shape
from kernel_lsp.agents.prompt_encoding import tokenizer as compact_files
from kernel_lsp.errors import ConfigError
from kernel_lsp.records import Message
from trainer.algorithms.batches import Batch
from trainer.config import Lora, ModelConfig, Recipe
from trainer.policies import numerals

END_OF_TEXT, TURN, END_OF_TURN = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
WORDS = r" ?\p{L}+| ?\p{N}{1,4}| ?[^\s\p{L}\p{N}]+|\s+"
"""Words, numbers as kernels have them (128), runs of signs: a choice of a call is then mostly one
token."""
TEMPLATE = (
    "{%- for message in messages -%}{{ '<|im_start|>' + message.role + '\\n' + message.content "
    "+ '<|im_end|>\\n' }}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}"
)
CHUNK = 8192
"""Tokens whose last layer is computed at a time: 8192 x 150,000 float32 logits are 5 GB."""


def load(recipe: Recipe, texts: Iterable[str]) -> tuple[Any, Any]:
    """(model, tokenizer) to begin with. ``texts`` train the vocabulary of a model that is made.

    Raises ConfigError when the folder holds no model of ours to train.
    """
    model, tokenizer = _make_model(recipe, texts) if recipe.model.path is None else _read(recipe)
    if recipe.model.checkpointing:
        model.gradient_checkpointing_enable()
    model = model.float()
    # Without it vLLM takes the folder for an embedder.
    model.config.architectures = [type(model).__name__]
    model.config.dtype = torch.float32
    if recipe.lora is not None:
        model = with_lora(model, recipe.lora)
    return model, tokenizer


def _read(recipe: Recipe) -> tuple[Any, Any]:
    folder = Path(recipe.folder, recipe.model.path or "").expanduser()
    if not (folder / "config.json").is_file():
        cause = f"model.path: there is no config.json in {folder}"
        raise ConfigError(cause, "name the folder of a checkpoint; nothing is downloaded")
    options = {"local_files_only": True, "trust_remote_code": False}
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(folder), **options)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        str(folder),
        dtype=torch.float32,
        use_safetensors=True,
        attn_implementation=recipe.model.attention,
        **options,
    )
    return model, tokenizer


def _make_model(recipe: Recipe, texts: Iterable[str]) -> tuple[Any, Any]:
    if recipe.model.words == "compact":
        tokenizer = compact_tokenizer()
        size = compact_shape.NetworkShape().vocabulary
    else:
        tokenizer = make_tokenizer(texts, recipe.model.vocabulary, recipe.model.context)
        size = len(tokenizer)
    torch.manual_seed(recipe.seed)
    model = transformers.Qwen3ForCausalLM(make_config(recipe.model, size, tokenizer))
    if recipe.model.words == "compact":
        numerals.place(model.get_input_embeddings().weight.data, recipe.seed)
    return model, tokenizer


def compact_tokenizer() -> Any:
    """A tokenizer of transformers for the compact words of plans."""
    with tempfile.TemporaryDirectory() as folder:
        compact_files.write(Path(folder))
        return transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)


def make_config(shape: ModelConfig, vocabulary: int, tokenizer: Any = None) -> Any:
    """The configuration of a model of that shape for transformers."""
    return transformers.Qwen3Config(
        vocab_size=vocabulary,
        hidden_size=shape.hidden,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.key_heads,
        head_dim=shape.head,
        intermediate_size=shape.inner,
        max_position_embeddings=shape.context,
        tie_word_embeddings=shape.tied,
        bos_token_id=None,
        eos_token_id=getattr(tokenizer, "eos_token_id", None),
        pad_token_id=getattr(tokenizer, "pad_token_id", None),
        attn_implementation=shape.attention,
    )


def make_tokenizer(texts: Iterable[str], vocabulary: int, context: int) -> Any:
    """Byte-level BPE over these texts: every byte has a token, so no text is unknown."""
    tokenizer = Tokenizer(token_models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORDS), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    control = [
        AddedToken(name, special=True, normalized=False)
        for name in (END_OF_TEXT, TURN, END_OF_TURN)
    ]
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=control,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END_OF_TURN,
        pad_token=END_OF_TEXT,
        chat_template=TEMPLATE,
        model_max_length=context,
    )


def with_lora(model: Any, lora: Lora) -> Any:
    """The model with adapters; only these are trained."""
    import peft

    adapted = peft.LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules=list(lora.targets),
        task_type="CAUSAL_LM",
    )
    with warnings.catch_warnings():
        # peft 0.21 asks transformers 5.23 by an old name.
        warnings.simplefilter("ignore", FutureWarning)
        return peft.get_peft_model(model, adapted)


def vocabulary_hash(tokenizer: Any) -> str:
    """What tells one tokenizer from another: all tokens with their numbers, and the template."""
    text = repr(sorted(tokenizer.get_vocab().items(), key=lambda pair: pair[1])) + str(
        tokenizer.chat_template
    )
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def encode_prompt(tokenizer: Any, messages: Sequence[Message]) -> list[int]:
    """A prompt up to where the model's reply begins."""
    entries = [{"role": message.role.value, "content": message.text} for message in messages]
    found = tokenizer.apply_chat_template(
        entries, add_generation_prompt=True, enable_thinking=False, tokenize=True, return_dict=False
    )
    return [int(one) for one in found]


# --- log-probabilities ----------------------------------------------------------------------------


class Scorer(nn.Module):
    """The model as the loops call it, through one forward pass, so that DDP's and FSDP's hooks see
    it."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: Batch, temperature: float = 1.0) -> Tensor:
        """`logprobs` of the batch."""
        return logprobs(self.model, batch, temperature)


def logprobs(model: Any, batch: Batch, temperature: float = 1.0) -> Tensor:
    """Natural log-probabilities (R, T) of the chosen tokens, 0 where ``batch.mask`` is false.

    Where a choice was held to a list (``batch.allowed``), they are those among the list: what was
    sampled from. ``temperature`` is the sampler's."""
    causal = model.get_base_model() if hasattr(model, "get_base_model") else model
    states = causal.model(input_ids=batch.input_ids, use_cache=False).last_hidden_state
    # Not states[rows, places]: the gradient of that is sorted before it is added up.
    chosen = states.flatten(0, 1).index_select(0, batch.rows * states.shape[1] + batch.places)
    parts = [
        _choose_logprobs(
            _scale_logits(causal.lm_head(chosen[i : i + CHUNK]).float(), temperature),
            batch.part(i, i + CHUNK),
        )
        for i in range(0, chosen.shape[0], CHUNK)
    ]
    flat = torch.cat(parts) if parts else chosen.sum() * torch.zeros(0, device=chosen.device)
    return batch.folded(flat)


def _scale_logits(logits: Tensor, temperature: float) -> Tensor:
    """Not touched at 1: that would be another pass over the largest tensor of a step."""
    return logits if temperature == 1.0 else logits / temperature


def _choose_logprobs(logits: Tensor, part: tuple[Tensor, Tensor]) -> Tensor:
    """(n,) of ``targets`` (n,) among ``allowed`` (n, K), -1 padded; a row of -1 alone allows
    everything."""
    targets, allowed = part
    taken = logits.gather(1, targets[:, None]).squeeze(1)
    if allowed.shape[1] == 0:
        return taken - torch.logsumexp(logits, dim=1)
    free = (allowed < 0).all(dim=1)
    listed = logits.gather(1, allowed.clamp(min=0)).masked_fill(allowed < 0, float("-inf"))
    # A row of -inf has no gradient.
    listed = torch.where(free[:, None], torch.zeros_like(listed), listed)
    norm = torch.logsumexp(listed, dim=1)
    if free.any():
        norm = torch.where(free, torch.logsumexp(logits, dim=1), norm)
    return taken - norm


def num_parameters(shape: ModelConfig, vocabulary: int) -> int:
    """How many parameters a model of that shape has, without making it."""
    with torch.device("meta"):
        model = transformers.Qwen3ForCausalLM(make_config(shape, vocabulary))
    return sum(parameter.numel() for parameter in model.parameters())


def shape_of(config: Any, default: ModelConfig) -> ModelConfig:
    """The numbers of a config.json."""
    return dataclasses.replace(
        default,
        hidden=config.hidden_size,
        layers=config.num_hidden_layers,
        heads=config.num_attention_heads,
        key_heads=config.num_key_value_heads,
        head=getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
        inner=config.intermediate_size,
        vocabulary=config.vocab_size,
        context=config.max_position_embeddings,
        tied=bool(config.tie_word_embeddings),
    )
