"""``kernel-lsp skills`` on a learned library: what is printed, what scripts read, what is refused
and why."""

import json
from pathlib import Path
from typing import Any

import pytest
from library_helpers import lesson, on, verification
from typer.testing import CliRunner

from kernel_lsp.commands.app import app
from kernel_lsp.library import SkillLibrary, store
from kernel_lsp.presenter import learned
from kernel_lsp.records import UsageStats


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KERNEL_LSP_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def name(home: Path) -> str:
    """Of a draft."""
    library, draft = SkillLibrary(home / "data"), lesson()
    library.stage(draft)
    return draft.draft.name


def run(*arguments: str, code: int = 0) -> str:
    found = CliRunner().invoke(app, ["skills", *arguments])
    assert found.exit_code == code, found.output
    assert "Traceback" not in found.output
    return found.output


def data(*arguments: str) -> Any:
    return json.loads(run(*arguments, "--json"))


def test_without_anything_learned_it_is_said_how_that_comes(home: Path) -> None:
    assert "nothing was learned yet" in run("list")
    assert data("list")["papers"] == []
    assert data("learn")["drafted"] == [] and "nothing new" in run("learn")
    assert run("history") == "nothing was learned yet\n" and data("history")["versions"] == []
    assert "no draft to verify" in run("verify", "--tasks", ".", code=2)


def test_a_draft_is_listed_shown_and_promoted_only_on_ones_own_account(
    home: Path, name: str
) -> None:
    assert any(line.startswith(name) and " staged " in line for line in run("list").splitlines())
    shown = run("show", name)
    assert (
        "a recipe of executable skills" in shown
        and "standing: staged" in shown
        and "## Pitfalls" in shown
    )
    assert data("show", name)["papers"]["standing"] == "staged"
    refused = run("promote", name, code=2)
    assert "nothing has shown" in refused and "skills verify" in refused
    assert "1 in use" in run("promote", name, "--unverified")
    assert "already" in run("promote", name, code=2)
    assert data("show", name)["papers"]["reason"] == "promoted by hand, unverified"
    (mine,) = [skill for skill in data("list")["skills"] if skill["source"] == "learned"]
    assert mine["name"] == name and mine["recipe"][0]["skill"] == "fused-matmul"


def test_retired_back_and_the_history_of_it(home: Path, name: str) -> None:
    library = SkillLibrary(home / "data")
    found = library.find(name)
    assert found is not None
    store.settle(library, found, verification())
    assert data("retire", name, "--reason", "it was slow")["version"]["number"] == 2
    assert "it was slow" in run("show", name)
    assert "retired already" in run("retire", name, code=2)
    run("promote", name)  # it was verified before
    assert data("rollback", "2")["version"]["number"] == 4
    assert "there is no version 9" in run("rollback", "9", code=2)
    actions = [line.split(", ")[2] for line in run("history").splitlines()]
    assert actions == [
        f"promote {name}: 1 in use",
        f"retire {name}: 0 in use",
        f"promote {name}: 1 in use",
        "rollback to 2: 0 in use",
    ]


@pytest.mark.parametrize("command", ["show", "retire", "promote"])
def test_an_unknown_name_is_said(home: Path, command: str) -> None:
    assert "called nobody" in run(command, "nobody", code=2)


def test_verification_says_what_is_missing(home: Path, name: str) -> None:
    assert "--tasks" in run("verify", name, code=2)
    assert "does not exist" in run("verify", name, "--tasks", "nowhere", code=2)
    assert "called nobody" in run("verify", "nobody", "--tasks", ".", code=2)


def test_every_command_has_help(home: Path) -> None:
    for command in (
        "list",
        "show",
        "lint",
        "learn",
        "verify",
        "promote",
        "retire",
        "rollback",
        "history",
    ):
        assert "Usage" in run(command, "--help")


# --- words --------------------------------------------------------------------------------


def test_a_verification_is_told_with_its_tasks() -> None:
    tasks = (on("a", 0.6931, 0.0), on("b", 0.4, 0.4, differs=False, samples=0))
    found = verification(reason="uplift 1.2x")
    told = learned.verification_text(
        type(found)(
            **{
                name: getattr(found, name)
                for name in ("hardware", "device_name", "created", "accepted", "reason")
            },
            tasks=tasks,
            credit={"a-skill": 0.0953},
            skipped={"cannot be captured": 2},
        )
    ).splitlines()
    assert told[0] == "accepted on a CPU, 2026-11-21T12:00:00+00:00: uplift 1.2x"
    assert told[3].split() == ["a", "3", "3/3", "2.00x", "1.00x", "1.00x", "2.000x"]
    assert told[4].endswith("the same candidate")
    assert told[6:] == ["loss when left out: a-skill 1.100x", "passed over: 2 cannot be captured"]


def test_use_is_told_per_hardware() -> None:
    used = UsageStats(skill="a", hardware="cuda:sm_90", uses=8, wins=5, pairs=2, uplift_sum=0.1906)
    assert (
        learned.usage_line(used)
        == "cuda:sm_90: the offer in 5 of 8 jobs; 1.10x of the best beside it, over 2"
    )
