"""Which programs a workspace has, told by looking at its files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from kernel_lsp import entries
from kernel_lsp.entries import scripts
from kernel_lsp.records import EntryKind, EntryPoint, EntryPoints

MAIN = 'import torch\nif __name__ == "__main__":\n    print(torch.ones(1))\n'


def workspace(folder: Path, **files: str) -> Path:
    """Names without suffix."""
    for name, text in files.items():
        path = folder / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def names(found: EntryPoints) -> list[str]:
    return [one.name for one in found.points]


def only(found: EntryPoints) -> EntryPoint:
    (one,) = found.points
    return one


@pytest.mark.parametrize(
    ("text", "runs"),
    [
        (MAIN, True),
        ("if '__main__' == __name__:\n    pass\n", True),
        ("import torch\nfor x in data:\n    loss(x).backward()\n", True),
        ("with torch.no_grad():\n    while True:\n        model.generate(x)\n", True),
        ("def main():\n    pass\n\nmain()\n", True),
        ("def train():\n    for x in data:\n        loss(x).backward()\n", False),
        ("class Model:\n    def step(self):\n        self.step()\n", False),
        ("def f():\n    if __name__ == '__main__':\n        pass\n", False),
        ("text = 'if __name__ == \"__main__\":'\n", False),
        ("for name in names:\n    print(name)\n", False),
        ("if __name__ == '__main__':\n    broken(\n", False),
        ("", False),
    ],
)
def test_what_is_run_is_told_from_what_is_imported(tmp_path: Path, text: str, runs: bool) -> None:
    found = entries.find_entries(workspace(tmp_path, code=text))
    assert names(found) == (["code.py"] if runs else [])
    assert found.complete


def test_an_entry_says_how_it_is_run(tmp_path: Path) -> None:
    one = only(entries.find_entries(workspace(tmp_path, **{"tools/train": MAIN})))
    assert (one.kind, one.words, one.folder) == (
        EntryKind.SCRIPT,
        ("tools/train.py",),
        str(tmp_path),
    )
    assert one.uses_torch


@pytest.mark.parametrize(
    ("files", "words", "folder"),
    [
        (
            {"pkg/__init__": "", "pkg/train": f"from . import model\n{MAIN}"},
            ("-m", "pkg.train"),
            ".",
        ),
        (
            {"src/p/__init__": "", "src/p/train": f"from .m import x\n{MAIN}"},
            ("-m", "p.train"),
            "src",
        ),
        ({"pkg/__init__": "", "pkg/__main__": "import torch\n"}, ("-m", "pkg"), "."),
        ({"loose/train": f"from .m import x\n{MAIN}"}, ("-m", "loose.train"), "."),
        ({"pkg/__init__": "", "pkg/train": MAIN}, ("pkg/train.py",), "."),
        ({"a-b/train": f"from .m import x\n{MAIN}"}, ("a-b/train.py",), "."),
        ({"-odd": MAIN}, ("./-odd.py",), "."),
    ],
    ids=[
        "by dots",
        "below src",
        "main module",
        "without init",
        "no dots",
        "no module name",
        "like an option",
    ],
)
def test_modules_of_packages_are_run_by_name_where_they_have_to_be(
    tmp_path: Path, files: dict[str, str], words: tuple[str, ...], folder: str
) -> None:
    one = only(entries.find_entries(workspace(tmp_path, **files)))
    assert (one.words, Path(one.folder)) == (words, tmp_path / folder)


def test_tests_are_run_by_pytest_and_come_last(tmp_path: Path) -> None:
    test = "import torch\ndef test_one():\n    pass\n"
    tests = {"a/test_model": test, "b/model_test": test, "test_empty": "x = 1\n"}
    workspace(tmp_path, train=MAIN, **tests)
    found = entries.find_entries(tmp_path)
    assert names(found) == ["train.py", "a/test_model.py", "b/model_test.py"]
    assert found.points[1].words == ("-m", "pytest", "a/test_model.py")


def test_what_names_torch_comes_first_and_the_file_at_hand_before_all(tmp_path: Path) -> None:
    workspace(tmp_path, a=MAIN.replace("torch", "math"), b=MAIN, **{"deep/c": MAIN})
    assert names(entries.find_entries(tmp_path)) == ["b.py", "deep/c.py", "a.py"]
    assert names(entries.find_entries(tmp_path, open_file=tmp_path / "a.py"))[0] == "a.py"
    assert names(entries.find_entries(tmp_path, open_file=Path("/elsewhere.py")))[0] == "b.py"


def test_environments_and_hidden_folders_are_left_out(tmp_path: Path) -> None:
    kept = ("train", "venvs/real/train")
    others = ("mine/lib/x", "conda/bin/x", "build/x", "node_modules/x", ".hidden/x")
    workspace(tmp_path, **dict.fromkeys((*kept, *others), MAIN))
    (tmp_path / "mine" / "pyvenv.cfg").touch()
    (tmp_path / "conda" / "conda-meta").mkdir()
    assert names(entries.find_entries(tmp_path)) == ["train.py", "venvs/real/train.py"]


def test_links_lead_neither_out_nor_in_circles(tmp_path: Path) -> None:
    root, other = (
        workspace(tmp_path / "root", train=MAIN),
        workspace(tmp_path / "other", secret=MAIN),
    )
    (root / "again").symlink_to(root)
    (root / "folder").symlink_to(other)
    (root / "file.py").symlink_to(other / "secret.py")
    (root / "self.py").symlink_to("self.py")
    (root / "gone.py").symlink_to("nowhere.py")
    (root / "same.py").symlink_to("train.py")
    assert names(entries.find_entries(root)) == ["same.py", "train.py"]


def test_what_is_no_text_of_a_person_is_left_out(tmp_path: Path) -> None:
    workspace(tmp_path, train=MAIN, huge=MAIN + "#" * scripts.MAX_BYTES)
    (tmp_path / "latin.py").write_bytes(MAIN.encode() + b"# \xff\n")
    (tmp_path / "nulls.py").write_bytes(MAIN.encode() + b"\0")
    (tmp_path / "deep.py").write_text(MAIN + "(" * 5000 + ")" * 5000)
    (tmp_path / "line\nbreak.py").write_text(MAIN)
    (tmp_path / "es\x1b[31mcape.py").write_text(MAIN)
    os.mkfifo(tmp_path / "pipe.py")
    assert names(entries.find_entries(tmp_path)) == ["train.py"]


def test_a_folder_that_is_gone_or_empty_has_nothing(tmp_path: Path) -> None:
    assert (
        entries.find_entries(tmp_path / "gone")
        == entries.find_entries(tmp_path)
        == EntryPoints(points=())
    )


def test_ten_thousand_files_are_looked_through_in_bounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is outermost is found whatever lies below."""
    workspace(tmp_path, train=MAIN)
    (tmp_path / "data").mkdir()
    for number in range(10_000):
        (tmp_path / "data" / f"x{number}.py").touch()
    monkeypatch.setattr(scripts, "MAX_FILES", 500)
    read: list[Path] = []
    entry_point = scripts._entry_point
    monkeypatch.setattr(
        scripts,
        "_entry_point",
        lambda path, folder: (read.append(path), entry_point(path, folder))[1],
    )
    found = entries.find_entries(tmp_path)
    assert names(found) == ["train.py"] and not found.complete
    assert len(read) == 500


@pytest.mark.parametrize(
    ("limit", "value"), [("MAX_LISTED", 3), ("MAX_IN_FOLDER", 3), ("LIMIT_S", -1.0)]
)
def test_every_bound_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, value: float
) -> None:
    workspace(tmp_path, train=MAIN, **{f"sub/f{number}": "" for number in range(9)})
    monkeypatch.setattr(scripts, limit, value)
    found = entries.find_entries(tmp_path)
    assert not found.complete
    assert names(found) == ([] if limit == "LIMIT_S" else ["train.py"])


def test_no_more_than_a_person_can_choose_from(tmp_path: Path) -> None:
    found = entries.find_entries(
        workspace(tmp_path, **{f"t{number}": MAIN for number in range(entries.MAX_ENTRIES + 5)})
    )
    assert len(found.points) == entries.MAX_ENTRIES and not found.complete


DEBUG: dict[str, Any] = {
    "name": "Train small",
    "type": "debugpy",
    "request": "launch",
    "program": "${workspaceFolder}/train.py",
    "args": ["--out", "it's; rm -rf $HOME", "a b"],
    "env": {"SIZE": "small"},
}


def debugged(folder: Path, **changed: Any) -> EntryPoints:
    one = {key: value for key, value in {**DEBUG, **changed}.items() if value is not ...}
    return entries.find_entries(workspace(folder, train="x = 1\n"), [one], folder / "train.py")


def test_a_debug_configuration_is_an_entry(tmp_path: Path) -> None:
    one = only(debugged(tmp_path))
    assert (one.name, one.kind, one.folder) == ("Train small", EntryKind.DEBUG, str(tmp_path))
    assert one.words == ("train.py", "--out", "it's; rm -rf $HOME", "a b")
    assert one.environment == (("SIZE", "small"),)


def test_a_debug_configuration_may_name_a_module_a_folder_and_the_open_file(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    module = only(debugged(tmp_path, program=..., module="pkg.train", cwd="${workspaceFolder}/sub"))
    assert (module.words[:2], module.folder) == (("-m", "pkg.train"), str(tmp_path / "sub"))
    assert (
        only(debugged(tmp_path, program="${file}", python="/usr/bin/python3")).python
        == "/usr/bin/python3"
    )


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"program": "${input:which}"}, "a variable that only an editor knows: ${input:which}"),
        ({"args": ["${env:HOME}"]}, "a variable that only an editor knows"),
        ({"args": "--all in one"}, "args is no list"),
        ({"args": ["a\nb"]}, "a terminal would obey"),
        ({"args": ["\u202etxt"]}, "a terminal would obey"),
        ({"args": [1]}, "args is no text"),
        ({"env": {"A B": "x"}}, "env is no table"),
        ({"env": ["A"]}, "env is no table"),
        ({"env": {"A": None}}, "env is no text"),
        ({"program": "/etc/passwd"}, "lies outside"),
        ({"program": "../train.py"}, "lies outside"),
        ({"cwd": "/"}, "lies outside"),
        ({"program": "missing.py"}, "there is no"),
        ({"program": ...}, "program is no text"),
        ({"program": "loop.py"}, "lies outside"),
        ({"python": ["python", "-X"]}, "python is no text"),
    ],
)
def test_a_debug_configuration_that_says_too_little_or_too_much_is_told(
    tmp_path: Path, changed: dict[str, Any], why: str
) -> None:
    (tmp_path / "loop.py").symlink_to("/etc")
    found = debugged(tmp_path, **changed)
    assert not found.points
    assert (
        len(found.problems) == 1
        and why in found.problems[0]
        and "'Train small'" in found.problems[0]
    )


@pytest.mark.parametrize("changed", [{"type": "node"}, {"request": "attach"}, {"type": ...}])
def test_other_languages_and_running_programs_are_none_of_ours(
    tmp_path: Path, changed: dict[str, Any]
) -> None:
    assert debugged(tmp_path, **changed) == EntryPoints(points=())


@pytest.mark.parametrize(
    ("text", "names_of", "problems"),
    [
        (
            '{"configurations": [{"name": "a", "type": "python", "request": "launch", '
            '"module": "m"}]}',
            ["a"],
            0,
        ),
        ('{"configurations": 3}', [], 0),
        ('{"configurations": [3, null, "x"]}', [], 0),
        ("[]", [], 0),
        ('// a comment\n{"configurations": []}', [], 1),
        ("[" * 100_000, [], 1),
        ("\x00\xff", [], 1),
        (" " * 300_000, [], 1),
    ],
    ids=["plain", "no list", "no tables", "no table", "comment", "deep", "no text", "long"],
)
def test_launch_json_is_read_where_no_editor_has(
    tmp_path: Path, text: str, names_of: list[str], problems: int
) -> None:
    (tmp_path / ".vscode").mkdir()
    (tmp_path / ".vscode" / "launch.json").write_bytes(text.encode("latin-1"))
    found = entries.find_entries(tmp_path)
    assert (names(found), len(found.problems)) == (names_of, problems)


def test_a_launch_json_that_leads_out_of_the_workspace_is_not_read(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / ".vscode").mkdir(parents=True)
    (tmp_path / "launch.json").write_text('{"configurations": []}')
    (root / ".vscode" / "launch.json").symlink_to(tmp_path / "launch.json")
    (problem,) = entries.find_entries(root).problems
    assert "out of the workspace" in problem
