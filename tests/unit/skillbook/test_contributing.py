"""The examples in CONTRIBUTING.md work exactly as they stand there. (The skill's is in
skills/README.md.)"""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

import kernel_lsp.analysis
from kernel_lsp.records import Program, Skill, Step, TargetKind, Workload, WorkloadOrigin

TEXT = (Path(__file__).parents[3] / "CONTRIBUTING.md").read_text()
BLOCKS = dict(re.findall(r"<!-- file: (\w+) -->\n```python\n(.*?)^```$", TEXT, re.M | re.S))


def imported(path: Path, name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_rule_finds_what_its_case_marks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.unit.analysis.test_analysis_rules import check

    (tmp_path / "kl109.py").write_text(BLOCKS["rule"])
    module = imported(tmp_path / "kl109.py", "kl109")
    with pytest.raises(AssertionError):
        check(BLOCKS["case"])  # without the rule
    monkeypatch.setattr(kernel_lsp.analysis, "RULES", (module.KL109,))
    check(BLOCKS["case"])


@pytest.mark.torch
def test_the_family_computes_what_torch_computes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, interpreter
) -> None:
    from codegen_helpers import as_close_as_eager, program

    import kernel_lsp.rewrite.codegen
    from kernel_lsp.rewrite.engine import EngineSession

    name = "kernel_lsp.rewrite.codegen.distance"
    (tmp_path / "distance.py").write_text(BLOCKS["family"])
    module = imported(tmp_path / "distance.py", name)
    monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(kernel_lsp.rewrite.codegen, "distance", module, raising=False)
    folder = tmp_path / "pairwise-distance"
    folder.mkdir()
    (folder / "rewrite.py").write_text(BLOCKS["skill"])
    skill = Skill(
        name=folder.name, description="", scope="graph", tags=(), version=1, body="",
        path=str(folder),
        executable=True,
    )  # fmt: skip

    def open_session(source: str) -> EngineSession:
        target = Program(source=source, entry="Model", kind=TargetKind.MODULE)
        return EngineSession(
            target, Workload(name="w", origin=WorkloadOrigin.GET_INPUTS), "cpu", [skill]
        )

    before = program("torch.cdist(x, y, p=1.0)", "torch.randn(50, 7), torch.randn(33, 7)")
    session = open_session(before)
    (site,) = session.capture().sites
    after = session.propose([Step(skill=site.skill, site=site.site)]).candidate.program
    assert "_pairwise_distance_kernel[grid]" in after
    as_close_as_eager(interpreter, before, after)

    other = program("torch.cdist(x, y, p=2.0)", "torch.randn(50, 7), torch.randn(33, 7)")
    assert open_session(other).capture().sites == ()
