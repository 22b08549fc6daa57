"""Accepted rewrites: kept beside the code, judged again, taken back by a patch."""

import asyncio
import io
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest
from typer.testing import CliRunner

from kernel_lsp import analysis, signatures, wire
from kernel_lsp.commands.app import app
from kernel_lsp.errors import EvaluationError
from kernel_lsp.evaluator import EvaluationRequest, Gate, evidence
from kernel_lsp.evaluator.findings import PartialEvaluation
from kernel_lsp.guarding import accept, acceptances, combine_patches, guard, without
from kernel_lsp.guarding.judging import _holding, latest
from kernel_lsp.guarding.reverting import patch
from kernel_lsp.host import Host
from kernel_lsp.presenter.guarding import guarded_json, guarded_sarif, guarded_text
from kernel_lsp.records import (
    Acceptance,
    EvalStatus,
    Evaluation,
    Event,
    EventKind,
    Evidence,
    Guarded,
    Holding,
    Interval,
    Snapshot,
    SourceEdit,
    Workload,
    WorkloadOrigin,
)
from kernel_lsp.rewrite import edit
from tests.unit.presenter.test_reports import SARIF

BEFORE = '''"""A model."""

import torch
from torch import nn

LIMIT = 3


# the one that counts
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 4)

    def forward(self, x):
        # summed up
        return self.linear(x).sum(dim=1)


def get_inputs():
    return [torch.rand(6, 8)]


OTHER = LIMIT
'''
REWRITTEN = """class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 4)

    def forward(self, x):
        return folded(x, self.linear.weight, self.linear.bias)
"""
EDIT = SourceEdit(
    qualname="Model",
    imports=("import math",),
    definitions="SCALE = math.exp(0)\n\n\ndef folded(x, weight, bias):\n"
    "    return SCALE * (x @ weight.sum(0) + bias.sum())\n",
    target=REWRITTEN,
)


def sliced(text: str) -> tuple[analysis.Target, analysis.Program]:
    snapshot = Snapshot(uri="", text=text)
    target = analysis.find_target(analysis.analyze(snapshot), "Model")
    assert target is not None
    return target, analysis.slice_program(snapshot, target)


def rewritten(text: str) -> str:
    return edit.apply_edit(text, sliced(text)[0].span, EDIT)


def evidence_of(before: str, after: str, device: str = "cuda") -> Evidence:
    """As of a verdict on a GPU that this machine does not have."""
    candidate = sliced(after)[1]
    request = EvaluationRequest(
        reference=sliced(before)[1],
        candidate_source=candidate.source,
        candidate_entry="Model",
        workload=Workload(name="get_inputs()", origin=WorkloadOrigin.GET_INPUTS),
        device=device,
        python="/home/somebody/bin/python",
        seed=7,
    )
    found = PartialEvaluation()
    found.samples_ms["eager"] = {"call": [2.0] * 30}
    speedups = {"eager": Interval(low=1.8, mid=2.0, high=2.2)}
    environment = {"torch": "2.9", "host": "somebodys-machine"}
    passed = Evaluation(
        status=EvalStatus.PASSED,
        device=device,
        device_name="A GPU",
        speedups=speedups,
        environment=environment,
    )
    return evidence.gather(request, found, passed)


def write(root: Path, name: str, before: str, after: str, now: str) -> Path:
    """A file of a repository as it is now, and its acceptance as the host writes it."""
    (root / name).write_text(now, newline="")
    evidence.write(root / "evidence.json", evidence_of(before, after))
    event = Event(
        kind=EventKind.ACCEPTED,
        proposal="1f0c",
        time="2026-01-01T00:00:00+00:00",
        folder=str(root),
        path=name,
        qualname="Model",
        data={"before": sliced(before)[0].fingerprint, "after": sliced(after)[0].fingerprint},
    )
    path = accept(event, root / "evidence.json")
    assert path is not None
    return path


def read(root: Path) -> Iterator[Acceptance]:
    for _, one in acceptances(root):
        assert isinstance(one, Acceptance)
        yield one


def test_an_acceptance_holds_what_is_needed_and_nothing_of_the_machine(tmp_path: Path) -> None:
    path = write(tmp_path, "model.py", BEFORE, rewritten(BEFORE), rewritten(BEFORE))
    assert path.parent == tmp_path / ".kernel-lsp" / "accepted" and path.name.startswith(
        "model.Model-"
    )
    (one,) = read(tmp_path)
    assert (one.path, one.qualname, one.after) == (
        "model.py",
        "Model",
        sliced(rewritten(BEFORE))[0].fingerprint,
    )
    assert evidence.request_of(one.evidence).reference.source == sliced(BEFORE)[1].source
    text = path.read_text()
    assert "somebody" not in text and '"samples": []' in text
    assert path.stat().st_mode & 0o044 == 0o044, "a repository's file is everybody's to read"


@pytest.mark.parametrize("link", [".kernel-lsp", ".kernel-lsp/accepted"])
def test_a_link_of_the_repositorys_leads_no_acceptance_out_of_it(tmp_path: Path, link: str) -> None:
    root, mine = tmp_path / "root", tmp_path / "mine"
    mine.mkdir()
    (root / link).parent.mkdir(parents=True)
    (root / link).symlink_to(mine)
    with pytest.raises(OSError, match="leads out of the workspace"):
        write(root, "model.py", BEFORE, rewritten(BEFORE), rewritten(BEFORE))
    assert list(mine.iterdir()) == []


def test_lost_evidence_is_no_acceptance(tmp_path: Path) -> None:
    event = Event(
        kind=EventKind.ACCEPTED,
        proposal="1",
        time="",
        folder=str(tmp_path),
        path="a.py",
        qualname="A",
    )
    assert accept(event, tmp_path / "gone.json") is None
    assert not (tmp_path / ".kernel-lsp").exists()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda data: {**data, "schema_version": 2}, "update kernel-lsp"),
        (lambda data: {**data, "schema_version": 0}, "accept the rewrite again"),
        (lambda data: {**data, "path": "../../etc/passwd"}, "outside of the workspace"),
        (lambda data: {**data, "path": "/etc/passwd"}, "outside of the workspace"),
        (lambda data: {**data, "qualname": "Model\n::error file=x::y"}, "no program has"),
        (lambda data: {**data, "path": "model.py\nok  pays"}, "no program has"),
        (lambda data: {**data, "path": "a/" * 3000 + "m.py"}, "no program has"),
        (lambda data: {**data, "qualname": "Model\u202eevil"}, "no program has"),
        (lambda data: {**data, "evidence": {**data["evidence"], "device": "tpu"}}, "tpu"),
        (lambda data: [data], "cannot be read"),
    ],
)
def test_what_is_no_acceptance_is_refused_with_the_way_out(
    tmp_path: Path, change, words: str
) -> None:
    path = write(tmp_path, "model.py", BEFORE, rewritten(BEFORE), rewritten(BEFORE))
    path.write_text(json.dumps(change(json.loads(path.read_text()))))
    ((_, error),) = acceptances(tmp_path)
    assert isinstance(error, EvaluationError) and words in str(error)


def test_the_name_of_an_acceptance_begins_no_line_of_a_report(tmp_path: Path) -> None:
    path = write(tmp_path, "model.py", BEFORE, rewritten(BEFORE), rewritten(BEFORE))
    path.rename(path.with_name("a\n::error file=x::y.json"))
    ((_, error),) = acceptances(tmp_path)
    assert isinstance(error, EvaluationError) and "\n::error" not in str(error)


@pytest.mark.parametrize("ends", ["\n", "\r\n"])
def test_the_original_comes_back_byte_for_byte(tmp_path: Path, ends: str) -> None:
    before = BEFORE.replace("\n", ends)
    after = rewritten(before)
    write(tmp_path, "model.py", before, after, after)
    (one,) = read(tmp_path)
    assert "folded" in after and without(after, one) == before


@pytest.mark.parametrize("odd", ["\f", 'ODD = "\u2028"\n'])
def test_lines_are_those_of_python_and_git(tmp_path: Path, odd: str) -> None:
    """A form feed ends no line, and U+2028 neither."""
    before = BEFORE.replace("LIMIT = 3\n", f"LIMIT = 3\n{odd}")
    after = rewritten(before)
    write(tmp_path, "model.py", before, after, after)
    (one,) = read(tmp_path)
    assert without(after, one) == before
    apply(patch("model.py", after, before), tmp_path)
    assert (tmp_path / "model.py").read_text() == before


def test_an_import_that_a_linter_removed_comes_back_and_what_else_is_missing_is_no_patch(
    tmp_path: Path,
) -> None:
    before = BEFORE.replace("LIMIT = 3\n", "import math as m\n\nLIMIT = 3\n").replace(
        ".sum(dim=1)", ".sum(dim=m.ceil(0.5)) + LIMIT"
    )
    after = rewritten(before)
    write(tmp_path, "model.py", before, after, after)
    (one,) = read(tmp_path)
    reverted = without(after.replace("import math as m\n", ""), one)
    assert reverted is not None and reverted.count("import math as m\n") == 1
    assert "m.ceil" in reverted and "import math\n" not in reverted
    assert without(after.replace("LIMIT = 3\n", "").replace("= LIMIT", "= 4"), one) is None


KERNEL = """import torch
import triton
import triton.language as tl


@triton.jit
def scale(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    tl.store(out_ptr + offs, tl.load(x_ptr + offs, mask=mask) * 2, mask=mask)


def launch(x):
    out = torch.empty_like(x)
    scale[(triton.cdiv(x.numel(), 64),)](x, out, x.numel(), BLOCK=64)
    return out


def unrelated(x):
    return x + 1
"""


def test_a_kernels_launcher_comes_back_with_it(tmp_path: Path) -> None:
    after = KERNEL.replace("n, BLOCK: tl.constexpr", "n, BLOCK: tl.constexpr, EVEN: tl.constexpr")
    after = after.replace("BLOCK=64)", "BLOCK=64, EVEN=x.numel() % 64 == 0)").replace(
        "< n", "< n + EVEN * 0"
    )
    now = after.replace("return x + 1", "return x + 2")
    found = evidence_of(BEFORE, rewritten(BEFORE))
    reference = replace(evidence.request_of(found).reference, source=KERNEL)
    one = Acceptance(
        proposal="1",
        path="kernel.py",
        qualname="scale",
        before="",
        after="",
        accepted="",
        evidence=replace(found, reference=reference, candidate_source=after),
    )
    assert without(now, one) == KERNEL.replace("return x + 1", "return x + 2")


def test_two_rewrites_whose_paths_end_alike_have_files_of_their_own(tmp_path: Path) -> None:
    after = rewritten(BEFORE)
    for name in ("first", "second"):
        folder = tmp_path / name / ("a" * 90)
        folder.mkdir(parents=True)
        write(tmp_path, f"{name}/{'a' * 90}/model.py", BEFORE, after, after)
    assert len(list(read(tmp_path))) == 2


def test_what_others_use_by_now_stays(tmp_path: Path) -> None:
    after = rewritten(BEFORE)
    now = after + "\n\ndef another(x, linear):\n    return folded(x, linear.weight, linear.bias)\n"
    write(tmp_path, "model.py", BEFORE, after, now)
    (one,) = read(tmp_path)
    reverted = without(now, one)
    assert reverted is not None and "def folded" in reverted and "import math" in reverted
    assert ".sum(dim=1)" in reverted


def judged(holding: Holding, acceptance: Acceptance, **changes: object) -> Guarded:
    one = Guarded(acceptance=acceptance, file="a.json", holding=holding, detail="why", line=9)
    return replace(one, **changes)


def test_speed_is_kept_as_long_as_it_is_sure(tmp_path: Path) -> None:
    write(tmp_path, "model.py", BEFORE, rewritten(BEFORE), rewritten(BEFORE))
    (one,) = read(tmp_path)
    request = evidence.request_of(one.evidence)

    def now(low: float, high: float) -> Holding:
        speedups = {"eager": Interval(low=low, mid=(low + high) / 2, high=high)}
        return _holding(one, request, replace(one.evidence.evaluation, speedups=speedups))[0]

    assert now(1.01, 1.04) is Holding.PAYS, "offered from 1.05 on, kept while it is faster at all"
    assert now(0.99, 1.2) is Holding.SLOW
    assert now(0.5, 0.6) is Holding.SLOW
    correct = replace(one, evidence=replace(one.evidence, require_speed=False))
    passed = replace(one.evidence.evaluation, speedups={})
    assert _holding(correct, replace(request, require_speed=False), passed) == (
        Holding.RIGHT,
        "right; its speed was not asked for when it was accepted",
    )
    wrong = Evaluation(status=EvalStatus.WRONG_RESULT, device="cuda", detail="far off")
    assert _holding(one, request, wrong) == (Holding.WRONG, "wrong_result: far off")


def test_reports_keep_to_their_schemas(tmp_path: Path) -> None:
    write(tmp_path, "model.py", BEFORE, rewritten(BEFORE), rewritten(BEFORE))
    (one,) = read(tmp_path)
    found = [judged(holding, one) for holding in Holding]
    found[2] = replace(found[2], revert="--- a/model.py\n+++ b/model.py\n")
    log = json.loads(guarded_sarif(found, ["b.json is broken"]))
    jsonschema.validate(log, SARIF)
    jsonschema.validate(json.loads(guarded_sarif([], [])), SARIF)
    run = log["runs"][0]
    assert {result["level"] for result in run["results"]} == {"error", "warning", "note"}
    assert len(run["results"]) == len(Holding) - 2, "what pays or is right is no result"
    assert (
        run["invocations"][0]["toolExecutionNotifications"][0]["message"]["text"]
        == "b.json is broken"
    )
    read_back = json.loads(guarded_json(found, []))
    assert [rewrite["holding"] for rewrite in read_back["rewrites"]] == [h.value for h in Holding]
    said = guarded_text([replace(one, detail="x\n::error::y") for one in found], ["z\nok  pays"])
    assert "\n::error" not in said and "\nok  pays" not in said.partition("unreadable")[2]
    text = guarded_text(found, [])
    assert "+++ b/model.py" in text and text.splitlines()[-1].startswith("7 accepted rewrites, ")


def damaged(one: Acceptance) -> Acceptance:
    """Those two come first: their evidence names an entry that is not there, a module that is not
    there."""
    kept = one.evidence
    if one.path == "a_damaged.py":
        return replace(one, evidence=replace(kept, candidate_entry="launch_on_copies"))
    if one.path == "a_moved.py":
        source = f"import moved_away\n{kept.reference.source}"
        return replace(
            one, evidence=replace(kept, reference=replace(kept.reference, source=source))
        )
    return one


@pytest.mark.torch
async def test_every_acceptance_of_a_repository(tmp_path: Path) -> None:
    after = rewritten(BEFORE)
    broken = after.replace("+ bias.sum()", "- bias.sum()")
    write(tmp_path, "right.py", BEFORE, after, after)
    write(tmp_path, "wrong.py", BEFORE, after, broken)
    write(tmp_path, "back.py", BEFORE, after, BEFORE)
    write(tmp_path, "gone.py", BEFORE, after, "X = 1\n")
    write(tmp_path, "lost.py", BEFORE, after, after)
    (tmp_path / "lost.py").unlink()
    write(tmp_path, "merging.py", BEFORE, after, f"<<<<<<< ours\n{after}")
    for name in ("a_damaged.py", "a_moved.py"):
        write(tmp_path, name, BEFORE, after, after)
    chosen = [
        (path, damaged(one)) for path, one in acceptances(tmp_path) if isinstance(one, Acceptance)
    ]
    told = []
    async with Gate() as gate:
        found = {
            one.acceptance.path: one
            async for one in guard(
                tmp_path,
                chosen,
                told.append,
                gate=gate,
                python=sys.executable,
                cuda=False,
                timeout_s=300.0,
                data_dir=tmp_path,
            )
        }
    assert {path: one.holding for path, one in found.items()} == {
        "right.py": Holding.RIGHT,
        "wrong.py": Holding.WRONG,
        "back.py": Holding.REVERTED,
        "gone.py": Holding.GONE,
        "lost.py": Holding.GONE,
        "merging.py": Holding.UNKNOWN,
        "a_damaged.py": Holding.UNKNOWN,
        "a_moved.py": Holding.UNKNOWN,
    }
    assert "restore the file" in found["a_damaged.py"].detail
    assert "No module named 'moved_away'" in found["a_moved.py"].detail
    assert "delete" in found["lost.py"].detail and "delete" not in found["merging.py"].detail
    assert "edited since" in found["wrong.py"].detail
    assert broken.splitlines()[found["wrong.py"].line - 1] == "class Model(nn.Module):"
    assert len(told) == 8
    apply(combine_patches(found.values(), {"wrong.py": broken}), tmp_path)
    assert (tmp_path / "wrong.py").read_text() == BEFORE


def apply(patch: str, folder: Path) -> None:
    done = subprocess.run(
        ["git", "apply", "-"], cwd=folder, input=patch.encode(), capture_output=True
    )
    assert done.returncode == 0, done.stderr


def test_the_command_on_a_repository_without_any(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").touch()
    command = ["guard", str(tmp_path), "--format", "json"]
    nothing = CliRunner().invoke(app, command)
    assert nothing.exit_code == 0 and json.loads(nothing.stdout)["rewrites"] == []
    path = write(tmp_path, "model.py", BEFORE, rewritten(BEFORE), rewritten(BEFORE))
    path.write_text("{")
    broken = CliRunner().invoke(app, command)
    assert broken.exit_code == 2 and "restore the file" in json.loads(broken.stdout)["problems"][0]


def test_in_ci_evidence_that_nobody_has_signed_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERNEL_LSP_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("CI", "true")
    key = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    path = write(tmp_path, "model.py", BEFORE, rewritten(BEFORE), rewritten(BEFORE))

    def problem(*more: str) -> str:
        done = CliRunner().invoke(app, ["guard", str(tmp_path), "--format", "json", *more])
        assert done.exit_code == 2
        return str(json.loads(done.stdout)["problems"][0])

    assert "refused in CI" in problem()
    signatures.sign(path, key=key, kind="evidence")
    assert "no signer is trusted" in problem("--unsigned")
    signatures.Keyring(tmp_path / "data").trust("ada", key.with_suffix(".pub"))
    path.write_text(path.read_text() + " ")
    assert "changed since it was signed" in problem()


def test_a_rewrite_upon_a_rewrite_is_judged_once(tmp_path: Path) -> None:
    once = rewritten(BEFORE)
    twice = once.replace("SCALE * (", "(")
    write(tmp_path, "model.py", BEFORE, once, twice)
    write(tmp_path, "model.py", once, twice, twice)
    found = [(path, one) for path, one in acceptances(tmp_path) if isinstance(one, Acceptance)]
    assert len(found) == 2
    ((_, one),) = latest(found)
    assert one.after == sliced(twice)[0].fingerprint


async def test_the_host_keeps_the_evidence_of_what_an_editor_accepted(tmp_path: Path) -> None:
    root, data = tmp_path / "project", tmp_path / "data"
    root.mkdir()
    (data / "evidence").mkdir(parents=True)
    evidence.write(data / "evidence" / "1f0c.json", evidence_of(BEFORE, rewritten(BEFORE)))
    about = {
        "before": sliced(BEFORE)[0].fingerprint,
        "after": sliced(rewritten(BEFORE))[0].fingerprint,
    }
    when = {
        "time": "2026-01-01T00:00:00+00:00",
        "folder": str(root),
        "path": "model.py",
        "qualname": "Model",
    }
    kinds = (EventKind.CHOSEN, EventKind.ACCEPTED)
    events = [Event(kind=kind, proposal="1f0c", data=about, **when) for kind in kinds]
    host = Host(data, wire.Pipe(io.BytesIO(), wire.Seal(bytes(wire.KEY_BYTES), wire.REPLIES)))
    await host.handle({"op": "record", "id": 1, "events": wire.to_json(events)})
    await asyncio.sleep(0)
    await host.close()
    (one,) = read(root)
    assert (one.path, one.qualname, one.after) == ("model.py", "Model", about["after"])
