"""Sessions on modules teach: the question is asked again, what a person changed is the better
answer, and no contributor's word counts for everything."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from trainer_data_helpers import FOLDER, FUSE, KEY, REFERENCE, TILE, happened, proposal, save

from kernel_lsp import wire
from kernel_lsp.journal.outcomes import save_question
from kernel_lsp.journal.store import Journal
from kernel_lsp.records import (
    ArgSpec,
    Event,
    EventKind,
    Offered,
    Outcome,
    Proposal,
    Site,
    SourceEdit,
)
from trainer import sources
from trainer.config import ModelConfig, Recipe, Sft
from trainer.data import corpora, datasets, journals, parquet
from trainer.data.datasets import ExampleChoice
from trainer.data.reading import Grant
from trainer.records import Corpus, Human, Tally, TurnStatus
from trainer.rollouts.worlds import TableWorld
from trainer.tasks import spaces
from trainer.tasks.task_suites import DataPart

OFFERED = Offered(
    fingerprint="before",
    device="cpu",
    sites=(
        Site(skill="fuse", site="linear+relu", summary="one kernel less", proofs=()),
        Site(skill="tile", site="linear", summary="tiles", proofs=(), parameters={"B": [32, 64]}),
        Site(skill="triton", site="linear", summary="a kernel", proofs=(), plain=False),
    ),
    inputs=(ArgSpec(name=None, dtype="float32", shape=(8, 64)),),
    read_bytes=4096,
)
TARGET = "class Model(nn.Module):\n    def forward(self, x):\n        return self.fused(x)\n"
CHANGED = TARGET.replace("self.fused(x)", "self.fused(x.contiguous())")


def edited(name: str, speed: float | None, **more: Any) -> Proposal:
    made = proposal(name, speed, **more)
    edit = SourceEdit(qualname="Model", target=TARGET, imports=("import math",))
    return replace(made, candidate=replace(made.candidate, edit=edit))


def asked(journal: Journal, *names: Proposal, offered: Offered | None = OFFERED) -> None:
    outcome = Outcome(qualname="Model", proposals=names, offered=offered)
    save_question(journal, outcome, folder=FOLDER, path=f"{FOLDER}/net.py", client="vim")


def modified(journal: Journal, name: str, text: str, second: int = 30) -> None:
    event = Event(
        kind=EventKind.MODIFIED,
        proposal=name,
        time=f"2026-01-02T04:00:{second}+00:00",
        folder=FOLDER,
        path="net.py",
        data={"how": "save", "changed": text},
    )
    journal.record([event])


def read(path: Path) -> Corpus:
    return corpora.read(journals=[path], grant=Grant())


def test_a_session_on_a_module_has_its_question_again(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    one, two = edited("a", 1.5), edited("bb", 1.8, steps=(FUSE, TILE))
    with Journal.open(path) as journal:
        for made in (one, two):
            save(journal, made)
        asked(journal, one, two)
        happened(journal, "a", "offered", "dismissed")
        happened(journal, "bb", "offered", "chosen", "accepted", "kept")
    (found,) = read(path).trajectories
    first, second = found.turns
    assert first.messages is not None and first.messages == second.messages
    told = first.messages[1].text
    assert "float32[8, 64]" in told and "fuse at linear+relu" in told and "4096" not in told
    assert "triton at linear" not in told and "def get_inputs" not in told and KEY not in told
    (call,) = first.calls  # one step that was offered: a call of it
    assert (call.name, call.arguments["skill"], first.human) == (
        "apply_skill",
        "fuse",
        Human.DISMISSED,
    )
    (call,) = second.calls  # a chain: its code
    assert call.name == "write_rewrite" and call.arguments["code"].startswith("import math\n\n\n")
    assert second.human is Human.KEPT and {tool.name for tool in first.tools} >= {call.name}


@pytest.mark.parametrize("missing", ["source", "question", "training", "fingerprint"])
def test_without_consent_or_the_question_there_is_no_prompt(tmp_path: Path, missing: str) -> None:
    path, made = tmp_path / "journal.db", edited("a", 1.5)
    with Journal.open(path) as journal:
        save(journal, made, keep_source=missing != "source", training=missing != "training")
        other = replace(OFFERED, fingerprint="another")
        if missing != "question":
            asked(journal, made, offered=other if missing == "fingerprint" else OFFERED)
    found = read(path).trajectories
    assert (len(found) == 0) == (missing == "training")
    assert all(turn.messages is None for one in found for turn in one.turns)


def test_what_a_person_changed_is_an_example_and_beats_what_was_proposed(tmp_path: Path) -> None:
    path, made = tmp_path / "journal.db", edited("a", 1.5)
    with Journal.open(path) as journal:
        save(journal, made)
        asked(journal, made)
        happened(journal, "a", "offered", "chosen", "accepted", "kept")
        modified(journal, "a", "    first try")
        modified(journal, "a", CHANGED, second=40)
        assert "contiguous" not in json.dumps(wire.to_json(journal.events()))
        save(journal, made)  # measured again: what was changed stays
    (found,) = read(path).trajectories
    proposed, changed = found.turns
    assert (proposed.human, changed.human, changed.changes) == (Human.CHANGED, Human.KEPT, 0)
    assert changed.outcome.status is TurnStatus.NOT_RUN and changed.messages == proposed.messages
    assert "x.contiguous()" in changed.calls[0].arguments["code"]
    left_out = {turn.number: datasets.unfit(found, turn) for turn in found.turns}
    assert left_out[1] is None and "which is the example" in str(left_out[0])
    with Journal.open(path) as journal:
        journal.forget(folder=FOLDER)
    assert read(path).trajectories == () and b"contiguous" not in path.read_bytes()


@pytest.mark.torch
def test_sessions_become_rows_and_pairs_that_training_reads(tmp_path: Path) -> None:
    from trainer.policies import models

    path, made, other = tmp_path / "journal.db", edited("a", 1.5), edited("bb", 1.2, steps=(TILE,))
    with Journal.open(path) as journal:
        for one in (made, other):
            save(journal, one)
        asked(journal, made, other)
        happened(journal, "a", "offered", "chosen", "accepted")
        modified(journal, "a", CHANGED)
        happened(journal, "bb", "offered", "dismissed")
    corpus = read(path)
    rows = {
        part: datasets.rows(
            corpus.trajectories if part is DataPart.TRAIN else (), part, ExampleChoice()
        )
        for part in DataPart
    }
    parquet.write(tmp_path / "rows", rows, {"made": "here"}, lambda line: None)
    shape = ModelConfig(
        hidden=32, layers=1, heads=2, key_heads=1, head=16, inner=32, vocabulary=400
    )
    sft = Sft(data=("rows/turns-*.parquet",), preference=0.5)
    recipe = Recipe(name="t", folder=str(tmp_path), model=shape, sft=sft)
    _, tokenizer = models.load(recipe, [REFERENCE])
    tally = Tally()
    data = sources.read(recipe, sft, TableWorld(spaces.synthetic(1, 0)), tokenizer, tally)
    assert tally.count(sources.NO_PROMPT) == 0 and len(data.examples) == 1
    (example,) = data.examples
    prompt = tokenizer.decode(example.prompt)
    assert "write_rewrite" in prompt and "Answer with one JSON object" in prompt
    assert "x.contiguous()" in tokenizer.decode(example.reply)
    assert {tokenizer.decode(worse.reply)[:20] for _, worse in data.pairs} and len(data.pairs) == 2
    assert all(better == example for better, _ in data.pairs)


def test_one_who_accepts_everything_does_not_decide_what_is_learned(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    with Journal.open(path) as journal:
        for owner, count in (("ada", 3), ("ben", 3), ("eve", 30)):
            for number in range(count):
                made = edited(f"{owner}{number}", 1.5)
                journal.save(
                    made,
                    folder=f"/home/{owner}/work",
                    path="net.py",
                    keep_source=True,
                    training=True,
                    reference=REFERENCE,
                )
                time = "2026-01-02T04:00:00+00:00"
                journal.record(
                    [
                        Event(
                            kind=EventKind.ACCEPTED,
                            proposal=made.id,
                            time=time,
                            folder=f"/home/{owner}/work",
                            path="net.py",
                        )
                    ]
                )
    corpus = read(path)
    heard = [turn.human for one in corpus.trajectories for turn in one.turns if turn.human]
    assert len(heard) == 3 + 3 + 9  # a quarter of 36
    assert corpus.reasons[journals.TOO_LOUD] == 21
    assert sum(len(one.turns) for one in corpus.trajectories) == 36  # no row is lost
