"""The library as a whole: what is found, what is left out and why, and when its digest changes."""

import subprocess
import sys
from pathlib import Path

import pytest

from kernel_lsp.skillbook import Skillbook, SkillFolder, folders, load

TEXT = """---
name: {name}
description: {name} described.
metadata: {{scope: graph, tags: [a], version: 1}}
---
# Motivation
m
# Key Idea
k
# Example
```
e
```
# Pitfalls
p
"""


def write(root: Path, name: str, text: str = TEXT) -> Path:
    folder = root / name
    folder.mkdir(parents=True)
    (folder / "SKILL.md").write_text(text.format(name=name))
    return folder


def names(book: Skillbook) -> list[str]:
    return [skill.name for skill in book.skills]


def test_one_bad_skill_costs_only_itself(tmp_path: Path) -> None:
    write(tmp_path, "b-good")
    write(tmp_path, "a-good")
    write(tmp_path, "bad", "no front matter")
    (tmp_path / "empty").mkdir()
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / ".git").mkdir()
    (tmp_path / "README.md").write_text("how to write one")
    book = load([tmp_path])
    assert names(book) == ["a-good", "b-good"]
    assert sorted(Path(p.path).parent.name for p in book.problems) == ["bad", "empty"]
    assert book.get("a-good") is not None and book.get("bad") is None


def test_the_first_folder_wins_a_name_and_the_second_is_reported(tmp_path: Path) -> None:
    write(tmp_path / "built-in", "same")
    second = write(tmp_path / "workspace", "same")
    book = load(
        [
            SkillFolder(path=tmp_path / "built-in", source="built-in"),
            SkillFolder(path=tmp_path / "workspace", source="workspace"),
        ]
    )
    assert [(s.name, s.source) for s in book.skills] == [("same", "built-in")]
    (problem,) = book.problems
    assert problem.path == str(second) and "rename" in problem.remedy


def test_the_same_folder_given_twice_is_no_clash(tmp_path: Path) -> None:
    write(tmp_path, "one")
    (tmp_path.parent / "link").symlink_to(tmp_path)
    assert load([tmp_path, tmp_path, tmp_path.parent / "link"]).problems == ()


def test_the_digest_changes_with_any_file_that_matters_and_with_nothing_else(
    tmp_path: Path,
) -> None:
    folder = write(tmp_path, "one")
    first = load([tmp_path]).digest
    (folder / "evidence.jsonl").write_text("{}")
    write(tmp_path, "broken", "x")
    assert load([tmp_path]).digest == first
    (folder / "SKILL.md").write_text(TEXT.format(name="one") + "more\n")
    second = load([tmp_path]).digest
    (folder / "helper.py").write_text("x = 1")
    assert len({first, second, load([tmp_path]).digest}) == 3


def test_workspace_skills_are_loaded_only_for_a_workspace_that_was_passed(tmp_path: Path) -> None:
    write(tmp_path / "skills", "local")
    assert "workspace" not in {f.source for f in folders(data_dir=tmp_path / "none")}
    found = folders(workspace=tmp_path, data_dir=tmp_path / "none")
    assert [s.source for s in load(found).skills if s.name == "local"] == ["workspace"]


def test_a_workspace_folder_that_holds_other_things_is_no_problem(tmp_path: Path) -> None:
    (tmp_path / "skills" / "a_python_package").mkdir(parents=True)
    write(tmp_path / "skills", "broken", "no front matter")
    problems = load(folders(workspace=tmp_path, data_dir=tmp_path / "none")).problems
    assert [Path(p.path).parent.name for p in problems if str(tmp_path) in p.path] == ["broken"]


def test_a_configured_folder_inside_the_workspace_is_workspace_code(tmp_path: Path) -> None:
    write(tmp_path / "work" / "mine", "inner")
    write(tmp_path / "shared", "outer")
    found = folders(
        ["mine", str(tmp_path / "shared")], workspace=tmp_path / "work", data_dir=tmp_path / "none"
    )
    sources = {s.name: s.source for s in load(found).skills if s.source != "built-in"}
    assert sources == {"inner": "workspace", "outer": "configured"}


@pytest.mark.parametrize(
    ("entry", "cause"), [("relative", "no workspace"), ("/no/such/folder", "cannot be read")]
)
def test_a_folder_that_cannot_be_used_is_reported(tmp_path: Path, entry: str, cause: str) -> None:
    problems = load(folders([entry], data_dir=tmp_path)).problems
    (problem,) = [p for p in problems if cause in p.cause]
    assert problem.path == entry and "skill_folders" in problem.remedy


def test_a_missing_user_folder_is_normal(tmp_path: Path) -> None:
    found = [f for f in folders(data_dir=tmp_path / "none") if f.source == "user"]
    assert load(found).problems == ()


def test_listing_skills_needs_no_numpy() -> None:
    code = (
        "import sys; from kernel_lsp.skillbook import folders, load; load(folders()); "
        "assert not {'numpy', 'rank_bm25', 'torch'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
