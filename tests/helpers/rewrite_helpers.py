"""One door for the tests of the rewrite engine: source in, rewritten source out, both run and
compared."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from codegen_helpers import child

from kernel_lsp.records import Candidate, Program, Skill, Step, TargetKind, Workload, WorkloadOrigin
from kernel_lsp.rewrite.capture.tracing import capture
from kernel_lsp.rewrite.engine import EngineSession
from kernel_lsp.rewrite.graph import Graph

SKILLS = Path(__file__).resolve().parents[2] / "skills"

MODULE = """
import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
{init}

    def forward(self, x):
{forward}


def get_inputs():
    return [{inputs}]
"""


def module(forward: str, init: str = "pass", inputs: str = "torch.randn(6, 8)") -> str:
    def indented(text: str) -> str:
        return "\n".join(f"        {line}" for line in text.strip("\n").split("\n"))

    return MODULE.format(init=indented(init), forward=indented(forward), inputs=inputs)


def program(source: str, entry: str = "Model", kind: str = "module") -> Program:
    return Program(source=source, entry=entry, kind=TargetKind(kind))


def workload(training: bool | None = None) -> Workload:
    return Workload(name="test", origin=WorkloadOrigin.GET_INPUTS, training=training)


def graph_of(source: str, training: bool | None = None) -> Graph:
    return capture(program(source), workload(training), "cpu")


def skill(name: str) -> Skill:
    return Skill(
        name=name,
        description="",
        scope="triton" if name.startswith("triton-") else "graph",
        tags=(),
        version=1,
        body="",
        path=str(SKILLS / name),
        executable=True,
    )


def session(source: str, *names: str, training: bool | None = None) -> EngineSession:
    return EngineSession(
        program(source), workload(training), "cpu", [skill(name) for name in names]
    )


def sites(source: str, name: str, training: bool | None = None) -> list[str]:
    """Labels of the places where a skill applies; a skill that fails is an error here."""
    opened = session(source, name, training=training)
    found = [site.site for site in opened.capture().sites]
    assert not opened.notes
    return found


def rewrite(
    source: str,
    name: str,
    training: bool | None = None,
    parameters: dict[str, Any] | None = None,
    *,
    any_batch: bool = True,
) -> Candidate:
    """Apply a skill wherever it applies, one site after the other. What is asked twice is made
    once: tests run one rewrite in several ways. Without ``any_batch`` the guard asks for the batch
    of the workload, which saves two captures; the rest is the same text."""
    opened, steps = _applied_everywhere(source, name, training, tuple((parameters or {}).items()))
    if any_batch:
        return opened.make(list(steps))
    (made,) = opened.variants(list(steps), len(steps) - 1, 1)
    return made


@lru_cache(maxsize=32)
def _applied_everywhere(
    source: str, name: str, training: bool | None, parameters: tuple[tuple[str, Any], ...]
) -> tuple[EngineSession, tuple[Step, ...]]:
    given = dict(parameters)
    opened = session(source, name, training=training)
    steps: list[Step] = []
    left = opened.capture().sites
    while left:
        fits = {k: v for k, v in given.items() if k in left[0].parameters}
        steps.append(Step(skill=name, site=left[0].site, parameters=fits))
        left = opened.look(steps)
    assert steps, "the skill does not apply"
    assert not opened.notes
    return opened, tuple(steps)


def on_cpu(text: str) -> str:
    """A rewrite for a GPU whose guard lets ``x`` in from the CPU."""
    here = text.replace("x.is_cuda", 'x.device.type == "cpu"')
    return here.replace("x.get_device() == torch.cuda.current_device()", "True")


def instance(source: str, training: bool | None, dtype: torch.dtype) -> Any:
    namespace: dict[str, Any] = {"__name__": "rewritten"}
    exec(compile(source, "<test>", "exec"), namespace)
    torch.manual_seed(0)
    made = namespace["Model"]().to(dtype)
    with torch.no_grad():
        for tensor in [*made.parameters(), *(b for b in made.buffers() if b.is_floating_point())]:
            tensor.copy_(torch.rand_like(tensor) + 0.5)
    return made if training is None else made.train(training)


def assert_same(
    source: str,
    candidate: Candidate,
    *inputs: torch.Tensor,
    training: bool | None = None,
    exact: bool = False,
) -> None:
    """Both forms agree in float64, and the fast path is the one that ran."""
    wide = candidate.program.replace("torch.float32", "torch.float64")
    before, after = (
        instance(source, training, torch.float64),
        instance(wide, training, torch.float64),
    )

    def never(*_args: object) -> None:
        raise AssertionError("the guard refused the verified workload")

    after._forward_eager = never
    with torch.no_grad():
        expected, got = before(*inputs), after(*inputs)
    tolerance = {"rtol": 0.0, "atol": 0.0} if exact else {"rtol": 1e-9, "atol": 1e-9}
    torch.testing.assert_close(got, expected, equal_nan=True, **tolerance)


def interpreted(program: str, *arguments: str) -> None:
    """Run a program in a process of its own where Triton interprets kernels; it must end without
    an error."""
    ended = child("run").ask(program=program, arguments=arguments)
    assert ended["code"] == 0, ended["said"]
