"""Rewrites of several parts of one forward, joined: as text, and as the pipeline judges them."""

from __future__ import annotations

import itertools
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from recorded_helpers import recorded
from rewrite_helpers import skill
from search_helpers import proposal, verdict

from kernel_lsp import analysis
from kernel_lsp.config import Settings
from kernel_lsp.evaluator import Gate, programs
from kernel_lsp.evaluator.sharing.device_lock import DeviceSharing, SharingRules
from kernel_lsp.interpreter import Probe
from kernel_lsp.pipeline import parts
from kernel_lsp.pipeline.prepare import PreparedJob
from kernel_lsp.pipeline.tournament import Tournament
from kernel_lsp.presenter import breaks
from kernel_lsp.records import (
    Break,
    Candidate,
    EvalStatus,
    Job,
    Outcome,
    Part,
    Proposal,
    Snapshot,
    SourceEdit,
    Step,
    Workload,
)
from kernel_lsp.rewrite.engine import EngineSession
from kernel_lsp.rewrite.joining import join

NET = """\
class Net(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.a = nn.Linear(width, width)

    def forward(self, x):
        h = self.a(x)
        h = F.silu(h) * torch.sigmoid(h) + 0.5 * h
        rate = h.mean().item()
        y = F.silu(x) * torch.sigmoid(x) + 0.5 * x
        y = y * 2 + h
        print(rate)
        return F.gelu(y) * torch.sigmoid(y * 1.702) + y

    def extra_repr(self):
        return "net"
"""


ONCE = """\
class Net(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.a = nn.Linear(width, width)

    def forward(self, x):
        h = self.a(x)
        h = F.silu(h) * torch.sigmoid(h) + 0.5 * h
        if h.abs().max() > 100:
            h = h / 100
        y = F.gelu(h) * torch.sigmoid(h * 1.702) + x
        return y * 2 + h
"""
"""Its graph breaks once."""


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> PreparedJob:
    return prepare(tmp_path_factory.mktemp("joined"), NET, 256, 64)


def prepare(folder: Path, text: str, width: int, rows: int) -> PreparedJob:
    program, workload = recorded(folder, text, "Net", (width,), torch.randn(rows, width))
    snapshot = Snapshot(uri="file:///net.py", text=program.source)
    target = analysis.named_target(snapshot, "Net")
    assert target is not None and program.home is not None
    job = Job(text=program.source, path=program.home.path, qualname="Net")
    return PreparedJob(
        job=job, snapshot=snapshot, target=target, program=program, workload=workload
    )


@pytest.fixture(scope="module")
def made(prepared: PreparedJob) -> list[tuple[Part, Candidate]]:
    """A rewrite of each of three parts."""
    return rewrites_at(prepared, (0, 1), (3, 4), (6, 6))


def rewrites_at(prepared: PreparedJob, *places: tuple[int, int]) -> list[tuple[Part, Candidate]]:
    """``places``: first and last line of each part, from the first one of ``forward``."""
    lines = prepared.program.source.split("\n")
    begin = lines.index("        h = self.a(x)") + 1
    parts = [Part(first=begin + first, last=begin + last) for first, last in places]
    return [(part, rewritten(prepared, prepared.workload, part)) for part in parts]


def rewritten(prepared: PreparedJob, workload: Workload, part: Part) -> Candidate:
    program = replace(prepared.program, part=part)
    session = EngineSession(program, workload, "cpu", [skill("fused-pointwise")])
    site = session.capture().sites[0]
    return session.make([Step(skill=site.skill, site=site.site, parameters={})])


@pytest.mark.torch
def test_three_parts_have_a_call_and_a_way_back_each(
    prepared: PreparedJob, made: list[tuple[Part, Candidate]]
) -> None:
    joined = parts.join_candidates(prepared, [one for _, one in made])
    assert joined is not None and joined.uses_triton and joined.edit is not None
    assert len(joined.steps) == 3 and joined.id not in {one.id for _, one in made}
    text = joined.edit.target
    for name in ("_forward_part", "_forward_part_2", "_forward_part_3"):
        assert text.count(f"self.{name}(") == 1 and text.count(f"self.{name}_eager(") == 1
        assert text.count(f"def {name}(") == text.count(f"def {name}_eager(") == 1
    kept = ['return "net"', "        rate = h.mean().item()\n", "        print(rate)\n"]
    assert all(line in text for line in kept)
    names = [line for line in joined.edit.definitions.split("\n") if line.startswith("def ")]
    assert len(names) == len(set(names)), "each kernel once"
    torch.manual_seed(0)
    before = programs.load(prepared.program.source).Net(256)
    after = programs.load(joined.program).Net(256)
    after.load_state_dict(before.state_dict())
    for x in (torch.randn(3, 256), torch.randn(64, 256).double().float()[:5]):
        assert torch.equal(before(x), after(x)), "calls that no part covers"


@pytest.mark.torch
async def test_what_is_joined_is_judged_and_offered_where_it_is_better_still(
    prepared: PreparedJob, made: list[tuple[Part, Candidate]]
) -> None:
    found = [
        Outcome(qualname="Net", proposals=(proposal(one, verdict(1.2)),), part=part)
        for part, one in made[:2]
    ]
    slow = Outcome(qualname="Net", proposals=(proposal(made[2][1], verdict(0.9)),), part=made[2][0])
    broken = Break(line=1, code="rate = h.mean().item()", cause="moves", remedy="keep it")
    best, asked = replace(found[0], breaks=(broken,)), list[Candidate]()

    def judge(speed: float) -> Any:
        async def judged(candidate: Candidate) -> Proposal:
            asked.append(candidate)
            return proposal(candidate, verdict(speed))

        return judged

    better = await parts.with_joined(prepared, best, [*found, slow], judge(1.5))
    assert better.best is not None and better.best.candidate.id == asked[0].id
    assert len(asked[0].steps) == 2, "what is not faster by itself is left out"
    assert better.joined == (made[1][0],)
    first, second = made[0][0].words, made[1][0].words
    assert f"{first}, {second} are rewritten by themselves" in breaks.headline(better)
    worse = await parts.with_joined(prepared, best, found, judge(1.1))
    assert worse.best == found[0].best and worse.joined == ()
    alone = await parts.with_joined(prepared, best, [found[0], slow], judge(9.0))
    assert alone == best and len(asked) == 2


@pytest.mark.torch
async def test_the_gate_judges_two_parts_around_a_break_as_one_edit(tmp_path: Path) -> None:
    prepared = prepare(tmp_path, ONCE, 64, 32)
    parts_made = rewrites_at(prepared, (0, 1), (4, 5))
    found = [
        Outcome(qualname="Net", proposals=(proposal(one, verdict(1.2)),), part=part)
        for part, one in parts_made
    ]
    sharing = DeviceSharing(SharingRules(data_dir=str(tmp_path / "data")))
    async with Gate(device_sharing=sharing) as gate:
        arena = Tournament(
            prepared=prepared,
            probe=Probe(python=sys.executable),
            device="cpu",
            settings=Settings(data_dir=str(tmp_path / "data")),
            judge=gate.evaluate,
            report=lambda progress: None,
        )
        outcome = await parts.with_joined(prepared, found[0], found, arena.in_full)
        joined = next(one for one in outcome.proposals if len(one.candidate.steps) == 2)
        judged = joined.evaluation
        assert judged.status is EvalStatus.PASSED and judged.device == "interpreter", judged.detail
        assert joined.candidate.edit is not None
        spoiled = joined.candidate.edit.definitions.replace("1.702", "1.7")
        assert spoiled != joined.candidate.edit.definitions
        edit = replace(joined.candidate.edit, definitions=spoiled)
        wrong = await arena.in_full(replace(joined.candidate, id="spoiled", edit=edit))
        assert wrong.evaluation.status is EvalStatus.WRONG_RESULT, "the second part's kernel runs"


CLASS = "class Net:\n    def forward(self, x):\n        a = x\n        b = a\n        return b\n"


def edit(change: tuple[str, str], method: str, definitions: str) -> SourceEdit:
    lines = CLASS.replace(*change).rstrip("\n")
    target = f"{lines}\n\n    def {method}(self):\n        return kernel()\n"
    return SourceEdit(qualname="Net", target=target, definitions=definitions)


def test_names_that_mean_two_things_are_told_apart_and_equal_ones_stay() -> None:
    shared = "def shared():\n    return 1\n\n\n"
    first = edit(("a = x", "a = self.part()"), "part", f"{shared}def kernel():\n    return 2\n")
    second = edit(("b = a", "b = self.part()"), "part", f"{shared}def kernel():\n    return 3\n")
    found = join(CLASS, [first, second])
    assert found is not None and found.definitions.count("def shared") == 1
    assert "def kernel():\n    return 2" in found.definitions
    assert "def kernel_2():\n    return 3" in found.definitions
    assert "        a = self.part()\n        b = self.part_2()\n" in found.target
    assert found.target.index("return kernel()") < found.target.index("return kernel_2()")


def test_edits_that_change_the_same_lines_or_more_than_their_part_are_not_joined() -> None:
    first = edit(("a = x", "a = self.part()"), "part", "")
    same = edit(("a = x", "a = self.other()"), "other", "")
    assert join(CLASS, [first, same]) is None
    launcher = replace(
        edit(("b = a", "b = 1"), "other", ""), others=(("launch", "def launch(): 1"),)
    )
    assert join(CLASS, [first, launcher]) is None
    behind = CLASS + "\n    def reset(self):\n        pass\n"
    changed = SourceEdit(qualname="Net", target=behind.replace("pass", "return 1"))
    mine = SourceEdit(qualname="Net", target=behind.replace("a = x", "a = 1"))
    assert join(behind, [mine, changed]) is None
    for one, other in itertools.permutations((first, edit(("b = a", "b = 2"), "more", ""))):
        found = join(CLASS, [one, other])
        assert found is not None and "        a = self.part()\n        b = 2\n" in found.target
