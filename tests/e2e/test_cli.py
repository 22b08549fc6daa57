"""The command line as scripts rely on it: exit codes, JSON on standard output, files left alone."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.torch

REFERENCE = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, 4 * width)

    def forward(self, x):
        return self.linear(x).sum(dim=1)

def get_inputs():
    return [torch.randn(256, 512)]

def get_init_inputs():
    return [512]
"""
FOLDED = REFERENCE.replace("class Model", "class ModelNew").replace(
    "self.linear(x).sum(dim=1)", "x @ self.linear.weight.sum(0) + self.linear.bias.sum()"
)
IMPORTS_NOTHING = REFERENCE.replace(
    "from torch import nn", "from torch import nn\nimport not_installed_anywhere"
).replace("self.linear(x)", "not_installed_anywhere.f(x)")
CHAIN = """
import torch
from torch import nn

class Model(nn.Module):
    def forward(self, x, bias):
        y = torch.tanh(x * 0.5 + bias)
        return y * torch.sigmoid(y) + x

def get_inputs():
    return [torch.randn(65, 33), torch.randn(33)]
"""
WRONG = FOLDED.replace(" + self.linear.bias.sum()", "")
SLOW = REFERENCE.replace("class Model", "class ModelNew").replace(
    "self.linear(x)", "sum(self.linear(x) for _ in range(3)).div(3)"
)


def smaller(text: str) -> str:
    """The same program where its size is not the point."""
    return text.replace("randn(256, 512)", "randn(33, 65)").replace("return [512]", "return [65]")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "data"


def run(home: Path, *arguments: str | Path, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "KERNEL_LSP_DATA_DIR": str(home), "COLUMNS": "200"}
    command = [sys.executable, "-m", "kernel_lsp", *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, env=environment, cwd=cwd, check=False
    )


def output(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(done.stdout)
    assert result["schema_version"] == 1
    return result


def write(folder: Path, **texts: str) -> list[Path]:
    paths = [folder / f"{name}.py" for name in texts]
    for path, text in zip(paths, texts.values(), strict=True):
        path.write_text(text)
    return paths


# --- optimize ------------------------------------------------------------------------------


@pytest.mark.alone
def test_optimize_verifies_once_and_applies_from_the_cache_and_the_journal_knows(
    home: Path, tmp_path: Path
) -> None:
    path = tmp_path / "gain.py"
    shutil.copy(ROOT / "examples/diagonal_matmul.py", path)
    before = path.read_text()
    first = output(run(home, "optimize", path, "--json", "--device", "cpu"))["outcomes"][0]
    assert path.read_text() == before
    done = run(home, "optimize", path, "--apply", "--json", "--device", "cpu")
    assert done.returncode == 0, done.stderr
    outcome = output(done)["outcomes"][0]
    assert outcome["cached"] is True and outcome["proposals"] == first["proposals"]
    best = outcome["proposals"][0]
    assert best["verdict"] == "faster"
    assert best["evaluation"]["speedups"]["eager"]["low"] > 2
    after = path.read_text()
    assert after != before
    compile(after, str(path), "exec")
    assert "_forward_eager" in after
    sessions = output(run(home, "sessions", "list", "--json"))["sessions"]
    (session,) = [one for one in sessions if one["counts"].get("accepted")]
    assert {
        kind: session["counts"][kind] for kind in ("offered", "chosen", "accepted")
    } == dict.fromkeys(("offered", "chosen", "accepted"), 1)
    events = output(run(home, "sessions", "show", session["id"], "--json"))["events"]
    assert [event["kind"] for event in events][-3:] == ["offered", "chosen", "accepted"]
    assert list((home / "evidence").iterdir())
    assert run(home, "sessions", "forget", "--all").returncode == 0
    assert not list((home / "evidence").iterdir()), "it holds code of the user's"
    assert output(run(home, "sessions", "list", "--json"))["sessions"] == []


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            REFERENCE.replace("def get_inputs", "def other_inputs"),
            "what it is called with; record a run",
        ),
        (REFERENCE.replace("randn(256, 512)", "randn(256, 511)"), "511"),
        (IMPORTS_NOTHING, "not_installed_anywhere"),
        (
            REFERENCE.replace("return [torch.randn(256, 512)]", "raise OSError('no data')"),
            "no data",
        ),
    ],
    ids=["no-workload", "wrong-shape", "missing-import", "get-inputs-raises"],
)
def test_what_cannot_be_optimized_is_said_and_nothing_is_written(
    home: Path, tmp_path: Path, text: str, reason: str
) -> None:
    (path,) = write(tmp_path, module=text)
    done = run(home, "optimize", path, "--apply")
    assert done.returncode in (1, 2)
    assert reason in done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    assert path.read_text() == text


@pytest.mark.parametrize("argument", ["nowhere.py", "README.md"])
def test_a_file_that_is_no_program_exits_with_two(home: Path, argument: str) -> None:
    done = run(home, "optimize", argument)
    assert done.returncode == 2
    assert "error" in done.stderr
    assert "Traceback" not in done.stderr


def test_without_a_gpu_a_kernel_is_checked_and_compiled_but_never_called_faster(
    home: Path, tmp_path: Path
) -> None:
    (path,) = write(tmp_path, chain=CHAIN)
    done = run(home, "optimize", path, "--json", "--device", "cpu")
    assert done.returncode == 1, done.stderr
    (outcome,) = output(done)["outcomes"]
    (proposal,) = outcome["proposals"]
    evaluation = proposal["evaluation"]
    assert (proposal["verdict"], evaluation["device"]) == ("correct", "interpreter")
    assert evaluation["timings"] == []
    assert {kernel["arch"] for kernel in evaluation["kernels"]} == {"sm_80", "sm_90"}
    assert all(
        kernel["registers"] > 0 and kernel["spill_bytes"] == 0 for kernel in evaluation["kernels"]
    )
    assert "speed is unknown without a GPU" in outcome["note"]


# --- verify --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("candidate", "require", "code"),
    [
        pytest.param(FOLDED, "faster", 0, marks=pytest.mark.alone),
        (WRONG, "correct", 1),
        (SLOW, "faster", 1),
        ("class Other: pass", "correct", 2),
        ("def broken(:", "correct", 2),
    ],
    ids=["faster", "wrong", "slow", "no-class", "syntax"],
)
def test_verify_says_accepted_rejected_or_could_not_judge(
    home: Path, tmp_path: Path, candidate: str, require: str, code: int
) -> None:
    if code:
        candidate = smaller(candidate)
    paths = write(
        tmp_path, reference=smaller(REFERENCE) if code else REFERENCE, candidate=candidate
    )
    done = run(home, "verify", *paths, "--require", require, "--json", "--device", "cpu")
    assert done.returncode == code, done.stdout + done.stderr
    if code < 2:
        assert output(done)["accepted"] is (code == 0)
    assert "Traceback" not in done.stderr


def test_what_is_slow_but_right_is_accepted_as_right_and_its_saved_verdict_is_repeated(
    home: Path, tmp_path: Path
) -> None:
    """A verdict that was changed does not hold."""
    paths = write(tmp_path, reference=smaller(REFERENCE), candidate=smaller(SLOW))
    kept = tmp_path / "evidence.json"
    arguments = ("--require", "correct", "--device", "cpu", "--save-evidence", kept, "--json")
    done = run(home, "verify", *paths, *arguments)
    assert done.returncode == 0 and output(done)["accepted"] is True, done.stdout + done.stderr
    data = json.loads(kept.read_text())
    assert data["seed"] is not None and len(data["trials"]) >= 8
    done = run(home, "verify", "--evidence", kept, "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    assert output(done)["holds"] is True
    kept.write_text(json.dumps(data | {"candidate_source": smaller(WRONG)}))
    done = run(home, "verify", "--evidence", kept)
    assert done.returncode == 1 and "does not hold any more" in done.stdout
    data["evaluation"]["device_name"] = "a processor of another make"
    kept.write_text(json.dumps(data))
    done = run(home, "verify", "--evidence", kept)
    assert done.returncode == 2 and "a processor of another make" in done.stdout


@pytest.mark.parametrize(
    "content",
    [b"", b"\x7fELF\x00\x01" * 50, b"import torch\x00", b"#" * 50 * 2**20, b"# coding: nonsense\n"],
    ids=["empty", "binary", "null", "50-MB", "encoding"],
)
def test_files_that_are_no_programs_cannot_be_judged(
    home: Path, tmp_path: Path, content: bytes
) -> None:
    (reference,) = write(tmp_path, reference=REFERENCE)
    other = tmp_path / "other.py"
    other.write_bytes(content)
    for paths in ((reference, other), (other, reference)):
        done = run(home, "verify", *paths, "--device", "cpu")
        assert done.returncode == 2 and "could not judge" in done.stderr, done.stderr
        assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--evidence", "README.md"), "is no evidence"),
        (("--evidence", "nowhere.json"), "does not exist"),
        (("--evidence", "README.md", "--device", "cpu"), "decides about device itself"),
        (("README.md",), "two files are needed"),
        (("README.md", "README.md", "--save-evidence", "no-folder/e.json"), "there is no folder"),
        ((".", "."), "no regular file"),
    ],
)
def test_verify_refuses_what_makes_no_sense(
    home: Path, arguments: tuple[str, ...], words: str
) -> None:
    done = run(home, "verify", *arguments)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert words in " ".join(done.stderr.split())


# --- the rest ------------------------------------------------------------------------------


def test_check_reports_in_three_formats_and_exits_by_level(home: Path) -> None:
    assert "KL105" in run(home, "check", "examples/diagonal_matmul.py").stdout
    assert run(home, "check", "examples/diagonal_matmul.py").returncode == 1
    assert run(home, "check", "examples/diagonal_matmul.py", "--fail-on", "warning").returncode == 0
    assert output(run(home, "check", "examples", "--format", "json"))
    assert (
        json.loads(run(home, "check", "examples", "--format", "sarif").stdout)["version"] == "2.1.0"
    )
    assert run(home, "check", "nowhere").returncode == 2


@pytest.mark.alone
def test_bench_counts_every_task_and_resumes(home: Path, tmp_path: Path) -> None:
    tasks, answers, out = tmp_path / "tasks", tmp_path / "answers", tmp_path / "results.json"
    tasks.mkdir()
    answers.mkdir()
    write(tasks, good=REFERENCE, bad=REFERENCE)
    write(answers, good=FOLDED, bad=WRONG)
    arguments = ("bench", tasks, "--candidates", answers, "--out", out, "--device", "cpu", "--json")
    first = output(run(home, *arguments))
    scores = first["groups"]["all"]["eager"]
    assert (scores["tasks"], scores["correct"], scores["fast_1"]) == (2, 0.5, 0.5)
    again = run(home, *arguments)
    assert output(again)["tasks"] == first["tasks"]
    assert "good.py" not in again.stderr  # nothing was judged twice


def test_skills_are_listed_shown_and_linted(home: Path, tmp_path: Path) -> None:
    names = [skill["name"] for skill in output(run(home, "skills", "list", "--json"))["skills"]]
    assert "fused-pointwise" in names
    assert "## Key Idea" in run(home, "skills", "show", "fused-pointwise").stdout
    assert run(home, "skills", "show", "no-such-skill").returncode == 2
    assert run(home, "skills", "lint").returncode == 0
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "SKILL.md").write_text("no front matter")
    assert run(home, "skills", "lint", tmp_path / "bad").returncode == 1


def test_doctor_names_what_is_missing_and_the_way_out(home: Path) -> None:
    done = run(home, "doctor", "--json")
    findings = {finding["part"]: finding for finding in output(done)["findings"]}
    assert findings["torch"]["ok"]
    assert "minutes used this hour" in findings["GPU sharing"]["found"]
    assert findings["language model"]["found"] == "none: policy plan needs no model"
    assert all(finding["remedy"] for finding in findings.values() if not finding["ok"])


def test_trust_is_remembered(home: Path, tmp_path: Path) -> None:
    assert run(home, "trust", tmp_path).returncode == 0
    assert str(tmp_path) in (home / "consent.json").read_text()


def test_help_names_every_command_of_the_contract(home: Path) -> None:
    text = run(home, "--help").stdout
    for command in (
        "serve",
        "check",
        "optimize",
        "verify",
        "bench",
        "skills",
        "models",
        "sessions",
        "doctor",
        "trust",
    ):
        assert command in text
