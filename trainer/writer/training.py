"""A writer is trained: vocabulary, random weights, one schedule of two halves, in minutes.

The first half reads everything (questions with a small weight, replies, and plain Triton kernels
of `trainer.tasks.generated_kernels`), the second half only replies that passed the filters (data.py).
Batches are of a few fixed lengths, so little is padding. Rows that another process makes meanwhile
(data.Arriving) are read from the next epoch on. The state is saved about once a minute, and a run
that was ended goes on. Not covered: several GPUs, reinforcement (reinforcing.py)."""

from __future__ import annotations

import json
import math
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy
import torch
import transformers
from torch import Tensor

from kernel_lsp.files import replace_file
from kernel_lsp.records import Json
from trainer.tasks import generated_kernels
from trainer.writer import data, helpers, packing
from trainer.writer.dealing import SHARE, NameDealer
from trainer.writer.rows import WriterRow
from trainer.writer.short_form import END, PROGRAM, WRITE
from trainer.writer.split import WriterPart
from trainer.writer.tokens import IDIOMS, encode_all, idioms, train_tokenizer

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
    deal_names: bool = True
    """Names have other numbers each time that a row is read (dealing.py)."""
    seed: int = 0


@dataclass(frozen=True, slots=True)
class TokenRow:
    tokens: tuple[int, ...]
    asked: int
    """Tokens of the question; the rest is the reply."""


class Batches:
    """Rows in batches of one length each, in an order that the seed fixes."""

    def __init__(
        self,
        rows: Sequence[TokenRow],
        batch_tokens: int,
        pad: int,
        deal: NameDealer | None = None,
    ) -> None:
        self._pad, self._batch_tokens, self._deal = pad, batch_tokens, deal
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
            yield self._tensors(length, chosen, draw)

    def _tensors(
        self, length: int, rows: Sequence[TokenRow], draw: random.Random
    ) -> tuple[Tensor, Tensor]:
        tokens = torch.full((len(rows), length), self._pad)
        labels = torch.full((len(rows), length), IGNORED)
        for place, row in enumerate(rows):
            ids = numpy.array(row.tokens)
            if self._deal is not None and draw.random() < SHARE:
                ids = self._deal(ids, draw)
            ids = torch.from_numpy(ids)
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
    result = WriterOptimization(model, supply, folder, plan, device).run()
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
        "held_out": {
            part: _held_out(model, part_rows, tokenizer.pad_token_id, device)
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
    replies = [helpers.without(reply.text, shared) for row in rows for reply in row.replies]
    texts = [*(row.question for row in rows), *replies]
    size = plan.vocabulary - IDIOMS
    lines = idioms(replies, train_tokenizer(texts, size, LENGTHS[-1]))
    tokenizer = train_tokenizer(texts, size, LENGTHS[-1], lines)
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
        """Adds the training rows that have come since the last call."""
        self._add([row for row in self._arriving.take() if row.part is WriterPart.TRAIN])

    def held_out(self, rows: Sequence[WriterRow]) -> dict[str, list[TokenRow]]:
        """Token rows of the parts that are never learned from."""
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


class WriterOptimization:
    """The weights' way through what is supplied: all of it in the first half of the time, the
    filtered part in the second. Goes on where a run before it was cut off."""

    def __init__(
        self, model: Any, supply: Supply, folder: Path, plan: TrainPlan, device: str
    ) -> None:
        self.model, self.supply, self.plan, self.device = model, supply, plan, device
        self.optimizer = torch.optim.AdamW(
            model.parameters(), lr=plan.rate, betas=(0.9, 0.95), weight_decay=0.1
        )
        self.done = 0.0
        """Share of the time or of the epochs, whichever is further on."""
        self.step = self.tokens = 0
        self.curve: list[Json] = []
        self._state, self._pad = folder / STATE, supply.tokenizer.pad_token_id
        self._deal = NameDealer(supply.tokenizer) if plan.deal_names else None
        if self._state.is_file():
            self._load()
        self._begun = time.monotonic() - self.done * plan.seconds
        self._saved = time.monotonic()

    def run(self) -> Json:
        """Until the time is over; what the run came to."""
        draw = random.Random(f"{self.plan.seed} {self.step}")
        self.model.train()
        while self.done < 1:
            self._pass(draw)
        seconds = time.monotonic() - self._begun
        return {
            "steps": self.step,
            "tokens": self.tokens,
            "seconds": seconds,
            "tokens_per_s": self.tokens / seconds,
            "curve": self.curve,
        }

    @property
    def _reads_all(self) -> bool:
        return self.done < 0.5

    def _pass(self, draw: random.Random) -> None:
        """Once over the rows, unless the half or the time ends before."""
        begun_with_all = self._reads_all
        self.supply.grow()
        every = (*self.supply.first, *self.supply.second)
        need = self.plan.epochs * sum(len(row.tokens) for row in every) / 2
        rows = self.supply.first if begun_with_all else self.supply.second
        batches = Batches(rows, self.plan.batch_tokens, self._pad, self._deal)
        for batch, labels in batches.epoch(draw):
            loss = self._take_step(batch, labels)
            self.step, self.tokens = self.step + 1, self.tokens + int((batch != self._pad).sum())
            elapsed = time.monotonic() - self._begun
            self.done = max(elapsed / self.plan.seconds, self.tokens / need)
            self._report(loss)
            if self.done >= 1 or self._reads_all != begun_with_all:
                break

    def _take_step(self, tokens: Tensor, labels: Tensor) -> Tensor:
        tokens, labels = (one.to(self.device, non_blocking=True) for one in (tokens, labels))
        rate = self.plan.rate * min(1.0, (self.step + 1) / self.plan.warmup) * _decay(self.done)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        weights = (labels != IGNORED).float()
        if self._reads_all:
            questions = QUESTION_WEIGHT * (tokens != self._pad).float()
            weights = torch.where(weights > 0, 1.0, questions)
        with torch.autocast(self.device, torch.bfloat16, enabled=self.device == "cuda"):
            logits = self.model(input_ids=tokens, use_cache=False).logits
        loss = _weighted(logits, tokens, weights)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    def _report(self, loss: Tensor) -> None:
        if self.step % 20 == 1:
            point = {"loss": round(float(loss), 4), "done": round(self.done, 3)}
            self.curve.append({"step": self.step, **point})
            print(json.dumps(self.curve[-1]), flush=True)
        if time.monotonic() - self._saved > SAVE_S:
            self._saved = time.monotonic()
            self._save()

    def _load(self) -> None:
        state = torch.load(self._state, map_location=self.device, weights_only=True)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.done, self.curve = state["done"], state["curve"]
        self.step, self.tokens = state["step"], state["tokens"]

    def _save(self) -> None:
        state = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "done": self.done,
            "step": self.step,
            "tokens": self.tokens,
            "curve": self.curve,
        }
        fresh = self._state.with_name(f"{STATE}.new")
        torch.save(state, fresh)
        fresh.replace(self._state)


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


def _held_out(model: Any, rows: Sequence[TokenRow], pad: int, device: str) -> Json:
    """-ln p of replies: the mean over tokens, and over whole replies, which is what decides whether
    one is right. ``likeliest``: the share of replies that are the likeliest one token for token."""
    model.eval()
    lost: list[float] = []
    tokens, likeliest = 0, 0
    with torch.no_grad(), torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
        for inputs, labels in Batches(rows, 16_384, pad).epoch(random.Random(0)):
            logits = model(input_ids=inputs.to(device), use_cache=False).logits[:, :-1].float()
            wanted = labels[:, 1:].to(device)
            losses = torch.nn.functional.cross_entropy(
                logits.transpose(1, 2), wanted, ignore_index=IGNORED, reduction="none"
            )
            lost += losses.sum(1).tolist()
            tokens += int((wanted != IGNORED).sum())
            hits = (logits.argmax(-1) == wanted) | (wanted == IGNORED)
            likeliest += int(hits.all(1).sum())
    if not lost:
        return {"replies": 0}
    return {
        "replies": len(lost),
        "loss_of_token": sum(lost) / tokens,
        "loss_of_reply": sum(lost) / len(lost),
        "median_loss_of_reply": sorted(lost)[len(lost) // 2],
        "likeliest": likeliest / len(lost),
    }


def _spread(values: Sequence[int]) -> Json:
    ordered = sorted(values) or [0]
    return {
        "median": ordered[len(ordered) // 2],
        "p90": ordered[int(0.9 * (len(ordered) - 1))],
        "most": ordered[-1],
    }
