"""What a repository brings cannot stop whoever reads it: pipes, devices, links, sizes, nesting."""

import ast
import contextlib
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernel_lsp import checker, config, documents, foreign, leftovers, skillbook
from kernel_lsp.config import Settings
from kernel_lsp.guarding import store
from kernel_lsp.skillbook import format
from kernel_lsp.workloads import busy, launches

Place = Callable[[Path], object]
LIMIT_S, HANGS_S = 5.0, 60.0
"""What our reading computes at most, and how long it waits at most; the machine may pause."""
ENDLESS = b"x = 1\n" + b"#" * 20_000_000

WRONG: dict[str, tuple[Place, str]] = {
    "a pipe": (os.mkfifo, "no regular file"),
    "a link to a device without an end": (lambda path: path.symlink_to("/dev/zero"), "leads out"),
    "a link to what the process is given": (
        lambda path: path.symlink_to("/dev/stdin"),
        "leads out",
    ),
    "a link to a private file": (lambda path: path.symlink_to("/etc/passwd"), "leads out"),
    "a link to itself": (lambda path: path.symlink_to(path), "itself|symbolic links"),
    "a folder": (Path.mkdir, "folder"),
    "20 MB": (lambda path: path.write_bytes(ENDLESS), "larger than"),
}


@pytest.fixture(params=WRONG.values(), ids=WRONG)
def placed(request: pytest.FixtureRequest) -> tuple[Place, str]:
    return request.param


@pytest.fixture(autouse=True)
def in_time() -> object:
    begun, computed = time.monotonic(), time.process_time()
    yield
    assert time.process_time() - computed < LIMIT_S and time.monotonic() - begun < HANGS_S


def test_what_is_no_file_of_a_person_is_refused_at_once(
    tmp_path: Path, placed: tuple[Place, str]
) -> None:
    place, words = placed
    place(tmp_path / "a")
    with pytest.raises(OSError, match=words):
        foreign.read_bytes(tmp_path / "a", most=1_000_000, within=tmp_path)


def test_a_link_within_the_workspace_is_followed(tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "a").write_text("text")
    (tmp_path / "b").symlink_to("shared/a")
    assert foreign.read_text(tmp_path / "b", most=4, within=tmp_path) == "text"
    with pytest.raises(OSError, match="leads out"):
        foreign.read_text(tmp_path / "b", most=4, within=tmp_path / "other")
    assert foreign.read_text(tmp_path / "b", most=4) == "text", "whoever names a file means it"
    with pytest.raises(OSError, match="larger than 3 bytes"):
        foreign.read_text(tmp_path / "b", most=3, within=tmp_path)


@pytest.mark.skipif(
    not Path("/proc/self/maps").exists(), reason="needs a file that says it is empty"
)
def test_a_file_that_says_it_is_empty_is_bounded_too() -> None:
    with pytest.raises(OSError, match="larger than"):
        foreign.read_bytes(Path("/proc/self/maps"), most=100)


def test_pyproject_that_cannot_be_read_is_one_problem(
    tmp_path: Path, placed: tuple[Place, str]
) -> None:
    place, _ = placed
    place(tmp_path / "pyproject.toml")
    settings, problems = config.load(tmp_path, environ={})
    assert settings == Settings()
    assert [str(problem) for problem in problems] == [str(problems[0])]
    assert "pyproject.toml cannot be read" in str(problems[0])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("\n\na = " + "[" * 5000 + "]" * 5000, r"nested more than 100 deep \(at line 3\)"),
        ("a = " + "{a = " * 5000 + "1" + "}" * 5000, r"nested more than 100 deep \(at line 1\)"),
        ("a = [\n" * 5000, r"nested more than 100 deep \(at line 101\)"),
        ("\n" + "a." * 250_000 + "a = 1", r"more than 64 parts \(at line 2\)"),
        ("[" + "'a'." * 100_000 + "a]", r"more than 64 parts \(at line 1\)"),
        ("a = " + "9" * 400_000, "."),
        ('a = """' + '\\"""' * 100_000, "."),
        ("a = '''" + "''" * 100_000, "."),
        ('a = "' + "\\" * 400_001, "."),
        ("\x00", "line 1"),
    ],
)
def test_toml_that_would_stop_its_parser_is_one_problem_with_a_line(
    tmp_path: Path, text: str, words: str
) -> None:
    (tmp_path / "pyproject.toml").write_text(text)
    settings, problems = config.load(tmp_path, environ={})
    assert settings == Settings() and len(problems) == 1
    with pytest.raises(ValueError, match=words):
        foreign.toml(text)
    (tmp_path / ".kernel-lsp").mkdir()
    (tmp_path / ".kernel-lsp" / "workloads.toml").write_text(text)
    assert busy(str(tmp_path)) == {}
    assert launches(str(tmp_path))[0] == () and len(launches(str(tmp_path))[1]) == 1


def test_large_files_that_people_write_are_read() -> None:
    lists = "[tool.a]\n" + "".join(
        f'k{n} = ["a.b.c.d", {{ x.y = 1.5 }}] # [[[ {{\n' for n in range(8_000)
    )
    assert len(foreign.toml(lists)["tool"]["a"]) == 8_000
    assert foreign.toml('a = """\n[[[ "" x\n"""\nb = \'\'\'{{{\n\'\'\'')["b"] == "{{{\n"


@given(st.text(alphabet="[]{}='\"\\#.,ab1 \n"))
def test_any_text_is_toml_or_a_value_error(text: str) -> None:
    with contextlib.suppress(ValueError):
        foreign.toml(text)


@pytest.mark.parametrize("number", ["9" * 400, "-" + "9" * 400, "1_0" * 200])
def test_an_integer_that_is_no_float_is_a_value_error(number: str) -> None:
    for text in (f"a = [{{b = {number}}}]", "a = 0x" + "f" * 300, "a = 0b1" + "0" * 1100):
        with pytest.raises(ValueError, match="300 digits"):
            foreign.toml(text)
    for content in (f'{{"a": [{number}]}}', f'{{"a": [{number}]}}'.encode("utf-16")):
        with pytest.raises(ValueError):
            foreign.json_value(content)
    assert foreign.json_value(json.dumps({number: 1, "b": number})) == {number: 1, "b": number}


@pytest.mark.parametrize("number", ["inf", "nan", "9" * 400])
def test_numbers_of_recorded_files_end_nothing(tmp_path: Path, number: str) -> None:
    (tmp_path / ".kernel-lsp").mkdir()
    numbers = f"calls = {number}\nshare = {number}\nmean_us = {number}\ngrid = [{number}]\n"
    text = "".join(f'[[{name}]]\ntarget = "a.py::A"\n{numbers}' for name in ("seen", "launch"))
    (tmp_path / ".kernel-lsp" / "x.toml").write_text(text)
    assert not launches(str(tmp_path))[0]
    assert all(one.calls <= 0 for one in busy(str(tmp_path)).values())


def test_json_of_any_depth_is_a_value_error() -> None:
    for text in ("[" * 100_000, '{"a":' * 100_000, "nul", "9" * 10_000):
        with pytest.raises(ValueError):
            foreign.json_value(text)


def test_a_tree_of_hostile_files_is_checked_to_its_end(tmp_path: Path) -> None:
    for number, (place, _) in enumerate(WRONG.values()):
        place(tmp_path / f"wrong{number}.py")
    (tmp_path / "good.py").write_text("import torch\n")
    found = dict(checker.check_paths([tmp_path], jobs=1))
    assert found.pop(tmp_path / "good.py").problem is None
    problems = [
        analysis.problem.message for analysis in found.values() if analysis.problem is not None
    ]
    assert len(problems) == len(found) == len(WRONG) - 1  # a folder is none of the files
    assert sum("leads out" in message for message in problems) == 3


def test_folders_may_be_nested_deeper_than_calls(tmp_path: Path) -> None:
    deep, limit = tmp_path, sys.getrecursionlimit()
    (tmp_path / "x.py").write_text("")
    for _ in range(limit + 100):
        deep = deep / "a"
        deep.mkdir()
    (deep / "x.py").write_text("")
    try:
        # What lies so deep is not looked for (discovery.MAX_DEPTH).
        assert list(checker.find_files(tmp_path)) == [tmp_path / "x.py"]
    finally:
        leftovers.remove(tmp_path / "a")  # whoever removes tmp_path calls itself


def test_an_open_folder_of_hostile_files_is_read_without_waiting(
    tmp_path: Path, placed: tuple[Place, str]
) -> None:
    place, _ = placed
    for folder, name in (
        (".", "model.py"),
        (".kernel-lsp", "a.toml"),
        (".kernel-lsp/accepted", "a.json"),
    ):
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        place(tmp_path / folder / name)
    assert documents.read((tmp_path / "model.py").as_uri(), tmp_path) is None
    assert busy(str(tmp_path)) == {} and len(launches(str(tmp_path))[1]) == 1
    assert [str(error)[:21] for _, error in store.acceptances(tmp_path)] == [
        "a.json cannot be read"
    ]


@pytest.mark.parametrize("name", ["SKILL.md", "rewrite.py", "notes.md"])
def test_a_skill_of_hostile_files_is_a_problem_and_costs_no_other(
    tmp_path: Path, name: str
) -> None:
    skills = Path(skillbook.__file__).parent.parent.parent / "skills"
    built_in = next(path for path in sorted(skills.iterdir()) if (path / "rewrite.py").exists())
    folder = tmp_path / built_in.name
    folder.mkdir()
    for file in ("SKILL.md", "rewrite.py"):
        if file != name:
            (folder / file).write_bytes((built_in / file).read_bytes())
    os.mkfifo(folder / name)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "SKILL.md").write_text("no skill")
    book = skillbook.load([tmp_path])
    assert book.digest
    if name == "notes.md":
        assert [skill.name for skill in book.skills] == [built_in.name]
    else:
        assert [p.cause for p in format.lint(folder)] == ["cannot be read: no regular file"]


READERS = (
    "analysis",
    "workloads",
    "skillbook",
    "guarding",
    "session",
    "server",
    "documents",
    "checker",
)
OWN_FILES = {
    "workloads/running.py": "a recording's parts, in the user's data folder",
    "server/programs.py": "the page of a program, in the user's data folder",
    "checker/known.py": "analyses of earlier runs, in the user's data folder",
    "skillbook/learned.py": "verified skills, in the user's data folder",
}


def test_what_reads_repositories_reads_by_this_way_alone() -> None:
    package = Path(foreign.__file__).parent
    found = set()
    for path in package.rglob("*.py"):
        name = path.relative_to(package).as_posix()
        if (
            name.startswith((*READERS, "config.py", "interpreter/__init__.py"))
            and "/recorder/" not in name
        ):
            tree = ast.walk(ast.parse(path.read_text()))
            if any(_reads(node.func) for node in tree if isinstance(node, ast.Call)):
                found.add(name)
    assert found == set(OWN_FILES)


def _reads(called: ast.expr) -> bool:
    if isinstance(called, ast.Attribute):
        ours = isinstance(called.value, ast.Name) and called.value.id == "foreign"
        return called.attr in ("read_text", "read_bytes") and not ours
    return isinstance(called, ast.Name) and called.id == "open"
