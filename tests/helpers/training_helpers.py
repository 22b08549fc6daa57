"""What the training tests share: rewrite a trained program, run forward and backward of both
forms."""

from __future__ import annotations

from codegen_helpers import ROOT, Child

from kernel_lsp.records import Program, Skill, Step, TargetKind, Workload, WorkloadOrigin


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
    opened, step = _largest(source, skill, training)
    return opened.propose([step]).candidate.program


def for_values(source: str, skill: str) -> str:
    """As ``rewritten``, to compare values with the program's own inputs: see codegen_helpers."""
    opened, step = _largest(source, skill, True)
    (made,) = opened.variants([step], 0, 1)
    return made.program


def _largest(source: str, skill: str, training: bool | None):
    opened = session(source, skill, training)
    found = opened.rewrites[skill].match(opened.graph)
    assert found, f"{skill} does not match {[node.name for node in opened.graph.nodes]}"
    best = max(found, key=lambda match: len(match.nodes))
    return opened, Step(skill=skill, site=best.label, parameters={})


def agrees(child: Child, source: str, skill: str, *, twice: bool = False) -> str:
    """The one door: outputs, gradients and buffers as close to float64 as eager's. Returns the
    rewrite."""
    after = for_values(source, skill)
    assert "torch.autograd.Function" in after
    found = child.ask(before=source, after=after, twice=twice)
    assert not found["fell_back"]
    assert all(found["same_kind"])
    slack = 2**-6 if "bfloat16" in source or "float16" in source else 3e-6
    for ours, eager in zip(found["ours"], found["eager"], strict=True):
        assert ours <= 2 * eager + slack
    return after
