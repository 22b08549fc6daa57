"""Journals and search archives that the real stores wrote, with hand-made content."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from kernel_lsp.journal.store import Journal
from kernel_lsp.records import (
    Attempt,
    Candidate,
    EvalStatus,
    Evaluation,
    Event,
    EventKind,
    Exchange,
    Interval,
    Message,
    Move,
    Parsed,
    Program,
    Prompt,
    Proposal,
    Reply,
    ReplyProblem,
    Role,
    SourceEdit,
    Step,
    TargetKind,
    Timing,
    ToolCall,
    Usage,
    Verdict,
    Workload,
    WorkloadOrigin,
)
from kernel_lsp.search.archive import SqliteArchive

FOLDER = "/home/ada/enigma"
KEY = "sk-live-4f9Aq81LmZ03xYtR7wKd"
REFERENCE = f'''
import torch
import torch.nn as nn

TOKEN = "{KEY}"

class Model(nn.Module):
    """Loads /home/ada/enigma/weights.pt."""
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(64, 32)
    def forward(self, x):
        return torch.relu(self.layer(x)) / (1)/x.shape[0]

def get_inputs():
    return [torch.randn(8, 64)]
'''
WORKLOAD = Workload(name="get_inputs", origin=WorkloadOrigin.GET_INPUTS)
FUSE, TILE = (
    Step(skill="fuse", site="linear+relu"),
    Step(skill="tile", site="linear", parameters={"B": 64}),
)
APPLY_FUSE = ToolCall(
    name="apply_skill", arguments={"skill": "fuse", "site": "linear+relu", "parameters": {}}
)


def evaluation(speed: float | None, status: str = "passed", **baselines: float) -> Evaluation:
    """Right with this speedup over eager (None: not timed), or of another status."""
    found = {"eager": speed, **baselines} if speed is not None else {}
    speedups = {name: Interval(low=s * 0.95, mid=s, high=s * 1.05) for name, s in found.items()}
    times = {"candidate": 1.0, **found}
    return Evaluation(
        status=EvalStatus(status),
        device="cpu",
        detail="" if status == "passed" else f"wrong in /home/ada/enigma/net.py, {KEY}",
        speedups=speedups,
        timings=tuple(
            Timing(provider=n, median_ms=t, p20_ms=t, p80_ms=t, num_reps=9, cold_cache=True)
            for n, t in times.items()
        )
        if speedups
        else (),
        environment={"torch": "2.13.0", "kernel_lsp": "0.1.0"},
        seconds=2.0,
    )


def proposal(
    name: str, speed: float | None = 1.5, *, steps: Sequence[Step] = (FUSE,), **changes: Any
) -> Proposal:
    status = changes.pop("status", "passed")
    candidate = Candidate(
        id=f"c-{name}",
        edit=SourceEdit(qualname="Model", target=f"class Model: pass  # {KEY}"),
        program=f"{REFERENCE}# {name}",
        entry="Model",
        steps=tuple(steps),
        proposer=changes.pop("proposer", "plan/2"),
        parent=changes.pop("parent", None),
        search=changes.pop("search", None),
        advice=changes.pop("advice", ()),
    )
    made = Proposal(
        id=name,
        fingerprint="before",
        fingerprint_after="after",
        qualname="Model",
        workload=WORKLOAD,
        candidate=candidate,
        evaluation=evaluation(speed, status),
        verdict=Verdict.FASTER if status == "passed" else Verdict.REJECTED,
        created=f"2026-01-02T03:04:{len(name):02d}+00:00",
    )
    return replace(made, **changes)


def save(journal: Journal, made: Proposal, *, path: str = "net.py", **options: Any) -> None:
    allowed = {"keep_source": True, "training": True, "reference": REFERENCE} | options
    journal.save(made, folder=FOLDER, path=path, **allowed)


def happened(journal: Journal, name: str, *kinds: str, path: str = "net.py") -> None:
    for second, kind in enumerate(kinds):
        time = f"2026-01-02T04:00:{second:02d}+00:00"
        journal.record(
            [Event(kind=EventKind(kind), proposal=name, time=time, folder=FOLDER, path=path)]
        )


def older(path: Path) -> None:
    """As a kernel-lsp wrote it that did not ask about training."""
    with sqlite3.connect(path) as database:
        database.execute("ALTER TABLE proposals DROP COLUMN training")
        database.execute("UPDATE schema_version SET version = 1")
    database.close()


# --- archives -------------------------------------------------------------------------------------


def exchange(
    agent: str,
    text: str = "",
    *calls: ToolCall,
    problem: str = "",
    ids: tuple[int, ...] | None = None,
) -> Exchange:
    messages = (
        Message(role=Role.SYSTEM, text="You rewrite modules."),
        Message(role=Role.USER, text=f"Make it faster, key {KEY}, {text}"),
    )
    return Exchange(
        agent=agent,
        prompt=Prompt(messages=messages),
        reply=Reply(
            text=text,
            model="tiny",
            latency_s=0.5,
            token_ids=ids,
            logprobs=ids and tuple(-0.1 for _ in ids),
            usage=Usage(prompt_tokens=20, completion_tokens=5),
        ),
        parsed=Parsed(
            calls=calls,
            problems=(ReplyProblem(where="reply", cause=problem, remedy="call"),)
            if problem
            else (),
        ),
    )


def identity(source: str = REFERENCE) -> dict[str, Any]:
    return {
        "program": Program(source=source, entry="Model", kind=TargetKind.MODULE),
        "workload": WORKLOAD,
        "device": "cpu",
        "device_name": None,
        "torch": "2.13.0",
        "triton": None,
    }


def attempt(number: int, made: Proposal | None = None, **changes: Any) -> Attempt:
    base = Attempt(
        number=number,
        move=Move.REFINE,
        proposer="openai:tiny@1",
        proposal=made,
        complete=True,
        created="2026-01-02T03:00:00+00:00",
    )
    return replace(base, **changes)


def searched(path: Path) -> str:
    """A search with a rollout of three turns, a tree of three attempts, and one that was cut off.
    Its id."""
    archive = SqliteArchive.open(path, identity())
    name = archive.id
    select = ToolCall(
        name="select_skills", arguments={"think": "", "selected_skills": [{"name": "fuse"}]}
    )
    update = ToolCall(
        name="update_skill_library", arguments={"think": "", "new_skills": [{"name": "learned"}]}
    )
    archive.add(
        attempt(0, proposal("seed", 1.2, search=f"{name}#0"), move=Move.SEED, proposer="plan/2")
    )
    archive.add(
        attempt(1, proposal("one", 1.4, search=f"{name}#1", advice=("fuse",)), rollout=0, turn=1),
        [
            exchange("selection", "s", select),
            exchange("policy", "gibberish", problem="the reply calls no tool"),
            exchange("policy", "first", APPLY_FUSE, ids=(5, 6, 7)),
        ],
    )
    archive.add(
        attempt(2, complaint="no such site", rollout=0, turn=2, parent=1),
        [exchange("policy", "second", APPLY_FUSE)],
    )
    better = proposal("three", 2.0, steps=(FUSE, TILE), search=f"{name}#3", parent="c-one")
    archive.add(
        attempt(3, better, rollout=0, turn=3, parent=1),
        [exchange("policy", "third", APPLY_FUSE), exchange("summary", "learned", update)],
    )
    wrong = proposal("wrong", None, status="wrong_result", steps=(TILE,), search=f"{name}#4")
    archive.add(attempt(4, wrong, move=Move.MUTATE, proposer="mutate/1", parent=0))
    cut = proposal("cut", 1.0).candidate
    archive.begin(attempt(5, move=Move.CHAIN, parent=0), cut)
    archive.close()
    return name
