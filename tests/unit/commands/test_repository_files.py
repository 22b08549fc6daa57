"""What the forge and other tools read of this repository: forms, workflows, hooks, the action."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import kernel_lsp
from kernel_lsp.commands.app import PLACES as COMMANDS

ROOT = Path(__file__).resolve().parents[3]
FORGE = ROOT / ".github"
WORKFLOWS = sorted((FORGE / "workflows").glob("*.yml"))
FORMS = [path for path in sorted((FORGE / "ISSUE_TEMPLATE").glob("*.yml")) if path.stem != "config"]
FIELDS = {"textarea", "input", "dropdown", "checkboxes"}


def read(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


ACTION = read(ROOT / "action.yml")


def steps_of(workflow: Any) -> list[dict[str, Any]]:
    return [step for job in workflow["jobs"].values() for step in job["steps"]]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_use_actions_by_major_and_may_only_read(path: Path) -> None:
    workflow = read(path)
    assert workflow["permissions"] == {"contents": "read"}
    assert workflow[True]  # `on`, as YAML reads it
    for step in steps_of(workflow):
        assert ("uses" in step) != ("run" in step)
        assert step.get("uses", "./") == "./" or re.fullmatch(r"[\w-]+/[\w/-]+@v\d+", step["uses"])
        for script in re.findall(r"bash (scripts/\S+)", step.get("run", "")):
            assert (ROOT / script).exists()


def test_the_workflow_checks_what_scripts_check() -> None:
    commands = " ".join(step.get("run", "") for path in WORKFLOWS for step in steps_of(read(path)))
    assert {"scripts/lint", "scripts/test", "mkdocs build --strict"} <= set(
        re.findall(r"scripts/lint|scripts/test|mkdocs build --strict", commands)
    )


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_forms_have_what_the_forge_asks_for(path: Path) -> None:
    form = read(path)
    assert form["name"] and form["description"]
    fields = [item for item in form["body"] if item["type"] in FIELDS]
    assert len(fields) + sum(item["type"] == "markdown" for item in form["body"]) == len(
        form["body"]
    )
    assert len({field["id"] for field in fields}) == len(fields) > 0
    assert all(field["attributes"]["label"] for field in fields)


def test_dependabot_looks_where_something_is() -> None:
    for update in read(FORGE / "dependabot.yml")["updates"]:
        for folder in update.get("directories", [update.get("directory")]):
            assert (ROOT / folder.lstrip("/")).is_dir()


def test_hooks_name_commands_that_exist() -> None:
    for hook in read(ROOT / ".pre-commit-hooks.yaml"):
        program, command = hook["entry"].split()
        assert (program, hook["id"]) == ("kernel-lsp", f"kernel-lsp-{command}")
        assert command in COMMANDS and hook["language"] in ("python", "system")
        # a program of a repository may be called `--exit-zero`
        assert not hook.get("pass_filenames", True) or hook["args"][-1] == "--"


def test_the_development_container_is_json() -> None:
    container = json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text())
    assert "scripts/setup" in container["postCreateCommand"]


def test_every_step_of_the_action_names_its_shell() -> None:
    assert all(
        "uses" in step or step["shell"] in ("bash", "python") for step in ACTION["runs"]["steps"]
    )
    named = re.findall(r"inputs\.([\w-]+)", (ROOT / "action.yml").read_text())
    assert set(named) == set(ACTION["inputs"])


def test_the_action_installs_by_no_pip_of_the_repository(tmp_path: Path) -> None:
    (step,) = (step for step in ACTION["runs"]["steps"] if step.get("name") == "install")
    (tmp_path / "pip.py").write_text("print('the repository runs')")
    done = subprocess.run(
        ["bash", "-c", step["run"].replace("install", "--version")], cwd=tmp_path,
        env={**os.environ, "WANTED": "x"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "the repository runs" not in done.stdout


def run_action(tmp_path: Path, **inputs: str) -> tuple[int, list[str]]:
    """Exit status and annotations of the action's own scripts, as a runner would run them."""
    steps = {step.get("name"): step for step in ACTION["runs"]["steps"]}
    outputs = tmp_path / "outputs"
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "GITHUB_OUTPUT": str(outputs),
        "SARIF": str(tmp_path / "found.sarif"),
        **inputs,
    }
    shells = {"bash": ["bash", "-eo", "pipefail", "-c"], "python": [sys.executable, "-c"]}
    said = ""
    for name in ("run", "annotate", "result"):
        step = steps[name]
        if outputs.exists():
            environment["CODE"] = re.findall(r"^code=(\d+)$", outputs.read_text(), re.M)[-1]
        done = subprocess.run(
            [*shells[step["shell"]], step["run"]],
            cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        said += done.stdout
        if done.returncode:
            return done.returncode, said.splitlines()
    return 0, said.splitlines()


def test_the_action_annotates_findings_and_fails_at_its_level(tmp_path: Path) -> None:
    text = (ROOT / "tests" / "cases" / "KL105_diag_matmul.py").read_text()
    (tmp_path / "odd, 100%.py").write_text(text)
    line = next(number for number, row in enumerate(text.splitlines(), 1) if "#! KL105" in row)
    code, said = run_action(tmp_path, COMMAND="check", PATHS=".", FAIL_ON="hint")
    assert code == 1
    assert any(
        s.startswith(f"::notice file=odd%2C 100%25.py,line={line},title=KL105::") for s in said
    )
    known = {"COMMAND": "check", "PATHS": ".", "FAIL_ON": "hint", "BASELINE": "known findings.json"}
    write = ["check", ".", "--baseline", "known findings.json", "--update-baseline"]
    subprocess.run([sys.executable, "-m", "kernel_lsp", *write], cwd=tmp_path, check=True)
    assert run_action(tmp_path, **known) == (0, [])
    assert run_action(tmp_path, COMMAND="sing", PATHS=".", FAIL_ON="hint")[0] == 2


def test_every_package_that_the_wheel_brings_is_pinned_as_it_is_tested() -> None:
    """Five were missing: what jaraco needs before Python 3.12."""
    pins = {}
    for line in (ROOT / "scripts" / "constraints.txt").read_text().splitlines():
        if "==" in line and not line.startswith("#"):
            name, _, version = line.partition("==")
            pins[canonicalize_name(name)] = version
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    waiting, found = [Requirement(line) for line in wanted], dict[str, str]()
    while waiting:
        one = waiting.pop()
        name = canonicalize_name(one.name)
        if name in found or (one.marker is not None and not one.marker.evaluate({"extra": ""})):
            continue
        found[name] = metadata.version(name)
        waiting += [Requirement(line) for line in metadata.requires(name) or ()]
    assert {name: pins.get(name) for name in found} == found
    assert {"colorama", "pywin32-ctypes"} <= pins.keys()  # of Windows, where it was not run


ROCK = f"kernel-lsp.nvim-{kernel_lsp.__version__}-1.rockspec"


def test_the_rock_of_neovim_names_every_file_and_the_version() -> None:
    """As LuaRocks 3.8 built it (`luarocks --lua-version 5.1 make`) on 2026-11-28."""
    folder = ROOT / "editor-clients" / "neovim"
    assert [path.name for path in folder.glob("*.rockspec")] == [ROCK]
    text = (folder / ROCK).read_text()
    assert f"version = '{kernel_lsp.__version__}-1'" in text
    named = set(re.findall(r"'(lua/[\w/]+\.lua)'", text))
    assert named == {str(path.relative_to(folder)) for path in folder.glob("lua/**/*.lua")}
    copied = set(re.findall(r"'(\w+)'", text.partition("copy_directories")[2]))
    assert copied == {path.name for path in folder.iterdir() if path.is_dir()} - {"lua"}


def test_nobody_is_told_to_install_a_name_that_nobody_owns_yet() -> None:
    """Whoever registers it would be installed (docs/how-to/publishing.md)."""
    folders = ("docs", "editor-clients", "kernel_lsp", "trainer", "skills")
    files = [path for name in folders for path in (ROOT / name).rglob("*") if path.is_file()]
    files += [*ROOT.glob("*.md")]
    kinds = {".py", ".md", ".html", ".lua", ".el", ".ts", ".json", ".txt"}
    telling = [
        str(path.relative_to(ROOT))
        for path in files
        if path.suffix in kinds
        and "node_modules" not in path.parts
        and re.search(r"pip(?:x)? install ['\"]?kernel-lsp\b", path.read_text())
    ]
    assert telling == []
