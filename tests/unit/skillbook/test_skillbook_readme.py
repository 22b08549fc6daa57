"""The skill that skills/README.md shows is one that works."""

import re
from pathlib import Path

import pytest

from kernel_lsp.records import ArgSpec, Program, Step, TargetKind, Workload, WorkloadOrigin
from kernel_lsp.skillbook import lint, load

README = Path(__file__).parents[3] / "skills" / "README.md"
PROGRAM = """
import torch

class Net(torch.nn.Module):
    def forward(self, x):
        return -(-x) + 1.0
"""


@pytest.fixture
def example(tmp_path: Path) -> Path:
    text = README.read_text()
    blocks = re.findall(r"^(`{3,4})(\w+)\n(.*?)^\1\n", text, re.MULTILINE | re.DOTALL)
    markdown = next(body for _, kind, body in blocks if kind == "markdown")
    python = next(body for _, kind, body in blocks if kind == "python")
    folder = tmp_path / "double-negation"
    folder.mkdir()
    (folder / "SKILL.md").write_text(markdown)
    (folder / "rewrite.py").write_text(python)
    return folder


def test_the_example_is_well_formed(example: Path) -> None:
    assert lint(example) == ()
    assert load([example.parent]).skills[0].executable


@pytest.mark.torch
def test_the_example_rewrites_its_example(example: Path) -> None:
    from kernel_lsp.rewrite.engine import EngineSession

    program = Program(source=PROGRAM, entry="Net", kind=TargetKind.MODULE)
    inputs = (ArgSpec(name=None, dtype="float32", shape=(4096, 64)),)
    workload = Workload(name="w", origin=WorkloadOrigin.PRAGMA, inputs=inputs)
    session = EngineSession(program, workload, "cpu", list(load([example.parent]).skills))
    (site,) = session.capture().sites
    assert site.summary == "drop a double negation" and site.proofs[0].holds
    candidate = session.propose([Step(skill=site.skill, site=site.site)]).candidate
    assert candidate.edit is not None and "x + 1.0" in candidate.edit.target
    assert "-(-x)" not in candidate.edit.target.split("return")[-1]
