"""A writer is reinforced by the gate's verdicts: `python -m trainer.writer rl`.

A step draws tasks that are kept for it (split.py), samples a group of replies to each, judges them on every
core, asks failed ones again with their failure (``turns`` above 1), and makes a few epochs of
clipped updates against the weights that sampled, with a pull to the supervised weights:

    loss = PPO's clipped loss (losses.py) + kl * k3 (divergence.py)

Everything random is decided by seed and step. Replies of the step under way and all verdicts of the
gate are on disk, so a run that is killed at any point goes on: nothing is sampled or judged again.
A step without any difference in rewards changes no weight. Not covered: several GPUs."""

from __future__ import annotations

import gc
import json
import math
import random
import shutil
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

import torch
import transformers
from torch import Tensor

from kernel_lsp.errors import ConfigError
from kernel_lsp.files import replace_file
from kernel_lsp.records import Json
from trainer.algorithms import batches, divergence, losses
from trainer.algorithms.advantages import EPSILON
from trainer.algorithms.batches import Example
from trainer.policies import models
from trainer.writer import data, helpers, short_form, turns
from trainer.writer.judging import COMPILED, KnownVerdicts, WriterJudge, WriterVerdict, WrittenCase
from trainer.writer.rows import WriterRow
from trainer.writer.sampling import SamplingPlan, text_of, write
from trainer.writer.split import WriterPart
from trainer.writer.tokens import encode
from trainer.writer.training import LENGTHS, MODEL
from trainer.writer.turns import WriterTurn

FOLDER, STATE, CURVE, VERDICTS = "rl", "state.pt", "rl.jsonl", "verdicts.jsonl"
RESULT = "rl.json"
WINDOW = 5
"""Steps at the beginning and at the end that the result compares."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ReinforcementPlan:
    steps: int = 60
    seconds: float = 420.0
    """Wall time of all steps."""
    pool: int = 2000
    """Tasks that are drawn from, those with the shortest rewrites."""
    tasks: int = 64
    """Of a step."""
    group: int = 16
    turns: int = 1
    reward: str = "graded"
    advantage: str = "trloo"
    gamma: float | None = None
    """None: as published for the advantage."""
    rate: float = 5e-5
    warmup: int = 2
    epochs: int = 2
    kl: float = 0.02
    clip: float = 1.0
    """Of the gradient's norm."""
    batch_tokens: int = 32_768
    judge_seconds: float = 60.0
    """Of one turn's judging; what is not judged then has no reward."""
    at_once: int = 14
    sampling: SamplingPlan = field(default_factory=lambda: SamplingPlan(temperature=1.0, top_p=1.0))
    """With ``top_p`` 1: else the ratios are not those of the sampler."""
    seed: int = 0


class ReplyJudge(Protocol):
    known: dict[str, WriterVerdict]

    async def judge(self, cases: Sequence[WrittenCase], end: float, *, timed: bool = False) -> None:
        """Judges the cases until ``end``; ``timed``: their speed too."""

    async def close(self) -> None:
        """Ends what judges."""


async def run(
    folder: Path, plan: ReinforcementPlan, device: str, judge: ReplyJudge | None = None
) -> Json:
    """Reinforce the model in ``folder``; writes ``rl/model`` and then ``rl.json``. ``judge``: None
    takes the gate."""
    if (folder / RESULT).is_file():
        return dict(json.loads((folder / RESULT).read_text("utf-8")))
    (folder / FOLDER).mkdir(exist_ok=True)
    own = judge or WriterJudge(
        "cuda" if device == "cuda" else "interpreter",
        plan.at_once,
        helpers.read(folder / MODEL),
        KnownVerdicts(folder / FOLDER / VERDICTS),
        folder / COMPILED,
    )
    try:
        found = WriterReinforcement(folder, plan, device, own)
        await found.run()
    finally:
        await own.close()
    result = found.result()
    found.save_model()
    replace_file(folder / RESULT, (json.dumps(result, indent=1) + "\n").encode())
    return result


def load_model(folder: Path, device: str) -> tuple[Any, Any]:
    """(model in float32, tokenizer). Raises OSError where none was trained."""
    options = {"local_files_only": True}
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, **options)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, **options
    )
    return model.to(device), tokenizer


def again(row: WriterRow, reply: str, verdict: WriterVerdict) -> str:
    """The question of a further turn, with what became of the first."""
    heard = row.names.message(turns.failure_of(verdict))
    return short_form.ask_again(row.question, short_form.TriedRewrite(reply=reply, heard=heard))


class WriterReinforcement:
    def __init__(
        self, folder: Path, plan: ReinforcementPlan, device: str, judge: ReplyJudge
    ) -> None:
        torch.backends.cuda.enable_cudnn_sdp(False)  # it makes a plan for every new length
        self._folder, self.plan, self._device, self._judge = folder, plan, device, judge
        self._model, self._tokenizer = load_model(folder / MODEL, device)
        self._frozen = load_model(folder / MODEL, device)[0].eval().requires_grad_(False)
        self._optimizer = torch.optim.AdamW(
            self._model.parameters(), lr=plan.rate, betas=(0.9, 0.95), weight_decay=0.0
        )
        self._rows = data.shortest(data.read(folder), WriterPart.REINFORCED, plan.pool)
        if not self._rows:
            raise ConfigError(
                "no task is kept for reinforcement",
                "make more data: one task in eight is kept (trainer/writer/split.py)",
            )
        self._by_name = {row.name: row for row in self._rows}
        self.step, self._spent = 0, 0.0
        self._restore()

    async def run(self) -> None:
        """Steps until all are done or another would probably not end in time."""
        last = 0.0
        while self.step < self.plan.steps and self._spent + last <= self.plan.seconds:
            begun = time.monotonic()
            entry = await self._take_step()
            last = time.monotonic() - begun
            self.step, self._spent = self.step + 1, self._spent + last
            self._log({"step": self.step, **entry, "seconds": round(last, 2)})
            self._save()

    # --- one step -----------------------------------------------------------------------------

    async def _take_step(self) -> Json:
        begun = time.monotonic()
        written = await self._rollouts()
        rolled = time.monotonic()
        record = turns.shares(written, self.plan.reward)
        record |= self.learn(
            turns.advantages_of(written, self.plan.reward, self.plan.advantage, self.plan.gamma)
        )
        record["seconds_rollouts"] = round(rolled - begun, 2)
        return record

    async def _rollouts(self) -> list[WriterTurn]:
        """All turns of a step, judged as far as the time goes."""
        draw = random.Random(f"{self.plan.seed}/{self.step}")
        chosen = draw.sample(self._rows, min(self.plan.tasks, len(self._rows)))
        asked = [
            (row.name, member, row.question) for row in chosen for member in range(self.plan.group)
        ]
        found: list[WriterTurn] = []
        for number in range(self.plan.turns):
            judged = await self._judged(self._written(number, asked))
            found += judged
            asked = [
                (turn.task, turn.member, again(self._by_name[turn.task], turn.text, turn.verdict))
                for turn in judged
                if turn.verdict is not None and turns.failed(turn)
            ]
        return found

    def _written(self, turn: int, asked: Sequence[tuple[str, int, str]]) -> list[WriterTurn]:
        """Replies to (task, member, question), from disk where a killed run had written them."""
        prompts = [tuple(encode(self._tokenizer, question)) for _, _, question in asked]
        file = self._folder / FOLDER / f"turn-{turn}.json"
        kept = json.loads(file.read_text("utf-8")) if file.is_file() else {}
        if kept.get("step") != self.step:
            torch.manual_seed(self._seed(turn))
            fitting = [prompt[: LENGTHS[-1]] for prompt in prompts]
            replies = write(
                self._model, self._tokenizer, fitting, self.plan.sampling, math.inf, sampled=True
            )
            kept = {"step": self.step, "replies": replies}
            replace_file(file, json.dumps(kept).encode())
        return [
            WriterTurn(
                task=task,
                member=member,
                turn=turn,
                prompt=prompt,
                reply=tuple(reply),
                text=text_of(self._tokenizer, reply),
            )
            for (task, member, _), prompt, reply in zip(
                asked, prompts, kept["replies"], strict=True
            )
            if reply and len(prompt) <= LENGTHS[-1]
        ]

    def _seed(self, turn: int) -> int:
        return random.Random(f"{self.plan.seed}/{self.step}/{turn}").randrange(2**31)

    async def _judged(self, written: Sequence[WriterTurn]) -> list[WriterTurn]:
        """With verdicts; right ones are timed where the reward wants it."""
        if self._device == "cuda":  # what writing kept for itself is the judges' now
            gc.collect()
            torch.cuda.empty_cache()
        cases = [WrittenCase(self._by_name[turn.task], turn.text) for turn in written]
        end = time.monotonic() + self.plan.judge_seconds
        await self._judge.judge(cases, end)
        if self.plan.reward in turns.TIMED:
            known = self._judge.known
            right = [case for case in cases if case.key in known and known[case.key].right]
            await self._judge.judge(right, end + self.plan.judge_seconds, timed=True)
        return [
            replace(turn, verdict=self._judge.known.get(case.key))
            for turn, case in zip(written, cases, strict=True)
        ]

    # --- the update ---------------------------------------------------------------------------

    def learn(self, rows: Sequence[tuple[WriterTurn, float]]) -> Json:
        """Updates of one step; none where no advantage differs from zero."""
        examples = [
            Example(prompt=turn.prompt, reply=turn.reply, advantage=value) for turn, value in rows
        ]
        record: Json = {"rows": len(examples), "updates": 0}
        if not examples:
            return record
        parts = list(batches.parts(examples, self.plan.batch_tokens))
        packed = [
            batches.collate([examples[place] for place in part], self._tokenizer.pad_token_id).to(
                self._device
            )
            for part in parts
        ]
        with torch.no_grad():
            old = [self._logprobs(self._model, batch) for batch in packed]
            frozen = [self._logprobs(self._frozen, batch) for batch in packed]
        record |= _measured(packed, old, frozen)
        if all(abs(value) < EPSILON for _, value in rows):  # rounding is no difference
            return record
        for _ in range(self.plan.epochs):
            record |= self._epoch(packed, old, frozen)
            record["updates"] += 1
        return record

    def _epoch(
        self, packed: Sequence[batches.Batch], old: Sequence[Tensor], frozen: Sequence[Tensor]
    ) -> Json:
        """One step of the optimizer over all parts."""
        rows = sum(batch.mask.shape[0] for batch in packed)
        whole = torch.ones(rows, 1, dtype=torch.bool, device=self._device)
        total, clipped, tokens = 0.0, 0, 0
        for batch, before, start in zip(packed, old, frozen, strict=True):
            logprobs = self._logprobs(self._model, batch)
            found = losses.clipped_loss(logprobs, before, batch.advantages)
            value = found.loss + self.plan.kl * divergence.k3(logprobs, start)
            loss = losses.constant_length(value, batch.mask, whole)
            loss.backward()
            total += float(loss.detach())
            clipped += int((found.clipped & batch.mask).sum())
            tokens += int(batch.mask.sum())
        norm = float(torch.nn.utils.clip_grad_norm_(self._model.parameters(), self.plan.clip))
        if math.isfinite(total) and math.isfinite(norm):
            for group in self._optimizer.param_groups:
                group["lr"] = self.plan.rate * min(1.0, (self.step + 1) / (self.plan.warmup + 1))
            self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        return {"loss": total, "gradient_norm": norm, "clipped": clipped / max(1, tokens)}

    def _logprobs(self, model: Any, batch: batches.Batch) -> Tensor:
        with torch.autocast(self._device, torch.bfloat16, enabled=self._device == "cuda"):
            return models.logprobs(model, batch, self.plan.sampling.temperature)

    # --- what there is to learn from, and what is kept ------------------------------------------

    def _log(self, entry: Json) -> None:
        with (self._folder / CURVE).open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")
        left = self._spent / self.step * (self.plan.steps - self.step)
        left = max(0.0, min(left, self.plan.seconds - self._spent))
        names = ("reward", "parsed", "right/turn_1", "right/turn_2", "kl", "entropy")
        known = [f"{n} {entry[n]:.3f}" for n in names if entry.get(n) is not None]
        place = f"step {self.step} of {self.plan.steps}, {timedelta(seconds=round(left))} left"
        print(f"{place}  {'  '.join(known)}", flush=True)

    def _save(self) -> None:
        state = {
            "model": self._model.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "step": self.step,
            "spent": self._spent,
            "plan": asdict(self.plan),
        }
        fresh = self._folder / FOLDER / f"{STATE}.new"
        torch.save(state, fresh)
        fresh.replace(self._folder / FOLDER / STATE)

    def _restore(self) -> None:
        """The last whole step; lines of the curve after it are cut off."""
        file = self._folder / FOLDER / STATE
        if file.is_file():
            state = torch.load(file, map_location=self._device, weights_only=True)
            self._model.load_state_dict(state["model"])
            self._optimizer.load_state_dict(state["optimizer"])
            self.step, self._spent = state["step"], state["spent"]
        text = "".join(json.dumps(entry) + "\n" for entry in self.curve())
        replace_file(self._folder / CURVE, text.encode())

    def curve(self) -> list[Json]:
        """What was logged of each step until now; half a line is left out."""
        file = self._folder / CURVE
        whole = file.read_text("utf-8").rpartition("\n")[0] if file.is_file() else ""
        entries = [json.loads(line) for line in whole.split("\n") if line]
        return [entry for entry in entries if entry["step"] <= self.step]

    def save_model(self) -> None:
        """Writes the model as it is now in the place of the one before."""
        target = self._folder / FOLDER / MODEL
        shutil.rmtree(target, ignore_errors=True)
        self._model.to(torch.bfloat16).save_pretrained(target, max_shard_size="15MB")
        self._tokenizer.save_pretrained(target)
        helpers.write(target, helpers.read(self._folder / MODEL))

    def result(self) -> Json:
        """What the training came to, as JSON."""
        curve = self.curve()
        return {
            "plan": asdict(self.plan),
            "pool": len(self._rows),
            "steps": self.step,
            "seconds": self._spent,
            "first_steps": _means(curve[:WINDOW]),
            "last_steps": _means(curve[-WINDOW:]),
            "curve": curve,
        }


def _measured(
    packed: Sequence[batches.Batch], old: Sequence[Tensor], frozen: Sequence[Tensor]
) -> Json:
    """Before the update: KL to the supervised weights and entropy, means over tokens."""
    tokens = [int(batch.mask.sum()) for batch in packed]
    entries = zip(packed, old, frozen, tokens, strict=True)
    kl = entropy = 0.0
    for batch, before, start, count in entries:
        kl += float((divergence.k3(before, start) * batch.mask).sum())
        entropy += float(divergence.sampled_entropy(before, batch.mask)) * count
    whole = max(1, sum(tokens))
    return {"kl": kl / whole, "entropy": entropy / whole, "tokens": whole}


def _means(entries: Sequence[Json]) -> Json:
    found: Json = {}
    for name in ("reward", "parsed", "ran", "own_kernel", "right/turn_1", "right/turn_2", "kl"):
        values = [entry[name] for entry in entries if entry.get(name) is not None]
        if values:
            found[name] = sum(values) / len(values)
    return found
