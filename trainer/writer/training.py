"""A writer is trained: vocabulary, random weights, one schedule of two halves, in minutes.

The first half reads everything (questions with a small weight, replies, and plain Triton kernels
of `trainer.generated_kernels`), the second half only replies that passed the filters (data.py).
Batches are of a few fixed lengths, so little is padding. Rows that another process makes meanwhile
(data.Arriving) are read from the next epoch on. The state is saved about once a minute, and a run
that was ended goes on. Not covered: several GPUs, reinforcement."""

from __future__ import annotations

import json
import math
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor

from kernel_lsp.files import replace_file
from kernel_lsp.records import Json
from trainer import generated_kernels
from trainer.writer import data, helpers, packing
from trainer.writer.rows import WriterRow
from trainer.writer.short_form import END, PROGRAM, WRITE
from trainer.writer.split import WriterPart
from trainer.writer.tokens import encode_all, train_tokenizer

LENGTHS = (384, 768, 1152, 1600, 2048)
"""Tokens of a batch's rows; longer rows are left out and counted."""
QUESTION_WEIGHT = 0.2
SAVE_S = 60.0
IGNORED = -100
MODEL, START, STATE, RESULT = "model", "start", "state.pt", "train.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainPlan:
    hidden: int = 384
    layers: int = 10
    heads: int = 6
    key_heads: int = 3
    inner: int = 1024
    vocabulary: int = 4096
    seconds: float = 180.0
    """Wall time of all steps."""
    epochs: float = 12.0
    """Over the training part, at most."""
    batch_tokens: int = 32_768
    rate: float = 1.5e-3
    warmup: int = 50
    kernels: int = 2000
    """Plain Triton kernels that the first half reads too."""
    least_tasks: int = 0
    """That the vocabulary is made of, where another process still makes data."""
    wait_seconds: float = 120.0
    """For these."""
    seed: int = 0


@dataclass(frozen=True, slots=True)
class TokenRow:
    tokens: tuple[int, ...]
    asked: int
    """Tokens of the question; the rest is the reply."""


class Batches:
    """Rows in batches of one length each, in an order that the seed fixes."""

    def __init__(self, rows: Sequence[TokenRow], batch_tokens: int, pad: int) -> None:
        self._pad, self._batch_tokens = pad, batch_tokens
        self._by_length: dict[int, list[TokenRow]] = {length: [] for length in LENGTHS}
        for row in rows:
            length = next(length for length in LENGTHS if len(row.tokens) <= length)
            self._by_length[length].append(row)

    def epoch(self, draw: random.Random) -> Iterator[tuple[Tensor, Tensor]]:
        """(tokens, labels of the reply), both (rows, length)."""
        batches = []
        for length, rows in self._by_length.items():
            mixed = draw.sample(rows, len(rows))
            size = max(1, self._batch_tokens // length)
            batches += [(length, mixed[at : at + size]) for at in range(0, len(mixed), size)]
        draw.shuffle(batches)
        for length, chosen in batches:
            yield self._tensors(length, chosen)

    def _tensors(self, length: int, rows: Sequence[TokenRow]) -> tuple[Tensor, Tensor]:
        tokens = torch.full((len(rows), length), self._pad)
        labels = torch.full((len(rows), length), IGNORED)
        for place, row in enumerate(rows):
            ids = torch.tensor(row.tokens)
            tokens[place, : len(ids)] = ids
            labels[place, row.asked : len(ids)] = ids[row.asked :]
        return tokens, labels


def run(folder: Path, plan: TrainPlan, device: str, start: Path | None = None) -> Json:
    """Train on the data in ``folder``; writes ``model/`` and then ``train.json``. ``start``: what
    packing.py has kept of an earlier run, whose weights, vocabulary and helpers go on."""
    if (folder / RESULT).is_file():
        return dict(json.loads((folder / RESULT).read_text("utf-8")))
    torch.manual_seed(plan.seed)
    torch.backends.cuda.enable_cudnn_sdp(False)  # it makes a plan for every new length
    rows = _enough(folder, plan)
    training = [row for row in rows if row.part is WriterPart.TRAIN]
    model, tokenizer, shared = _new(training, plan) if start is None else _earlier(folder, start)
    model.to(device)
    supply = Supply(folder, training, tokenizer, shared, plan)
    held_out = supply.held_out(rows)
    result = _optimize(model, supply, folder, plan, device)
    result |= {
        "plan": asdict(plan),
        "parameters": sum(p.numel() for p in model.parameters()),
        "vocabulary": len(tokenizer),
        "helpers": sorted(shared),
        "tasks": supply.tasks,
        "rows_first_half": len(supply.first),
        "rows_second_half": len(supply.second),
        "rows_too_long": supply.too_long,
        "tokens_of_replies": _spread([len(r.tokens) - r.asked for r in supply.second]),
        "tokens_of_rows": _spread([len(r.tokens) for r in supply.second]),
        "held_out_loss": {
            part: _loss_of(model, part_rows, tokenizer.pad_token_id, device)
            for part, part_rows in held_out.items()
        },
    }
    model.to(torch.bfloat16).save_pretrained(folder / MODEL, max_shard_size="15MB")
    tokenizer.save_pretrained(folder / MODEL)
    helpers.write(folder / MODEL, shared)
    replace_file(folder / RESULT, (json.dumps(result, indent=1) + "\n").encode())
    return result


def _enough(folder: Path, plan: TrainPlan) -> list[WriterRow]:
    rows, end = data.read(folder), time.monotonic() + plan.wait_seconds
    while sum(row.part is WriterPart.TRAIN for row in rows) < plan.least_tasks:
        if time.monotonic() > end:
            break
        time.sleep(5.0)
        rows = data.read(folder)
    return rows


def _new(rows: Sequence[WriterRow], plan: TrainPlan) -> tuple[Any, Any, helpers.Helpers]:
    shared = helpers.find(reply.text for row in rows for reply in row.replies)
    texts = [
        row.question + "".join(helpers.without(reply.text, shared) for reply in row.replies)
        for row in rows
    ]
    tokenizer = train_tokenizer(texts, plan.vocabulary, LENGTHS[-1])
    return make_model(plan, tokenizer), tokenizer, shared


def _earlier(folder: Path, start: Path) -> tuple[Any, Any, helpers.Helpers]:
    packing.unpack(start, folder / START)
    options = {"local_files_only": True}
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder / START, dtype=torch.float32, **options
    )
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder / START, **options)
    return model, tokenizer, helpers.read(folder / START)


def make_model(plan: TrainPlan, tokenizer: Any) -> Any:
    """Random weights of a Llama: what transformers and vLLM load."""
    config = transformers.LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=plan.hidden,
        num_hidden_layers=plan.layers,
        num_attention_heads=plan.heads,
        num_key_value_heads=plan.key_heads,
        intermediate_size=plan.inner,
        max_position_embeddings=2 * LENGTHS[-1],
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        attn_implementation="sdpa",
    )
    return transformers.LlamaForCausalLM(config)


class Supply:
    """What there is to learn from, in tokens; grows while another process makes more."""

    def __init__(
        self,
        folder: Path,
        rows: Sequence[WriterRow],
        tokenizer: Any,
        shared: helpers.Helpers,
        plan: TrainPlan,
    ) -> None:
        self.tokenizer, self._helpers = tokenizer, shared
        self._arriving, self._draw = data.Arriving(folder), random.Random(plan.seed)
        self._known: set[str] = set()
        self.first: list[TokenRow] = []
        self.second: list[TokenRow] = []
        self.tasks = self.too_long = 0
        kernels = [
            generated_kernels.build(plan.seed, number).source.partition("@triton.jit")[2]
            for number in range(plan.kernels)
        ]
        self.first += self._tokenize(
            [(f"{PROGRAM}\n{WRITE}\n", f"@triton.jit{text}") for text in kernels]
        )
        self._add(rows)

    def grow(self) -> None:
        self._add([row for row in self._arriving.take() if row.part is WriterPart.TRAIN])

    def held_out(self, rows: Sequence[WriterRow]) -> dict[str, list[TokenRow]]:
        """Of the parts that are never learned from."""
        return {
            part.value: self._tokenize(
                [
                    (row.question, reply.text)
                    for row, reply in data.filtered([row for row in rows if row.part is part])[:200]
                ]
            )
            for part in (WriterPart.COMPOSITIONS, WriterPart.OPERATORS)
        }

    def _add(self, rows: Sequence[WriterRow]) -> None:
        fresh = [row for row in rows if row.plain not in self._known]
        self._known.update(row.plain for row in fresh)
        self.tasks += len(fresh)
        self.first += self._tokenize(
            [
                (row.question if self._draw.random() < 0.7 else row.plain, reply.text)
                for row in fresh
                for reply in row.replies
            ]
        )
        self.second += self._tokenize(
            [
                (asked, reply.text)
                for row, reply in data.filtered(fresh)
                for asked in (row.question, row.plain)
            ]
        )

    def _tokenize(self, texts: Sequence[tuple[str, str]]) -> list[TokenRow]:
        """Of (question, reply), those that are short enough."""
        asked = encode_all(self.tokenizer, [question for question, _ in texts])
        replies = encode_all(
            self.tokenizer, [helpers.without(reply, self._helpers) + END for _, reply in texts]
        )
        found = [TokenRow((*q, *r), len(q)) for q, r in zip(asked, replies, strict=True)]
        kept = [one for one in found if len(one.tokens) <= LENGTHS[-1]]
        self.too_long += len(found) - len(kept)
        return kept


def _optimize(model: Any, supply: Supply, folder: Path, plan: TrainPlan, device: str) -> Json:
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=plan.rate, betas=(0.9, 0.95), weight_decay=0.1
    )
    done, curve = 0.0, list[Json]()
    step, tokens = 0, 0
    if (folder / STATE).is_file():
        state = torch.load(folder / STATE, map_location=device, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        done, step, tokens, curve = state["done"], state["step"], state["tokens"], state["curve"]
    pad = supply.tokenizer.pad_token_id
    begun, saved = time.monotonic() - done * plan.seconds, time.monotonic()
    draw = random.Random(f"{plan.seed} {step}")
    model.train()
    while done < 1:
        reads_all = done < 0.5
        supply.grow()
        need = plan.epochs * sum(len(row.tokens) for row in (*supply.first, *supply.second)) / 2
        rows = supply.first if reads_all else supply.second
        for batch, labels in Batches(rows, plan.batch_tokens, pad).epoch(draw):
            loss = _step(model, optimizer, (batch, labels), pad, device, plan, done, step)
            step, tokens = step + 1, tokens + int((batch != pad).sum())
            done = max((time.monotonic() - begun) / plan.seconds, tokens / need)
            if step % 20 == 1:
                curve.append({"step": step, "loss": round(float(loss), 4), "done": round(done, 3)})
                print(json.dumps(curve[-1]), flush=True)
            if time.monotonic() - saved > SAVE_S:
                saved = time.monotonic()
                _save(folder, model, optimizer, done, step, tokens, curve)
            if done >= 1 or (done >= 0.5) is reads_all:
                break
    seconds = time.monotonic() - begun
    return {
        "steps": step,
        "tokens": tokens,
        "seconds": seconds,
        "tokens_per_s": tokens / seconds,
        "curve": curve,
    }


def _step(
    model: Any,
    optimizer: Any,
    batch: tuple[Tensor, Tensor],
    pad: int,
    device: str,
    plan: TrainPlan,
    done: float,
    step: int,
) -> Tensor:
    tokens, labels = (one.to(device, non_blocking=True) for one in batch)
    rate = plan.rate * min(1.0, (step + 1) / plan.warmup) * _decay(done)
    for group in optimizer.param_groups:
        group["lr"] = rate
    weights = (labels != IGNORED).float()
    if done < 0.5:
        weights = torch.where(weights > 0, 1.0, QUESTION_WEIGHT * (tokens != pad).float())
    with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
        logits = model(input_ids=tokens, use_cache=False).logits
    loss = _weighted(logits, tokens, weights)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss.detach()


def _weighted(logits: Tensor, tokens: Tensor, weights: Tensor) -> Tensor:
    """Mean of -ln p of the next tokens, weighted."""
    lost = torch.nn.functional.cross_entropy(
        logits[:, :-1].flatten(0, 1).float(), tokens[:, 1:].flatten(), reduction="none"
    )
    counted = weights[:, 1:].flatten()
    return (lost * counted).sum() / counted.sum().clamp_min(1.0)


def _decay(done: float) -> float:
    """Cosine down to a twentieth."""
    return 0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * min(1.0, done)))


def _save(
    folder: Path, model: Any, optimizer: Any, done: float, step: int, tokens: int, curve: list[Json]
) -> None:
    state = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "done": done,
        "step": step,
        "tokens": tokens,
        "curve": curve,
    }
    torch.save(state, folder / f"{STATE}.new")
    (folder / f"{STATE}.new").replace(folder / STATE)


def _loss_of(model: Any, rows: Sequence[TokenRow], pad: int, device: str) -> float | None:
    """Mean over tokens of replies."""
    if not rows:
        return None
    model.eval()
    total, count = 0.0, 0
    with torch.no_grad(), torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
        for tokens, labels in Batches(rows, 16_384, pad).epoch(random.Random(0)):
            inputs, wanted = tokens.to(device), labels.to(device)
            weights = (wanted != IGNORED).float()
            logits = model(input_ids=inputs, use_cache=False).logits
            size = int(weights[:, 1:].sum())
            total, count = total + float(_weighted(logits, inputs, weights)) * size, count + size
    return total / max(1, count)


def _spread(values: Sequence[int]) -> Json:
    ordered = sorted(values) or [0]
    return {
        "median": ordered[len(ordered) // 2],
        "p90": ordered[int(0.9 * (len(ordered) - 1))],
        "most": ordered[-1],
    }
