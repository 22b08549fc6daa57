"""What the training tests share: rewrite a trained program, run forward and backward of both
forms."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from codegen_helpers import ROOT

from kernel_lsp.records import Program, Skill, Step, TargetKind, Workload, WorkloadOrigin

CHILD = Path(__file__).with_name("training_child.py")


class Child:
    """A process that interprets kernels; Triton decides that at import."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(CHILD)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "TRITON_INTERPRET": "1"},
        )

    def ask(self, **request):
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        reply = json.loads(self.process.stdout.readline())
        assert "error" not in reply, reply["error"]
        return reply["result"]

    def close(self) -> None:
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait(timeout=120)


def session(source: str, skill: str, training: bool | None = True, device: str = "cpu"):
    from kernel_lsp.rewrite.engine import EngineSession

    found = Skill(
        name=skill, description="", scope="graph", tags=(), version=1, body="",
        path=str(ROOT / "skills" / skill), executable=True,
    )  # fmt: skip
    workload = Workload(name="test", origin=WorkloadOrigin.GET_INPUTS, training=training)
    target = Program(source=source, entry="Model", kind=TargetKind.MODULE)
    return EngineSession(target, workload, device, [found])


def rewritten(source: str, skill: str, training: bool | None = True) -> str:
    """The program after the skill's largest match."""
    opened = session(source, skill, training)
    found = opened.rewrites[skill].match(opened.graph)
    assert found, f"{skill} does not match {[node.name for node in opened.graph.nodes]}"
    best = max(found, key=lambda match: len(match.nodes))
    return opened.propose([Step(skill=skill, site=best.label, parameters={})]).candidate.program


def agrees(child: Child, source: str, skill: str, *, twice: bool = False) -> str:
    """The one door: outputs, gradients and buffers as close to float64 as eager's. Returns the
    rewrite."""
    after = rewritten(source, skill)
    assert "torch.autograd.Function" in after
    found = child.ask(before=source, after=after, twice=twice)
    assert not found["fell_back"]
    assert all(found["same_kind"])
    slack = 2**-6 if "bfloat16" in source or "float16" in source else 3e-6
    for ours, eager in zip(found["ours"], found["eager"], strict=True):
        assert ours <= 2 * eager + slack
    return after
