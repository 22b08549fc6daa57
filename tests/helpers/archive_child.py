"""Searches that a test kills: for each folder on stdin a fork that searches there; its id is
printed first.

Forks, because starting Python takes longer than what is killed. The judge writes its verdict into
a log before it returns, as the gate writes evidence; `recall` reads it."""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
from pathlib import Path
from typing import Any

import search_helpers as helpers

from kernel_lsp import wire
from kernel_lsp.records import (
    Attempt,
    Context,
    Cost,
    Proposal,
    ProposedDraft,
    SearchBudget,
    SearchJudgement,
    SearchTask,
)
from kernel_lsp.search.archive import SqliteArchive
from kernel_lsp.search.best import BestOf
from kernel_lsp.search.budget import SpentBudget
from kernel_lsp.search.loop import SearchLoop
from kernel_lsp.search.workers import SearchWorkers

CANDIDATES = 40
IDENTITY = {"target": "Model", "device": "cpu"}


class Model:
    """Draws one of a few names: some come twice."""

    name, slow = "openai:random", True

    async def propose(self, task: SearchTask, context: Context) -> ProposedDraft | None:
        await asyncio.sleep(0.001)
        name = f"c{random.Random(context.seed).randrange(3 * CANDIDATES)}"
        return ProposedDraft(candidate=helpers.candidate(name=name), cost=Cost(prompt_tokens=7))


def speed_of(made: Any) -> float | None:
    value = random.Random(made.id).random()
    return None if value < 0.2 else 0.8 + value


def logged(log: Path) -> list[tuple[str, bool, Proposal]]:
    """Every verdict in the log; a line that a kill has cut is none."""
    found = []
    for line in log.read_text().splitlines() if log.exists() else []:
        try:
            name, full, data = json.loads(line)
        except ValueError:
            continue
        found.append((name, full, wire.from_json(Proposal, data)))
    return found


def search(folder: Path) -> SearchLoop:
    log = folder / "log.jsonl"
    if log.exists() and not log.read_bytes().endswith(b"\n"):
        log.write_bytes(log.read_bytes() + b"\n")
    archive = SqliteArchive.open(folder / "search.db", IDENTITY)
    before = {(name, full): proposal for name, full, proposal in logged(log)}

    async def recall(attempt: Attempt, made: Any, *, full: bool) -> SearchJudgement | None:
        known = before.get((made.id, full))
        return SearchJudgement(proposal=known) if known else None

    return SearchLoop(
        task=helpers.task(),
        strategy=BestOf(1),
        proposers=[Model()],
        moves={},
        judge=helpers.ScriptedJudge(speed_of, seconds=0.001, log=log),
        archive=archive,
        budget=SpentBudget(
            limits=SearchBudget(candidates=CANDIDATES, seconds=None, stagnation=9999)
        ),
        workers=SearchWorkers(judges=2, samples=3),
        recall=recall,
    )


def main() -> None:
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            loop = search(Path(line.strip()))
            asyncio.run(loop.run())
            loop.archive.close()
            os._exit(0)
        print(child, flush=True)
        print(os.waitpid(child, 0)[1], flush=True)


if __name__ == "__main__":
    main()
