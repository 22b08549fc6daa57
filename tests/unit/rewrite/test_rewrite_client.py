"""The engine as a process: one real child, the real protocol."""

import asyncio
import sys
from pathlib import Path

import pytest
from rewrite_helpers import module, program, skill, workload

from kernel_lsp import process
from kernel_lsp.errors import CaptureError, RewriteError
from kernel_lsp.records import Step
from kernel_lsp.rewrite.client import Engine

pytestmark = pytest.mark.torch

NAME = "reassociate-linear-reduction"
SOURCE = module(
    "return self.fc(x).sum(dim=1)",
    "print('noise')\nself.fc = nn.Linear(8, 4000)",
    "torch.randn(640, 8)",
)


async def test_an_engine_captures_proposes_fails_politely_and_goes_on(tmp_path: Path) -> None:
    confinement = process.Confinement(scratch=tmp_path, readable=(Path(__file__).parents[3],))
    engine = Engine(python=sys.executable, limits=process.Limits(), confinement=confinement)
    try:
        with pytest.raises(CaptureError, match="ZeroDivisionError") as failure:
            await engine.open(program(module("return x", inputs="1 / 0")), workload(), "cpu", [])
        assert "get_inputs" in failure.value.cause
        lazy = module("return Lazy()") + "\nclass Lazy:\n    pass\n"
        with pytest.raises(CaptureError, match="returns a Lazy"):  # a kind of its own, in there
            await engine.open(program(lazy), workload(), "cpu", [])
        capture = await engine.open(program(SOURCE), workload(), "cpu", [skill(NAME)])
        assert {"linear", "sum"} <= set(capture.words)
        assert capture.inputs[0].shape == (640, 8)
        (site,) = capture.sites
        assert all(proof.holds for proof in site.proofs) and site.benefit and site.benefit > 0.5
        with pytest.raises(RewriteError, match="does not apply"):
            await engine.propose([Step(skill=NAME, site="nowhere")])
        candidate, left = await engine.propose([Step(skill=NAME, site=site.site)])
        assert left == () and candidate.edit is not None and "weight_sum" in candidate.edit.target
        again, _ = await engine.propose([Step(skill=NAME, site=site.site)])
        assert again == candidate
    finally:
        await engine.close()
        await engine.close()


async def test_a_broken_skill_is_a_note_and_the_others_still_work(tmp_path: Path) -> None:
    broken = tmp_path / "broken-skill"
    broken.mkdir()
    (broken / "rewrite.py").write_text(
        "parameters = {}\ndef match(graph):\n    raise KeyError('oops')\n"
    )
    from dataclasses import replace

    skills = [replace(skill(NAME), name="broken-skill", path=str(broken)), skill(NAME)]
    engine = Engine(python=sys.executable, limits=process.Limits(), confinement=None)
    try:
        capture = await engine.open(program(SOURCE), workload(), "cpu", skills)
    finally:
        await engine.close()
    assert [site.skill for site in capture.sites] == [NAME]
    assert any("broken-skill" in note and "oops" in note for note in capture.notes)


async def test_cancelling_ends_the_child(tmp_path: Path) -> None:
    engine = Engine(python=sys.executable, limits=process.Limits(), confinement=None)
    endless = program("while True:\n    pass\n")
    task = asyncio.create_task(engine.open(endless, workload(), "cpu", []))
    while engine._child is None:  # noqa: ASYNC110 - nobody tells
        await asyncio.sleep(0.05)
    await asyncio.sleep(1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert engine._child is not None and not engine._child.alive
    await engine.close()
