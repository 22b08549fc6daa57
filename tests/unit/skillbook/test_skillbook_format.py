# ruff: noqa: E501 - a row of a table stays on its line
"""Each way a skill folder can be wrong: the file, the field and the remedy that the author
reads."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernel_lsp.errors import SkillError
from kernel_lsp.skillbook import executable, lint
from kernel_lsp.skillbook.format import read

GOOD = """---
name: fuse-tail
description: Fuse a chain of pointwise operations into one pass. Use when memory traffic dominates.
license: Apache-2.0
metadata:
  scope: graph
  tags: [pointwise, channels_last]
  version: 2
  preconditions:
    - every operation is pointwise
---
# Fuse the tail

## Motivation
Each operation reads and writes all of memory.

## Key Idea
One kernel.

## Example
```python
# Pitfalls
y = x.relu() + 1
```

### After
One launch.

## Pitfalls
Broadcasts.
"""

REWRITE = """
from kernel_lsp.rewrite import Match, Proof

parameters = {"BLOCK_SIZE": [1024, 512]}

def match(graph): return []
def preconditions(graph, match): return []
def apply(graph, match, parameters): raise SystemExit("linting must not run this")

raise SystemExit("nor import this")
"""


def skill(
    root: Path, text: str = GOOD, rewrite: str | None = None, name: str = "fuse-tail"
) -> Path:
    folder = root / name
    folder.mkdir()
    (folder / "SKILL.md").write_text(text, encoding="utf-8")
    if rewrite is not None:
        (folder / "rewrite.py").write_text(rewrite, encoding="utf-8")
    return folder


def test_a_good_skill_is_read_whole(tmp_path: Path) -> None:
    found = read(skill(tmp_path), source="user")
    assert (found.name, found.scope, found.version, found.source) == (
        "fuse-tail",
        "graph",
        2,
        "user",
    )
    assert found.tags == ("pointwise", "channels_last") and not found.executable
    assert found.body.startswith("# Fuse the tail") and found.body.endswith("Broadcasts.\n")
    assert found.path == str(tmp_path / "fuse-tail")


def test_a_rewrite_makes_it_executable_and_is_not_run(tmp_path: Path) -> None:
    assert read(skill(tmp_path, rewrite=REWRITE)).executable


@pytest.mark.parametrize("text", [GOOD.replace("\n", "\r\n"), "\ufeff" + GOOD])
def test_line_endings_and_byte_order_marks_do_not_matter(tmp_path: Path, text: str) -> None:
    assert lint(skill(tmp_path, text)) == ()


WRONG = {
    "no front matter": ("# hello", "front matter", "missing", "---"),
    "yaml": (GOOD.replace("fuse-tail", "[fuse"), "front matter", "not YAML", "quote"),
    "a list": ("---\n- a\n---\n" + GOOD.split("---\n")[2], "front matter", "no fields", "key: value"),
    "alias": (GOOD.replace("graph", "&a graph").replace("version: 2", "version: *a"), "front matter", "alias", ""),
    "repeated": (GOOD.replace("license:", "name: x\nlicense:"), "front matter", "'name' is given twice", ""),
    "typo": (GOOD.replace("description:", "descripton:"), "descripton", "unknown", "did you mean `description`?"),
    "misplaced": (GOOD.replace("license: Apache-2.0", "tags: [a]"), "tags", "unknown", "`metadata.tags`"),
    "unknown": (GOOD.replace("license:", "author:"), "author", "unknown", "known fields are name"),
    "nested typo": (GOOD.replace("  scope", "  scop"), "metadata.scop", "unknown", "`metadata.scope`?"),
    "no name": (GOOD.replace("name: fuse-tail\n", ""), "name", "missing", "add `name:`"),
    "other name": (GOOD.replace("name: fuse-tail", "name: fuse-head"), "name", "differs from the folder", "same"),
    "snake case": (GOOD.replace("name: fuse-tail", "name: fuse_tail"), "name", "kebab-case", "a-z"),
    "long description": (GOOD.replace("Fuse a chain", "Fuse " + "a" * 99), "description", "characters", "120"),
    "no description": (GOOD.replace("Fuse a chain of pointwise operations into one pass. Use when memory traffic"
                                    " dominates.", "''"), "description", "no text", "one line"),
    "brackets": (GOOD.replace("Fuse a chain", "Fuse <b>"), "description", "angle bracket", "plain"),
    "license": (GOOD.replace("Apache-2.0", "[a]"), "license", "no text", "SPDX"),
    "scope": (GOOD.replace("scope: graph", "scope: cuda"), "metadata.scope", "'cuda' is unknown", "graph, triton"),
    "version text": (GOOD.replace("version: 2", "version: '2'"), "metadata.version", "'2'", "without quotes"),
    "version bool": (GOOD.replace("version: 2", "version: true"), "metadata.version", "True", "whole number"),
    "version zero": (GOOD.replace("version: 2", "version: 0"), "metadata.version", "0", "from 1"),
    "tags text": (GOOD.replace("[pointwise, channels_last]", "pointwise"), "metadata.tags", "no list", "tags: ["),
    "no tags": (GOOD.replace("[pointwise, channels_last]", "[]"), "metadata.tags", "no list of 1", ""),
    "tag case": (GOOD.replace("[pointwise,", "[Point Wise,"), "metadata.tags", "'Point Wise'", "a-z"),
    "tag twice": (GOOD.replace("[pointwise,", "[channels_last,"), "metadata.tags", "twice", "remove"),
    "metadata": (GOOD.replace("metadata:\n  scope: graph", "metadata: 3\nx:\n  scope: graph"),
                 "metadata", "no fields", "indent"),
    "preconditions": (GOOD.replace("    - every operation is pointwise", "    a: b"),
                      "metadata.preconditions", "no list", "- condition"),
    "section missing": (GOOD.replace("## Key Idea\nOne kernel.\n", ""), "section Key Idea", "missing", "add"),
    "section misspelt": (GOOD.replace("## Key Idea", "## Key Ideas"), "section Key Idea", "missing", "did you mean"),
    "section empty": (GOOD.replace("One kernel.\n", ""), "section Key Idea", "empty", "write it"),
    "section twice": (GOOD + "\n## Example\n```\n1\n```\n", "section Example", "twice", "merge"),
    "order": (GOOD.replace("## Motivation", "## X").replace("## Key Idea", "## Motivation").replace("## X", "## Key Idea"),
              "sections", "in the order Key Idea, Motivation", "Motivation, Key Idea"),
    "no code": (GOOD.replace("```python", "").replace("```", "").replace("# Pitfalls\n", "", 1),
                "section Example", "no code block", "fences"),
    "too long": (GOOD + "x" * 70_000, "file", "larger than 65,536 bytes", "move details"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_skill_names_file_field_and_remedy(tmp_path: Path, name: str) -> None:
    text, field, cause, remedy = WRONG[name]
    folder = skill(tmp_path, text)
    found = [p for p in lint(folder) if p.field == field]
    assert found, [str(p) for p in lint(folder)]
    assert (
        found[0].path.endswith("SKILL.md") and cause in found[0].cause and remedy in found[0].remedy
    )
    with pytest.raises(SkillError) as error:
        read(folder)
    assert error.value.remedy


def test_all_problems_are_found_in_one_pass(tmp_path: Path) -> None:
    text = (
        GOOD.replace("scope: graph", "scope: cuda")
        .replace("version: 2", "version: x")
        .replace("## Pit", "## Pot")
    )
    fields = [p.field for p in lint(skill(tmp_path, text, rewrite="x = 1"))]
    assert fields == [
        "metadata.scope", "metadata.version", "section Pitfalls", "match", "preconditions", "apply", "parameters",
    ]  # fmt: skip


def test_files_that_are_no_text_are_problems_and_no_crashes(tmp_path: Path) -> None:
    binary = tmp_path / "binary"
    binary.mkdir()
    (binary / "SKILL.md").write_bytes(b"---\nname: \xff\xfe")
    (problem,) = lint(binary)
    assert "byte 10 is not UTF-8" in problem.cause
    (problem,) = lint(tmp_path / "absent")
    assert problem.cause == "missing"
    (tmp_path / "folder" / "SKILL.md").mkdir(parents=True)
    (problem,) = lint(tmp_path / "folder")
    assert "cannot be read" in problem.cause


BAD_REWRITES = {
    "syntax": ("def match(graph:\n", "line 1", "does not compile"),
    "null byte": ("x = '\0'", "file", "does not compile"),
    "missing": (REWRITE.replace("def apply", "def aply"), "apply", "not defined"),
    "too few arguments": (REWRITE.replace("match(graph)", "match()"), "match", "1 positional"),
    "too many arguments": (REWRITE.replace("(graph, match):", "(graph, match, x):"), "preconditions", "2 positional"),
    "named only": (REWRITE.replace("match(graph)", "match(graph, *, x)"), "match", "1 positional"),
    "no parameters": (REWRITE.replace("parameters =", "params ="), "parameters", "not defined"),
    "foreign import": (REWRITE + "import kernel_lsp.journal.store", "line 11", "imports kernel_lsp.journal.store"),
    "relative import": (REWRITE + "from . import x", "line 11", "imports ."),
    "look-alike": (REWRITE + "from kernel_lsp.rewriter import x", "line 11", "imports kernel_lsp.rewriter"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_REWRITES)
def test_a_wrong_rewrite_is_told_without_running_it(tmp_path: Path, name: str) -> None:
    code, field, cause = BAD_REWRITES[name]
    (problem,) = lint(skill(tmp_path, rewrite=code))
    assert problem.path.endswith("rewrite.py")
    assert (problem.field == field or name == "null byte") and cause in problem.cause


@pytest.mark.parametrize(
    "code",
    [
        REWRITE.replace(
            'parameters = {"BLOCK_SIZE": [1024, 512]}', "def parameters(graph, match): return {}"
        ),
        REWRITE.replace("parameters = {", "parameters: dict[str, list[int]] = {"),
        REWRITE.replace("match(graph)", "match(graph, limit=3)"),
        REWRITE.replace("apply(graph, match, parameters)", "apply(*everything)"),
    ],
)
def test_what_the_engine_can_call_is_accepted(tmp_path: Path, code: str) -> None:
    assert lint(skill(tmp_path, rewrite=code)) == ()


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_no_file_content_makes_linting_fail(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("fuzz")
    lines = GOOD.splitlines(keepends=True)
    for _ in range(data.draw(st.integers(0, 4))):
        at = data.draw(st.integers(0, len(lines) - 1))
        lines[at] = data.draw(
            st.sampled_from(
                [
                    "",
                    "---\n",
                    "  - [\n",
                    "metadata: [1, {a: b}]\n",
                    "? [x]\n: y\n",
                    "!!python/object x\n",
                    "{a: 1}: 2\n",
                    "version: 2026-01-01\n",
                    "tags: {a: b}\n",
                    "#\n",
                    "```\n",
                    "<<: {a: 1}\n",
                ]
            )
            | st.text(max_size=20)
        )
    raw = data.draw(
        st.just("".join(lines).encode("utf-8", "surrogatepass")) | st.binary(max_size=200)
    )
    (folder / "SKILL.md").write_bytes(raw)
    (folder / "rewrite.py").write_bytes(
        data.draw(st.binary(max_size=100) | st.just(REWRITE.encode()))
    )
    assert all(problem.cause and problem.remedy for problem in lint(folder))


BLOCKS = (
    "def helper():\n    {}",
    "async def helper():\n    {}",
    "class Helper:\n    def helper(self):\n        {}",
    "if match:\n    pass\nelif apply:\n    {}",
    "if match:\n    pass\nelse:\n    {}",
    "for _ in ():\n    pass\nelse:\n    {}",
    "while False:\n    {}",
    "try:\n    pass\nexcept OSError:\n    {}",
    "try:\n    pass\nexcept* OSError:\n    {}",
    "try:\n    pass\nfinally:\n    {}",
    "with open('x'):\n    {}",
    "match apply:\n    case 1:\n        {}",
)


@pytest.mark.parametrize("block", BLOCKS)
def test_an_import_is_found_in_every_block(tmp_path: Path, block: str) -> None:
    code = REWRITE + block.format("from kernel_lsp import host") + "\n"
    assert any(
        "imports kernel_lsp" in problem.cause for problem in lint(skill(tmp_path, rewrite=code))
    )


def test_an_edit_counts_at_once_and_nobody_shares_what_was_read(tmp_path: Path) -> None:
    folder = skill(tmp_path, rewrite=REWRITE)
    assert not lint(folder)
    first, again = read(folder), read(folder)
    assert first == again
    (folder / "rewrite.py").write_text("import kernel_lsp.host\n")
    assert lint(folder)
    (folder / "rewrite.py").write_text(REWRITE)
    assert not lint(folder)
    (folder / "SKILL.md").write_text(GOOD.replace("version: 2", "version: [2"))
    assert lint(folder)


def test_functions_of_the_engine_may_be_imported(tmp_path: Path) -> None:
    engine = "from kernel_lsp.rewrite.codegen.pooling.fuse import apply, matches as match\n"
    skill = tmp_path / "rewrite.py"
    skill.write_text(engine + "parameters = {}\n\ndef preconditions(graph, match): return []\n")
    assert executable.check(skill) == ()
    skill.write_text(engine + "parameters = {}\n")
    assert [field for field, *_ in executable.check(skill)] == ["preconditions"]
