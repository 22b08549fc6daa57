"""``kernel-lsp check`` as a linter: which files, which rules, how they are told, and what it
writes."""

from __future__ import annotations

import json
import os
import xml.etree.ElementTree as xml
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from kernel_lsp.checker import discovery, known
from kernel_lsp.commands.app import app

CASES = Path(__file__).parents[2] / "cases"
DIAG = "import torch\ndef f(a: torch.Tensor):\n    return torch.diag(a) @ a\n"
FIXABLE = (CASES / "KL204_low_precision_accumulation.py").read_text()


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with one finding, from inside of which commands are run."""
    monkeypatch.setenv("KERNEL_LSP_DATA_DIR", str(tmp_path / "data"))
    folder = tmp_path / "project"
    (folder / ".git").mkdir(parents=True)
    put(folder / "a.py")
    monkeypatch.chdir(folder)
    return folder


def put(path: Path, text: str = DIAG) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def settings(folder: Path, text: str) -> None:
    put(folder / "pyproject.toml", f"[tool.kernel-lsp]\n{text}\n")


def check(*arguments: str, input: str | None = None) -> Result:
    return CliRunner().invoke(app, ["check", *arguments], input=input)


def checked(*arguments: str) -> list[str]:
    """The files of a run, in order."""
    found = json.loads(check(*arguments, "--format", "json", "--no-cache").stdout)
    return [file["path"] for file in found["files"]]


def rules(*arguments: str) -> list[str]:
    found = json.loads(check(*arguments, "--format", "json", "--no-cache").stdout)
    return [finding["rule"] for file in found["files"] for finding in file["findings"]]


# --- which files ----------------------------------------------------------------------------


def test_what_git_ignores_is_left_out_and_what_is_named_is_not(project: Path) -> None:
    put(project / ".gitignore", "out/\n*_gen.py\n!keep_gen.py\n")
    put(project / ".git" / "info" / "exclude", "local.py\n")
    put(project / "sub" / ".gitignore", "/b.py\n")
    for name in ("out/x.py", "y_gen.py", "keep_gen.py", "local.py", "sub/b.py", "sub/deep/b.py"):
        put(project / name)
    kept = ["a.py", "keep_gen.py", "sub/deep/b.py"]
    assert checked(".") == kept
    assert checked("sub") == ["sub/deep/b.py"]
    assert checked("y_gen.py", "out") == ["y_gen.py", "out/x.py"]
    assert checked("y_gen.py", "a.py", "out/x.py", "--force-exclude") == ["a.py"]
    everything = {*kept, "out/x.py", "y_gen.py", "local.py", "sub/b.py"}
    assert set(checked(".", "--no-gitignore")) == everything
    settings(project, "respect-gitignore = false")
    assert set(checked(".")) == everything


def test_exclude_of_settings_and_of_the_command_line(project: Path) -> None:
    settings(project, 'exclude = ["gen/", "old_*.py"]')
    for name in ("gen/x.py", "old_a.py", "new.py"):
        put(project / name)
    assert checked(".") == ["a.py", "new.py"]
    assert checked(".", "--exclude", "new.py,nothing") == ["a.py"]
    assert checked("old_a.py") == ["old_a.py"]
    assert checked("old_a.py", "gen/x.py", "--force-exclude") == []


def test_each_file_has_the_settings_of_its_project(project: Path) -> None:
    settings(project, 'ignore = ["KL105"]')
    put(project / "package" / "pyproject.toml", "[project]\nname = 'x'\n")
    put(project / "package" / "b.py")
    put(project / "other" / "c.py")
    settings(project / "other", 'select = ["KL105"]')
    # A pyproject.toml that says nothing to us is no project of ours.
    assert rules("package", "a.py") == []
    assert rules("other/c.py") == ["KL105"]


@pytest.mark.parametrize("pattern", ["!", "\\", "[", "*a*b*c*d*e*f", "(" * 50])
def test_a_pattern_that_means_nothing_names_nothing(project: Path, pattern: str) -> None:
    put(project / ".gitignore", f"{pattern}\n")
    put(project / ("a" * 200 + ".py"))
    assert len(checked(".")) == 2


# --- which rules ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "arguments", "expected"),
    [
        ("", [], True),
        ('disabled_rules = ["KL105"]', [], False),
        ('ignore = ["KL1"]', [], False),
        ('ignore = ["KL1"]\nselect = ["KL105"]', [], True),
        ('select = ["KL2"]', [], False),
        ('select = ["KL2"]', ["--select", "KL1"], True),
        ("", ["--select", "KL105", "--ignore", "KL105"], False),
        ("", ["--ignore", "ALL"], False),
        ('per-file-ignores = {"*.py" = ["KL105"]}', [], False),
        ('per-file-ignores = {"b.py" = ["KL105"]}', [], True),
        ('[tool.kernel-lsp.per-file-ignores]\n"/a.py" = ["ALL"]', [], False),
    ],
)
def test_which_rules_count(project: Path, text: str, arguments: list[str], expected: bool) -> None:
    settings(project, text)
    assert rules("a.py", *arguments) == (["KL105"] if expected else [])


def test_a_rule_that_does_not_exist_is_named(project: Path) -> None:
    done = check("a.py", "--select", "KL9")
    assert done.exit_code == 2 and "no rule begins with KL9" in done.stderr
    settings(project, 'ignore = ["kl105"]')
    done = check("a.py")
    assert "no rule begins with 'kl105'" in done.stderr and done.exit_code == 1


def test_severities_of_settings_decide_the_exit_code(project: Path) -> None:
    assert check("a.py", "--fail-on", "warning").exit_code == 0
    settings(project, 'severity = {KL1 = "warning", KL105 = "error", KL2 = "hint"}')
    done = check("a.py", "--fail-on", "error")
    assert done.exit_code == 1 and "KL105 error:" in done.stdout
    assert check("a.py", "--exit-zero").exit_code == 0
    settings(project, 'severity = {KL105 = "fatal"}')
    assert "allowed: a table of hint, information, warning, error" in check("a.py").stderr


@pytest.mark.parametrize(
    ("comment", "found"),
    [
        ("# kernel-lsp: ignore[KL105]", 0),
        ("# kernel-lsp: ignore[KL104, KL105]  # because", 0),
        ("# kernel-lsp: ignore", 0),
        ("# kernel-lsp: ignore[KL104]", 1),
        ("# kernel-lsp: ignored[KL105]", 1),
        ("# kernel-lsp: ignore-files", 1),
        ("# kernel-lsp: ignore[KL105", 1),
    ],
)
def test_a_comment_silences_its_line(project: Path, comment: str, found: int) -> None:
    put(project / "a.py", DIAG.replace("@ a", f"@ a  {comment}"))
    assert len(rules("a.py")) == found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (f"{DIAG}# kernel-lsp: ignore-file\n", 0),
        (f"{DIAG}# kernel-lsp: ignore-file[KL105]\n", 0),
        (f"{DIAG}# kernel-lsp: ignore-file[KL104]\n", 1),
        (f"# kernel-lsp: ignore[KL105]\n{DIAG}", 0),
        (f'{DIAG}"# kernel-lsp: ignore-file"\n', 1),
    ],
)
def test_a_comment_silences_its_file(project: Path, text: str, found: int) -> None:
    put(project / "a.py", text)
    assert len(rules("a.py")) == found


# --- how they are told ----------------------------------------------------------------------


def test_annotations_of_github(project: Path) -> None:
    put(project / "b.py", "import torch\nx = (\n")
    first, second = check(".", "--format", "github").stdout.splitlines()
    assert first.startswith(
        "::notice file=a.py,line=3,endLine=3,col=12,endColumn=29,title=KL105 diag-matmul::"
    )
    assert second.startswith("::warning file=b.py,line=2,title=not checked::")


def test_code_quality_of_gitlab_keeps_its_fingerprints_while_lines_move(project: Path) -> None:
    before = json.loads(check("a.py", "--format", "gitlab").stdout)
    put(project / "a.py", DIAG.replace("def f", "\n\ndef f"))
    after = json.loads(check("a.py", "--format", "gitlab", "--no-cache").stdout)
    assert [one["location"]["lines"] for one in (*before, *after)] == [
        {"begin": n, "end": n} for n in (3, 5)
    ]
    assert before[0]["fingerprint"] == after[0]["fingerprint"] and before[0]["severity"] == "info"


def test_junit_is_xml_with_a_case_per_file(project: Path) -> None:
    put(project / "b<&.py", "x = 1\n")
    suites = xml.fromstring(check(".", "--format", "junit").stdout)
    cases = {
        case.get("name"): [one.get("type") for one in case] for case in suites.iter("testcase")
    }
    assert cases == {"a.py": ["KL105"], "b<&.py": []}
    assert (suites.get("tests"), suites.get("failures")) == ("2", "1")


def test_statistics_and_quiet(project: Path) -> None:
    put(project / "b.py", DIAG + DIAG.replace("def f", "def g"))
    assert check(".", "--statistics").stdout.split() == ["3", "KL105", "hint", "diag-matmul"]
    assert len(check(".", "--quiet").stdout.splitlines()) == 3
    put(project / "a.py", "x = 1\n")
    assert check("a.py", "-q", "--no-cache").stdout == ""


def test_standard_input_has_the_settings_of_its_name(project: Path) -> None:
    done = check("-", input=DIAG)
    assert done.exit_code == 1 and done.stdout.startswith("stdin.py:3:12: KL105")
    settings(project, 'per-file-ignores = {"tests/" = ["KL105"]}')
    assert check("-", "--stdin-filename", "tests/t.py", input=DIAG).exit_code == 0
    assert check("-", "--stdin-filename", "src/t.py", input=DIAG).exit_code == 1
    assert check("-", "a.py", input=DIAG).exit_code == 2
    assert check("-", "-", input=DIAG).exit_code == 2


# --- what it writes -------------------------------------------------------------------------


def test_a_baseline_holds_back_what_was_there(project: Path) -> None:
    done = check(".", "--baseline", "known.json", "--update-baseline")
    assert done.exit_code == 0 and "1 finding in known.json" in done.stderr
    put(project / "a.py", "\n# moved\n" + DIAG)
    assert check(".", "--baseline", "known.json").exit_code == 0
    put(project / "a.py", DIAG.replace("    return", "    b = torch.diag(a) @ a\n    return"))
    done = check(".", "--baseline", "known.json")
    assert done.exit_code == 1 and done.stdout.count("KL105 hint") == 1
    (entry,) = json.loads((project / "known.json").read_text())["findings"]
    assert (entry["path"], entry["rule"], entry["target"], entry["count"]) == (
        "a.py",
        "KL105",
        "f",
        1,
    )


def test_a_name_that_is_no_utf8_is_reported_in_every_format(project: Path) -> None:
    put(project / os.fsdecode(b"\xff.py"))
    for form in ("text", "json", "sarif", "github", "gitlab", "junit"):
        assert check(".", "--format", form).exit_code == 1
    assert check(".", "--baseline", "known.json", "--update-baseline").exit_code == 0
    assert check(".", "--baseline", "known.json").exit_code == 0


def test_a_baseline_is_written_through_no_link_out_of_its_folder(project: Path) -> None:
    mine = put(project.parent / "mine", "mine\n")
    (project / "known.json").symlink_to(mine)
    assert check(".", "--baseline", "known.json", "--update-baseline").exit_code == 2
    assert mine.read_text() == "mine\n"


def test_very_deep_folders_are_left_out(project: Path) -> None:
    """2,000 of them, each in the one before, took minutes."""
    deep = project
    for _ in range(discovery.MAX_DEPTH + 1):
        deep /= "d"
    put(deep.parent / "last.py")
    put(deep / "too_deep.py")
    assert [Path(name).name for name in checked(".")] == ["a.py", "last.py"]


def test_a_baseline_that_cannot_be_read_is_no_empty_one(project: Path) -> None:
    assert check(".", "--baseline", "absent.json").exit_code == 2
    put(project / "broken.json", "[")
    assert "--update-baseline" in check(".", "--baseline", "broken.json").stderr
    entry = '{"path": "a.py", "rule": "KL1", "target": "", "message": "", "count": 1e999}'
    put(project / "endless.json", f'{{"findings": [{entry}]}}')
    assert "--update-baseline" in check(".", "--baseline", "endless.json").stderr
    assert check(".", "--update-baseline").exit_code == 2


def test_fix_mends_what_it_can_and_leaves_the_rest(project: Path) -> None:
    path = put(project / "b.py", FIXABLE.replace("\n", "\r\n"))
    before = rules("b.py")
    shown = check("b.py", "--diff", "--select", "KL204")
    assert shown.exit_code == 1 and path.read_bytes() == FIXABLE.replace("\n", "\r\n").encode()
    done = check("b.py", "--fix", "--select", "KL204")
    assert done.exit_code == 0 and f"{before.count('KL204')} findings fixed" in done.stderr
    assert "KL204" not in rules("b.py") and path.read_bytes().count(b"\r\n") == FIXABLE.count("\n")
    assert check("b.py", "--fix", "--select", "KL204", "-q").stderr == ""


def test_fix_of_standard_input_prints_the_text(project: Path) -> None:
    done = check("-", "--fix", "--select", "KL204", input=FIXABLE)
    assert done.exit_code == 0 and "dtype=tl.float32" in done.stdout
    assert check("-", "--fix", input=DIAG).stdout == DIAG


def test_a_fix_of_what_is_ignored_is_not_made(project: Path) -> None:
    put(project / "b.py", FIXABLE)
    assert "0 findings fixed" in check("b.py", "--fix", "--ignore", "KL204").stderr
    assert (project / "b.py").read_text() == FIXABLE


# --- what it remembers ----------------------------------------------------------------------


def aged(path: Path) -> Path:
    os.utime(path, ns=(10**18, 10**18))
    return path


def test_an_unchanged_file_is_not_read_again(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(known, "_SETTLED_NS", 0)
    path = aged(put(project / "b.py", FIXABLE))
    first = check(".", "--format", "json").stdout
    monkeypatch.setattr("kernel_lsp.checker.check_file", _refuse)
    assert check(".", "--format", "json").stdout == first
    assert "1 finding in 2 files" in check(".", "--ignore", "KL2", "--ignore", "KL204").stdout
    aged(put(path, FIXABLE + "\n"))
    assert isinstance(check(".").exception, AssertionError)


def test_a_file_of_this_moment_is_not_remembered(project: Path) -> None:
    assert check(".").exit_code == 1  # it may change again in this tick of the clock
    assert not list((project.parent / "data" / "check").glob("*"))


@pytest.mark.parametrize("content", ["{", "[]", '{"rules": 1}'])
def test_a_damaged_cache_is_an_empty_one(
    project: Path, content: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(known, "_SETTLED_NS", 0)
    first = check(".").stdout
    (kept,) = (project.parent / "data" / "check").glob("*")
    put(kept, content)
    assert check(".").stdout == first
    entry = json.loads(kept.read_text())
    entry["files"] = {name: [stamp, [1]] for name, (stamp, _) in entry["files"].items()}
    put(kept, json.dumps(entry))
    assert check(".").stdout == first


def _refuse(*arguments: Any) -> Any:
    raise AssertionError("the file was read")
