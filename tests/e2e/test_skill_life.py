"""The life of one learned skill with the real engine and gate on the CPU, from the command line.

A draft is verified on a program that it was not learned from; the verification is killed on the
way and goes on without judging anything twice. One task is not enough to be accepted:
tests/unit/pipeline/test_pipeline_proving.py has more, judged by a script, because twelve judgements take a
minute and a half. The executable skill below is a user's own: its default takes four passes that
nobody needs, and what was kept had found the better one."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kernel_lsp.agents import summary_rule
from kernel_lsp.agents.summary_rule import MeasuredPlace
from kernel_lsp.library import SkillLibrary
from kernel_lsp.records import ArgSpec, Lesson, Origin, Step

pytestmark = pytest.mark.torch

SKILL = """---
name: double-negation
description: Drop two negations in a row, neg(neg(x)) = x. Use when derived formulas negate twice.
metadata:
  scope: graph
  tags: [pointwise, algebra]
  version: 1
---

## Motivation
Each negation reads and writes the whole tensor.
## Key Idea
Two of them give back the same bits.
## Example
```python
y = -(-x)
```
## Pitfalls
None is known.
"""
REWRITE = """
from kernel_lsp.rewrite.skill import Graph, Match, Proof, aten, cost, is_op, proof

parameters = {"passes": [4, 0]}


def match(graph: Graph) -> list[Match]:
    outer = [node for node in graph.nodes if is_op(node, aten.neg)]
    pairs = [(node.args[0], node) for node in outer if is_op(node.args[0], aten.neg)]
    return [
        Match(
            nodes=pair,
            label=graph.label(*pair),
            summary="drop a double negation",
            benefit=cost.share(graph, sum(cost.seconds(graph, node) for node in pair)),
        )
        for pair in pairs
    ]


def preconditions(graph: Graph, match: Match) -> list[Proof]:
    inner, outer = match.nodes
    dtype = graph.fact(outer).dtype
    return [proof("the dtype stays", graph.fact(inner.args[0]).dtype == dtype, f"{dtype} in and out")]


def apply(graph: Graph, match: Match, parameters: dict) -> None:
    inner, outer = match.nodes
    value = inner.args[0]
    for _ in range(parameters["passes"]):
        value = graph.call(aten.mul.Tensor, (value, 1.0), before=outer)
    graph.replace(outer, value)
"""
TASK = """import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x, y):
        return -(-x) + y


def get_inputs():
    return [torch.randn(512, 4096), torch.randn(512, 4096)]


def get_init_inputs():
    return []
"""
BEGUN: list[subprocess.Popen[str]] = []


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "data" / "skills" / "double-negation"
    folder.mkdir(parents=True)
    (folder / "SKILL.md").write_text(SKILL)
    (folder / "rewrite.py").write_text(REWRITE)
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "task.py").write_text(TASK)
    yield tmp_path
    for process in BEGUN:
        if process.poll() is None:  # a failed test leaves nothing behind
            os.killpg(process.pid, signal.SIGKILL)
    BEGUN.clear()


def command(home: Path, *arguments: str) -> subprocess.Popen[str]:
    environment = {
        **os.environ,
        "KERNEL_LSP_DATA_DIR": str(home / "data"),
        "KERNEL_LSP_PYTHON": sys.executable,
        "KERNEL_LSP_EVALUATE_TIMEOUT_S": "600",
    }
    words = [sys.executable, "-m", "kernel_lsp", "skills", *arguments]
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(words, cwd=home, env=environment, start_new_session=True, **pipes)
    BEGUN.append(process)
    return process


def run(home: Path, *arguments: str) -> tuple[int, Any]:
    process = command(home, *arguments, "--json")
    out, err = process.communicate(timeout=900)
    assert process.returncode in (0, 1), err
    return process.returncode, json.loads(out)


def judged(home: Path) -> dict[str, str]:
    """Finished judgements in all archives: place -> the whole row."""
    rows = {}
    for path in sorted((home / "data" / "library" / "trials").glob("*.db")):
        with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as database:
            found = database.execute(
                "SELECT number, body FROM attempts WHERE state = 'done'"
            ).fetchall()
            rows |= {f"{path.name}#{number}": body for number, body in found}
    return rows


def drafted(home: Path) -> str:
    rows = ArgSpec(name=None, dtype="float32", shape=(512, 4096))
    seen = MeasuredPlace(
        device="cpu",
        device_name=None,
        architecture=None,
        inputs=(rows,),
        layouts=("contiguous",),
        torch=None,
    )
    steps = [Step(skill="double-negation", site="neg+neg_1", parameters={"passes": 0})]
    draft = summary_rule.draft(steps, seen)
    assert draft is not None
    origin = Origin(event="kept", fingerprint="another program", qualname="Model", hardware="cpu")
    assert SkillLibrary(home / "data").stage(Lesson(draft=draft, origin=origin)) is not None
    return draft.name


VERIFY = ("verify", "--tasks", "tasks", "--samples", "2", "--device", "cpu")


@pytest.mark.timeout(1900)
def test_a_learned_recipe_is_measured_and_a_killed_verification_goes_on(home: Path) -> None:
    name = drafted(home)
    first = command(home, *VERIFY)
    end = time.monotonic() + 900
    while not judged(home) and first.poll() is None and time.monotonic() < end:
        time.sleep(0.1)
    os.killpg(first.pid, signal.SIGKILL)
    first.communicate()
    known = judged(home)
    assert known

    code, told = run(home, *VERIFY)
    (result,) = told["verified"]
    found = result["verification"]
    assert {place: row for place, row in judged(home).items() if place in known} == known
    assert len(judged(home)) == 4  # two samples, with and without: each once
    (task,) = found["tasks"]
    assert task["differs"] and task["right_with"] == task["right_without"] == task["samples"] == 2
    # One pass instead of five, and of three in the program as it is.
    assert task["gain_with"] > task["gain_without"]
    assert task["gain_null"] == task["gain_without"]  # nothing else was learned
    assert found["credit"] == {name: pytest.approx(task["gain_with"] - task["gain_without"])}
    assert (code, found["accepted"], result["papers"]["standing"]) == (1, False, "staged")
    assert found["reason"] == "it changed 1 tasks and 3 are needed: add tasks"

    assert not learned(home)
    assert run(home, "promote", name, "--unverified")[1]["version"]["number"] == 1
    assert learned(home) == [name]
    assert run(home, "rollback")[1]["version"]["skills"] == []
    assert not learned(home)


def learned(home: Path) -> list[str]:
    return [one["name"] for one in run(home, "list")[1]["skills"] if one["source"] == "learned"]
