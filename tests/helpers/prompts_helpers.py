"""A task and its attempts, by hand, and the prompts that are kept as files.

python tests/helpers/prompts_helpers.py        writes tests/cases/prompts anew; read the difference
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from agents_helpers import SITES

from kernel_lsp.agents import prompts, sizing
from kernel_lsp.agents.sizing import ExchangeLimits
from kernel_lsp.records import (
    ArgSpec,
    ArmStats,
    Attempt,
    Bottleneck,
    Candidate,
    Context,
    EvalStatus,
    Evaluation,
    ModelInfo,
    Move,
    Program,
    Prompt,
    Proposal,
    SearchTask,
    Skill,
    SourceEdit,
    Step,
    TargetKind,
    Verdict,
    Workload,
    WorkloadOrigin,
)

CASES = Path(__file__).resolve().parents[1] / "cases" / "prompts"
SOURCE = """\
import torch
import torch.nn.functional as F


# --- rewrite begins ---
def tail(x, bias):
    return F.gelu(x + bias) * 2
# --- rewrite ends ---


def get_inputs():
    return [torch.randn(4096, 1024), torch.randn(1024)]
"""
MARKED = prompts.without_inputs(SOURCE)
WORKLOAD = Workload(
    name="tail",
    origin=WorkloadOrigin.GET_INPUTS,
    inputs=(
        ArgSpec(name=None, dtype="float32", shape=(4096, 1024)),
        ArgSpec(name="bias", dtype="float32", shape=(1024,), requires_grad=True),
        ArgSpec(name="scale", value=2),
    ),
)


def skill(name: str, **changes: Any) -> Skill:
    made = Skill(
        name=name,
        description=f"What {name} does",
        scope="graph",
        tags=("pointwise", "fusion"),
        version=1,
        body=f"## Motivation\n\nWhy {name}.\n\n## Example\n\n```python\nx + 1\n```\n",
        path="/x",
        executable=True,
    )
    return replace(made, **changes)


def task(source: str = SOURCE, skills: tuple[Skill, ...] | None = None) -> SearchTask:
    return SearchTask(
        qualname="tail",
        fingerprint="f",
        program=Program(source=source, entry="tail", kind=TargetKind.FUNCTION),
        workload=WORKLOAD,
        device="cuda",
        device_name="NVIDIA H200",
        sites=SITES,
        skills=(skill("fused-pointwise"), skill("diagonal-matmul"), skill("cuda-graph"))
        if skills is None
        else skills,
        read_bytes=16_781_312,
        written_bytes=16_777_216,
        bottleneck=Bottleneck.MEMORY,
    )


def attempt(
    number: int, code: str = "", *, fitness: float | None = None, **changes: Any
) -> Attempt:
    step = Step(skill="fused-pointwise", site="add+gelu", parameters={"BLOCK": 1024})
    candidate = Candidate(
        id=f"c{number}",
        edit=SourceEdit(qualname="tail", target=code) if code else None,
        program=code,
        entry="tail",
        steps=(step,) if changes.pop("stepped", False) else (),
    )
    proposal = Proposal(
        id=f"p{number}",
        fingerprint="f",
        fingerprint_after="g",
        qualname="tail",
        workload=WORKLOAD,
        candidate=candidate,
        evaluation=Evaluation(status=EvalStatus.PASSED, device="cuda"),
        verdict=Verdict.CORRECT,
        created="2026-11-21T00:00:00+00:00",
    )
    made = Attempt(
        number=number,
        move=Move.REFINE,
        proposer="openai:m",
        proposal=proposal if code else None,
        fitness=fitness,
        feedback={"status": "passed" if fitness else "wrong_result", "number": number},
        created="2026-11-21T00:00:00+00:00",
    )
    return replace(made, **changes)


def outcome(one: Attempt) -> str:
    return f"attempt {one.number}: " + (
        f"right, {one.fitness:.2f}x" if one.fitness else "wrong_result"
    )


def room(context_tokens: int | None = 32_768) -> ExchangeLimits:
    return sizing.room(ModelInfo(backbone="openai", model="m", context_tokens=context_tokens))


def length(prompt: Prompt) -> int:
    return sum(sizing.size(one.text) for one in prompt.messages) + sizing.size_of_tools(
        prompt.tools
    )


FIRST = Context(number=0, seed=7, move=Move.RESTART)
TURNS = (
    attempt(1, "def tail(x, bias):\n    return x\n", turn=1),
    attempt(
        2, "def tail(x, bias):\n    return _fused(x, bias)\n", fitness=1.3, turn=2, stepped=True
    ),
)
LATER = Context(
    number=3,
    seed=8,
    move=Move.REFINE,
    parent=TURNS[1],
    history=TURNS,
    best=(attempt(9, "def tail(x, bias):\n    return _best(x, bias)\n", fitness=2.0),),
    contrast=(
        attempt(4, "def tail(x, bias):\n    return _slow(x, bias)\n", fitness=1.1),
        attempt(5, "def tail(x, bias):\n    return _fast(x, bias)\n", fitness=1.9),
    ),
    rollout=1,
    turn=3,
)
START = MARKED.replace("F.gelu(x + bias) * 2", "_fused(x, bias)")
ARMS = (
    ArmStats(
        skill="cuda-graph",
        bottleneck=Bottleneck.MEMORY,
        device="cuda:9.0",
        tries=4,
        wins=1,
        gain_sum=0.4,
    ),
)


def kept() -> dict[str, Prompt]:
    """The prompts that are files."""
    chosen = ("fused-pointwise",)
    told = {"program": MARKED, "outcome": outcome}
    return {
        "selection": prompts.selection(task(), room(), arms=ARMS, seed=1),
        "policy_first": prompts.policy(task(), FIRST, SITES, chosen, room(), **told),
        "policy_later": prompts.policy(task(), LATER, SITES, chosen, room(), start=START, **told),
        "policy_small": prompts.policy(task(), FIRST, SITES, (), room(4096), **told),
        "summary": prompts.summary(task(), TURNS[0], TURNS[1], chosen, room()),
    }


def shown(prompt: Prompt) -> str:
    parts = [f"=== {one.role.value} ===\n{one.text}" for one in prompt.messages]
    names = ", ".join(tool.name for tool in prompt.tools)
    return (
        "\n".join([*parts, f"=== tools: {names}; at most {prompt.sampling.max_tokens} tokens ==="])
        + "\n"
    )


if __name__ == "__main__":
    CASES.mkdir(parents=True, exist_ok=True)
    for name, made in kept().items():
        (CASES / f"{name}.txt").write_text(shown(made))
