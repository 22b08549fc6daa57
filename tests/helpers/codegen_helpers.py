"""What the code generation tests share: write a program, rewrite it with one skill, run both."""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
from functools import cache, lru_cache
from pathlib import Path

from kernel_lsp.records import Program, Skill, Step, TargetKind, Workload, WorkloadOrigin

ROOT = Path(__file__).resolve().parents[2]


class Child:
    """A process that interprets kernels (``run``; ``train``: with gradients) or compiles them
    (``compile``). One that has died is started again for the next question."""

    def __init__(self, mode: str) -> None:
        self.mode = mode
        self.process = self._start()

    def _start(self) -> subprocess.Popen[str]:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        environment.pop("TRITON_INTERPRET", None)
        if self.mode != "compile":
            environment["TRITON_INTERPRET"] = "1"
        script = "training_child.py" if self.mode == "train" else "codegen_child.py"
        return subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name(script)), self.mode],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment,
        )

    def ask(self, **request):
        if self.process.poll() is not None:
            self.process = self._start()
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        reply = json.loads(self.process.stdout.readline())
        assert "error" not in reply, reply["error"]
        return reply["result"]

    def close(self) -> None:
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait(timeout=120)


@cache
def child(mode: str) -> Child:
    """The one of its kind for all tests of this process: starting one takes two seconds."""
    made = Child(mode)
    atexit.register(made.close)
    return made


def program(expression: str, inputs: str, *, arguments: str = "x, y", init: str = "") -> str:
    """A module whose forward returns the expression."""
    setup = (
        f"    def __init__(self):\n        super().__init__()\n        {init}\n\n" if init else ""
    )
    return (
        "import torch\nimport torch.nn as nn\nimport torch.nn.functional as F\n\n\n"
        f"class Model(nn.Module):\n{setup}    def forward(self, {arguments}):\n"
        f"        return {expression}\n\n\n"
        f"def get_inputs():\n    return [{inputs}]\n"
    )


@lru_cache(maxsize=64)
def matches(source: str, skill: str):
    """The engine's session and what the skill finds in the program; a session is opened once for
    all that tests ask of it, since it captures the program at three batch sizes and no question
    changes it."""
    from kernel_lsp.rewrite.engine import EngineSession

    found = Skill(
        name=skill, description="", scope="graph", tags=(), version=1, body="",
        path=str(ROOT / "skills" / skill), executable=True,
    )  # fmt: skip
    target = Program(source=source, entry="Model", kind=TargetKind.MODULE)
    session = EngineSession(
        target, Workload(name="test", origin=WorkloadOrigin.GET_INPUTS), "cpu", [found]
    )
    assert skill in session.rewrites, session.notes
    return session, session.rewrites[skill].match(session.graph)


def rewritten(source: str, skill: str, **parameters) -> str:
    """The program after the skill's largest match."""
    session, step = _largest(source, skill, parameters)
    return session.propose([step]).candidate.program


def for_values(source: str, skill: str, **parameters) -> str:
    """As ``rewritten``, to compare values with the very inputs of the program: its guard asks for
    their batch too, since whether that stays free takes two more captures. The rest is the same
    text."""
    session, step = _largest(source, skill, parameters)
    (made,) = session.variants([step], 0, 1)
    return made.program


def _largest(source: str, skill: str, parameters: dict[str, object]):
    session, found = matches(source, skill)
    assert found, f"{skill} does not match {[node.name for node in session.graph.nodes]}"
    best = max(found, key=lambda match: len(match.nodes))
    return session, Step(skill=skill, site=best.label, parameters=parameters)


def as_close_as_eager(interpreter: Child, before: str, after: str) -> None:
    """Both against float64, by the fast path."""
    found = interpreter.ask(before=before, after=after)
    assert not found["fell_back"] and all(found["same_kind"])
    slack = 2**-6 if "bfloat16" in before or "half" in before else 3e-6
    for ours, eager in zip(found["ours"], found["eager"], strict=True):
        assert ours <= 2 * eager + slack
