"""What supervised and offline training read: exported turns, dialogs of the compact form,
demonstrations.

``turns-*.parquet`` are `trainer.export`'s, one row per turn, with permissions; ``*.jsonl`` has
dialogs, one a line: ``{"tokens": […], "said": […], "offered": [[…]], "advantages": […], "example":
true}`` (plan_dialogs.py; advantages are per word that was chosen, "example" tells whether to
imitate it; both may be left out). A row that was not allowed, has no prompt, or does not parse is
counted with its reason. Not covered: which turns are good examples (datasets.py says it)."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from kernel_lsp import wire
from kernel_lsp.agents.backbones import chat
from kernel_lsp.errors import ConfigError
from kernel_lsp.records import Interval, Message, Prompt, Role, Structured, ToolSchema
from trainer.algorithms import rewards
from trainer.algorithms.batches import Example, dialog_example
from trainer.config import Recipe, Sft
from trainer.data.forgetting import FORGOTTEN, forgotten_contributors
from trainer.policies import models
from trainer.records import Agent, Human, ModelTurn, Tally, TurnOutcome, TurnStatus
from trainer.rollouts.worlds import TableWorld, apply_call, select_call

GOOD, BAD = (Human.KEPT, Human.ACCEPTED), (Human.REVERTED, Human.DISMISSED, Human.CHANGED)
NOT_ALLOWED = "its owner did not allow training on it, or on its text"
NO_PROMPT = "without a prompt or a reply: nothing to learn the one from the other"
BROKEN = "a row that cannot be read"
NO_EXAMPLE = "no example to imitate (its data set says why)"
UNKNOWN = "its reward is unknown"


@dataclass(frozen=True, kw_only=True, slots=True)
class Data:
    examples: tuple[Example, ...]
    pairs: tuple[tuple[Example, Example], ...] = ()
    """(accepted, rejected) for the same target."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _SourceExample:
    example: Example
    task: str
    human: Human | None
    imitable: bool
    reward: float | None


def read(recipe: Recipe, sft: Sft, world: TableWorld, tokenizer: Any, tally: Tally) -> Data:
    """Raises ConfigError when a pattern finds nothing."""
    if not sft.data:
        return Data(examples=tuple(demonstrations(world, tokenizer)))
    examples: list[Example] = []
    turns: list[_SourceExample] = []
    forgotten = forgotten_contributors()
    for path in _files(sft.data, Path(recipe.folder)):
        if path.suffix == ".jsonl":
            every = list(dialog_examples(path, tally))
            chosen = every if sft.loss == "advantage_weighted" else _best(every)
            _left_out(tally, NO_EXAMPLE, len(every) - len(chosen))
            examples += chosen
        else:
            turns += _turns(path, tokenizer, tally, forgotten)
    pairs = tuple(pair_turns(turns)) if sft.preference else ()
    if sft.loss == "supervised":
        imitated = [one.example for one in turns if one.imitable]
        _left_out(tally, NO_EXAMPLE, len(turns) - len(imitated))
    else:
        known = [one for one in turns if one.reward is not None]
        _left_out(tally, UNKNOWN, len(turns) - len(known))
        imitated = list(weigh_turns(known))
        imitated = _best(imitated) if sft.loss == "best_step" else imitated
    return Data(examples=tuple(examples + imitated), pairs=pairs)


def _best(examples: Sequence[Example]) -> list[Example]:
    return [one for one in examples if one.best]


def _left_out(tally: Tally, reason: str, count: int) -> None:
    if count:
        tally.skip(reason, count=count)


def _files(patterns: Sequence[str], folder: Path) -> Iterator[Path]:
    for pattern in patterns:
        found = sorted((folder / pattern).parent.resolve().glob(Path(pattern).name))
        if not found:
            raise ConfigError(
                f"sft.data: {folder / pattern} finds no file",
                "make it with `python -m trainer.export`",
            )
        yield from found


# --- dialogs --------------------------------------------------------------------------------------


def dialog_examples(path: Path, tally: Tally) -> Iterator[Example]:
    """One row per dialog; what was valid in a place is what a choice is compared with."""
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines()):
        tally.read += 1
        try:
            data = json.loads(line)
            imitable = bool(data.get("example", True))
            yield dialog_example(
                data["tokens"], data["said"], data["offered"], data.get("advantages"), best=imitable
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            tally.skip(BROKEN, f"{path.name}:{number + 1}: {error}")


# --- exported turns -------------------------------------------------------------------------------


def _turns(
    path: Path, tokenizer: Any, tally: Tally, forgotten: frozenset[str]
) -> Iterator[_SourceExample]:
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(path)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{path} is no Parquet file: {error}", "make it with trainer.export"
        ) from error
    for batch in file.iter_batches(batch_size=256):
        for row in batch.to_pylist():
            tally.read += 1
            where = f"{row.get('trajectory')}/{row.get('number')}"
            if not (row.get("allowed_training") and row.get("allowed_source")):
                tally.skip(NOT_ALLOWED, where)
                continue
            if row.get("contributor") in forgotten:
                tally.skip(FORGOTTEN, row["contributor"])
                continue
            if not row.get("messages") or not (row.get("reply") or row.get("calls")):
                tally.skip(NO_PROMPT, where)
                continue
            try:
                yield _row(row, tokenizer)
            except (ValueError, KeyError, TypeError) as error:
                tally.skip(BROKEN, f"{where}: {error}")


def _row(row: dict[str, Any], tokenizer: Any) -> _SourceExample:
    messages = _plan_examples(row)
    turn = ModelTurn(
        number=row["number"],
        agent=Agent(row["agent"]),
        human=Human(row["human"]) if row.get("human") else None,
        outcome=TurnOutcome(
            status=TurnStatus(row["status"]),
            correct=row.get("correct"),
            speedups=_speedups(row.get("speedups")),
        ),
    )
    found = rewards.judge_turn(turn)
    terms = None if found is None else rewards.bound(found)
    example = _example(tokenizer, messages, row.get("reply") or _call_text(row["calls"]))
    return _SourceExample(
        example=replace(example, trajectory=row["trajectory"], agent=turn.agent),
        task=row.get("task") or row["trajectory"],
        human=turn.human,
        imitable=bool(row.get("example")),
        reward=None if terms is None else rewards.total(terms),
    )


def _plan_examples(row: dict[str, Any]) -> tuple[Message, ...]:
    """The prompt as a model without a grammar reads it: its tools in words, as in live.py."""
    messages = tuple(wire.from_json(Message, one) for one in json.loads(row["messages"]))
    offered = tuple(wire.from_json(ToolSchema, one) for one in json.loads(row.get("tools") or "[]"))
    encoded = chat.messages(Prompt(messages=messages, tools=offered), Structured.NONE)
    return tuple(Message(role=Role(one["role"]), text=str(one["content"])) for one in encoded)


def _speedups(text: str | None) -> dict[str, Interval]:
    return {name: wire.from_json(Interval, one) for name, one in json.loads(text or "{}").items()}


def _call_text(text: str) -> str:
    """A reply for turns that were made without one: the call as decoding under a schema writes
    it."""
    call = json.loads(text)[0]
    return json.dumps({"name": call["name"], "arguments": call["arguments"]}, separators=(",", ":"))


def _example(tokenizer: Any, messages: Sequence[Message], reply: str) -> Example:
    spelled = tokenizer(reply, add_special_tokens=False)["input_ids"]
    return Example(
        prompt=tuple(models.encode_prompt(tokenizer, messages)),
        reply=(*spelled, tokenizer.eos_token_id),
    )


def weigh_turns(turns: Sequence[_SourceExample]) -> list[Example]:
    """Examples with advantages: the reward against the mean of its task's turns; and which step was
    its best."""
    of_task: dict[str, list[float]] = defaultdict(list)
    best: dict[str, float] = {}
    for one in turns:
        if one.reward is not None:
            of_task[one.task].append(one.reward)
            best[one.example.trajectory] = max(
                one.reward, best.get(one.example.trajectory, one.reward)
            )
    return [
        replace(
            one.example,
            advantage=one.reward - fmean(of_task[one.task]),
            best=one.reward > 0 and one.reward == best[one.example.trajectory],
        )
        for one in turns
        if one.reward is not None
    ]


def pair_turns(turns: Iterable[_SourceExample]) -> Iterator[tuple[Example, Example]]:
    """Every kept reply with every refused one of the same target, at most as many pairs as
    replies."""
    good: dict[str, list[Example]] = defaultdict(list)
    bad: dict[str, list[Example]] = defaultdict(list)
    for one in turns:
        if one.human in GOOD:
            good[one.task].append(one.example)
        elif one.human in BAD:
            bad[one.task].append(one.example)
    for task, accepted in good.items():
        rejected = bad.get(task, [])
        for number in range(max(len(accepted), len(rejected)) if rejected else 0):
            yield accepted[number % len(accepted)], rejected[number % len(rejected)]


# --- demonstrations -------------------------------------------------------------------------------


def demonstrations(world: TableWorld, tokenizer: Any) -> Iterator[Example]:
    """The examples of a table: the skills of the plan, then the best recorded setting of each
    step."""
    for name, space in world.spaces.items():
        skills = {step.skill for step in space.steps}
        picked = [skill for skill in world.offered(name) if skill in skills]
        ask = world.selection(name)
        yield replace(
            _example(tokenizer, ask.messages, select_call(picked)),
            trajectory=name,
            agent=Agent.SELECTION,
        )
        best = min(space.times, key=lambda point: space.times[point])
        for place, step in enumerate(space.at(best)):
            if any(axis.step == place for axis in space.axes):
                state = world.begin(name, [step.skill])
                policy_turn = world.policy(state)
                own = {axis.name for axis in space.axes if axis.step == place}
                call = apply_call(
                    replace(step, parameters={k: step.parameters[k] for k in sorted(own)})
                )
                if (
                    policy_turn is not None
                    and policy_turn.choices is not None
                    and call in policy_turn.choices
                ):
                    yield replace(_example(tokenizer, policy_turn.messages, call), trajectory=name)
