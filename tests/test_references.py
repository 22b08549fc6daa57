"""Files that docstrings and comments name are there.

A file is named by its path or by the end of it: `cost.py`, `codegen/regions/cost.py`. EXAMPLES are
files of users, in examples of what they write.
"""

import ast
import io
import re
import subprocess
import tokenize
from collections.abc import Iterator
from pathlib import Path

from slow_tests import SLOW

ROOT = Path(__file__).resolve().parent.parent
TOPS = ("kernel_lsp", "trainer", "skills", "benchmarks", "scripts", "editor-clients", "docs")
NOT_OURS = ("benchmarks/tasks", "benchmarks/programs", "benchmarks/results")
EXAMPLES = {
    "PROGRAM.py",
    "example.py",
    "file.py",
    "kernel_lsp_patches/__init__.py",
    "kernels/softmax.py",
    "models/block.py",
    "path.py",
    "setup.py",
    "tinylib_blocks.py",
}
NAMED = re.compile(r"(?<![\w/.*<-])([\w/-]*\w\.py)\b")


def tracked_files() -> list[str]:
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    return listed.stdout.splitlines()


def prose(text: str) -> Iterator[str]:
    """Docstrings and comments."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            yield str(node.value.value)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.string


def test_named_files_are_there() -> None:
    files = tracked_files()
    ends = {
        "/".join(parts[at:]) for parts in (f.split("/") for f in files) for at in range(len(parts))
    }
    missing = {}
    for file in files:
        if not file.endswith(".py") or not file.startswith(TOPS) or file.startswith(NOT_OURS):
            continue
        text = (ROOT / file).read_text(encoding="utf-8")
        unknown = set(NAMED.findall(text)) - ends - EXAMPLES
        if not unknown:  # which saves most of this test's time: nothing is parsed
            continue
        named = {name for part in prose(text) for name in NAMED.findall(part)}
        if gone := sorted(named - ends - EXAMPLES):
            missing[file] = gone
    assert not missing, f"these name files that have moved: {missing}"


def test_tests_that_are_named_as_slow_are_there() -> None:
    """tests/helpers/slow_tests.py writes the list; a test that is renamed leaves it behind."""
    gone = set()
    for line in SLOW.read_text().splitlines():
        path, name = line.split("[")[0].split("::")[:2]
        if not re.search(rf"\b{name}\b", (ROOT / path).read_text()):
            gone.add(line)
    assert gone == set()


def test_what_tests_import_of_other_folders_can_be_imported_by_itself() -> None:
    """``from test_a import b`` works where the folder's own tests are collected. A test of another
    folder that is run alone, as one that failed is asked once more, would not begin."""
    texts = {path: path.read_text() for path in (ROOT / "tests").rglob("*.py")}
    named = {
        ROOT / f"{module.replace('.', '/')}.py"
        for text in texts.values()
        for module in re.findall(r"^from (tests\.[\w.]+) import", text, re.MULTILINE)
    }
    bare = re.compile(r"^(from|import) test_", re.MULTILINE)
    wrong = sorted(path.name for path in named & texts.keys() if bare.search(texts[path]))
    assert not wrong, f"these import a neighbor by its bare name: {wrong}"
