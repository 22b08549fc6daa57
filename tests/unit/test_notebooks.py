"""Notebooks: cells as one program, findings in their cells, and edits that leave every other byte
alone."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from typer.testing import CliRunner

from kernel_lsp import notebooks
from kernel_lsp.commands.app import app
from kernel_lsp.pipeline.prepare import ONLY_IPYTHON, PreparedJob, prepare
from kernel_lsp.records import Job, Outcome, SourceEdit, Span
from kernel_lsp.rewrite.edit import apply_edit

CASES = Path(__file__).parents[1] / "cases"
FIXABLE = (CASES / "KL204_low_precision_accumulation.py").read_text()


def code(source: str | list[str], **more: Any) -> dict[str, Any]:
    return {
        "cell_type": "code",
        "execution_count": 1,
        "metadata": {},
        "outputs": [],
        "source": source,
        **more,
    }


def notebook(*cells: dict[str, Any], indent: int | None = 1, language: str = "python") -> str:
    metadata = {"language_info": {"name": language}}
    body = {"cells": list(cells), "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(body, indent=indent, ensure_ascii=False) + "\n"


def lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


TEXT = {"cell_type": "markdown", "metadata": {}, "source": ["# Título\n", "no code"]}
PICTURE = {
    "output_type": "display_data",
    "data": {"image/png": "aGk=\n", "x": 1.50},
    "metadata": {},
}


def program(text: str) -> notebooks.NotebookProgram:
    return notebooks.program(notebooks.parse(text).cells)


@pytest.mark.parametrize(
    ("source", "python"),
    [
        ("%matplotlib inline\nx = 1\n", "ǃ#atplotlib inline\nx = 1\n"),
        (
            "!pip install torch\nif x:\n    %time f()\n",
            "ǃ#ip install torch\nif x:\n    ǃ#ime f()\n",
        ),
        ("files = !ls *.py\nx.shape?\n??f\n", "files = ǃ#s *.py\nǃ#shape?\nǃ#f\n"),
        ("%%time\nx = 1\n", "ǃ#time\nx = 1\n"),
        ("%%bash\nls (\n", "#%bash\n#s (\n"),
        ("!", "ǃ"),
        ("x = y % 2\nz = (a\n     % b)\n", "x = y % 2\nz = (a\n     % b)\n"),
        ('"""\n%d\n"""\n', '"""\n%d\n"""\n'),
    ],
)
def test_what_only_ipython_understands_keeps_its_length(source: str, python: str) -> None:
    made = program(notebook(code(lines(source))))
    assert made.text.rstrip("\n") == python.rstrip("\n") and made.broken == ()
    compile(made.text, "notebook", "exec")


def test_a_cell_that_does_not_parse_costs_no_other() -> None:
    made = program(notebook(code("x = (\n"), TEXT, code("y = 1"), code("await f()")))
    assert made.text.split(notebooks.SEPARATOR) == ["# = (\n", "y = 1\n", "await f()\n"]
    assert [(cell.number, why) for cell, why in made.broken] == [
        (1, "line 1: '(' was never closed")
    ]


@given(
    st.lists(
        st.lists(st.text("ab %!?=é\U0001f600\"'(\n\\", max_size=12), max_size=4).map("\n".join),
        max_size=4,
    )
)
def test_every_character_of_a_cell_is_found_again(sources: list[str]) -> None:
    made = program(notebook(*(code(lines(source)) for source in sources)))
    assert [part.cell.source for part in made.parts] == sources
    assert all(part.span.end - part.span.start == len(part.cell.source) for part in made.parts)
    starts = [part.span.start for part in made.parts]
    assert starts == sorted(starts)


@pytest.mark.parametrize("indent", [None, 1, 4])
@pytest.mark.parametrize("as_list", [True, False])
def test_an_edit_changes_the_bytes_of_its_lines_alone(indent: int | None, as_list: bool) -> None:
    source = "x = 'é'\ny = 1\nz = 2"
    cell = code(lines(source) if as_list else source, outputs=[PICTURE])
    text = notebook(TEXT, code("first = 0"), cell, TEXT, indent=indent).replace(
        '"x": 1.5', '"x": 1.50'
    )
    found = notebooks.parse(text).cells[1]
    at = source.index("1")
    edited = notebooks.edit_cells(text, [(found, [(at, at + 1, "10\nw = 'ü'")])])
    wanted = "x = 'é'\ny = 10\nw = 'ü'\nz = 2"
    assert notebooks.parse(edited).cells[1].source == wanted
    place = found.place
    assert edited.startswith(text[: place.start]) and edited.endswith(text[place.end :])
    assert notebooks.edit_cells(text, [(found, [])]) == text


def cells(*sources: str) -> notebooks.NotebookProgram:
    return program(notebook(*(code(lines(source)) for source in sources)))


def edited(made: notebooks.NotebookProgram, new: str) -> list[str]:
    by_number = {cell.number: edits for cell, edits in made.edits(new)}
    return [
        notebooks.edit_source(part.cell.source, by_number.get(part.cell.number, []))
        for part in made.parts
    ]


@given(
    st.lists(
        st.lists(st.sampled_from(["a = 1", "b = 2", "def f():", "    pass", ""]), max_size=5),
        min_size=1,
        max_size=4,
    ),
    st.data(),
)
def test_a_new_program_is_put_into_its_cells(sources: list[list[str]], data: st.DataObject) -> None:
    """Whatever lines come and go at the ends of cells, which have no line end of their own."""
    texts = ["\n".join(source) for source in sources]
    made = notebooks.program(
        notebooks.Cell(number=number, source=text) for number, text in enumerate(texts)
    )
    kept = st.lists(st.sampled_from(["a = 1", "c = 3", "    pass"]), max_size=4)
    news = ["".join(f"{line}\n" for line in data.draw(kept)) for _ in texts]
    assume(not made.broken)  # one comment in place of what is no Python
    found = edited(made, notebooks.SEPARATOR.join(news))
    for before, new, source in zip(texts, news, found, strict=True):
        end = "" if before.endswith("\n") or not new else "\n"
        assert source + end == new


def test_lines_of_ipython_are_neither_changed_nor_gone_past() -> None:
    made = cells("%matplotlib inline\nx = 1", "n = !nproc\ny = n")
    again = edited(made, made.text.replace("x = 1", "x = 2\nz = 3").replace("y = n", "y = 4"))
    assert again == ["%matplotlib inline\nx = 2\nz = 3", "n = !nproc\ny = 4"]
    with pytest.raises(ValueError, match="only IPython understands"):
        made.edits(made.text.replace(f"n = {notebooks.MAGIC}#proc\n", ""))
    with pytest.raises(ValueError, match="other cells"):
        made.edits(made.text.replace(notebooks.SEPARATOR, ""))


def test_imports_and_definitions_of_a_rewrite_go_into_the_cell_that_is_run_again() -> None:
    made = cells("import torch", "%%bash\nls", "%%time\n# above\ndef f(x):\n    return x")
    start = made.text.index("def f")
    rewrite = SourceEdit(
        qualname="f",
        target="def f(x):\n    return g(x)",
        imports=("import triton",),
        definitions="def g(x):\n    return triton.next_power_of_2(x)",
    )
    new = apply_edit(made.text, Span(start=start, end=len(made.text)), rewrite)
    assert edited(made, new) == [
        "import torch",
        "%%bash\nls",
        "%%time\nimport triton\n\ndef g(x):\n    return triton.next_power_of_2(x)\n\n\n"
        "# above\ndef f(x):\n    return g(x)",
    ]


def test_what_needs_a_line_of_ipython_is_not_measured(tmp_path: Path) -> None:
    """A shell command's output is nothing that a judged program could have."""
    made = cells(
        "import torch\nn = !nproc",
        "# kernel-lsp: workload x=f32[8]\ndef f(x: torch.Tensor):\n    return torch.sum(x) * n",
        "# kernel-lsp: workload x=f32[8]\ndef g(x: torch.Tensor):\n    return torch.sum(x)",
    )
    job = Job(text=made.text, path=str(tmp_path / "work.ipynb"), qualname="f")
    found = prepare(job)
    assert isinstance(found, Outcome) and found.note == ONLY_IPYTHON
    assert isinstance(prepare(replace(job, qualname="g")), PreparedJob)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"cells": 1}', '{"cells": [', '{"worksheets": []}', "[" * 9999]
)
def test_what_is_no_notebook_says_so(text: str) -> None:
    with pytest.raises(ValueError):
        notebooks.parse(text)


def test_odd_cells_and_other_languages_are_left_out() -> None:
    odd = [{}, 1, code([1, 2]), {"cell_type": "code"}, code("x = 1")]
    assert [cell.number for cell in notebooks.parse(json.dumps({"cells": odd})).cells] == [5]
    assert notebooks.parse(notebook(code("x <- 1"), language="R")).cells == ()


# --- on the command line --------------------------------------------------------------------


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KERNEL_LSP_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    split = FIXABLE.index("\n@triton.jit")
    cells = (
        code(lines("%load_ext autoreload\n" + FIXABLE[:split]), outputs=[PICTURE]),
        TEXT,
        code(lines(FIXABLE[split:])),
        code(["%%bash\n", "ls"]),
    )
    (tmp_path / "work.ipynb").write_text(notebook(*cells))
    return tmp_path / "work.ipynb"


def test_findings_carry_cell_and_line_and_services_the_line_of_the_file(path: Path) -> None:
    done = CliRunner().invoke(app, ["check", ".", "--select", "KL204"])
    first = done.stdout.splitlines()[0]
    where, line = first.split(":")[:3], int(first.split(":")[2])
    assert where[:2] == ["work.ipynb", "cell 3"]
    source = json.loads(path.read_text())["cells"][2]["source"]
    annotation = (
        CliRunner().invoke(app, ["check", ".", "--select", "KL204", "--format", "github"]).stdout
    )
    file_line = int(annotation.split("line=")[1].split(",")[0])
    assert json.dumps(source[line - 1]) in path.read_text().splitlines()[file_line - 1]


def test_fix_edits_cells_and_nothing_else(path: Path) -> None:
    before = path.read_text().splitlines()
    done = CliRunner().invoke(app, ["check", "work.ipynb", "--fix", "--select", "KL204"])
    assert done.exit_code == 0 and "3 findings fixed" in done.stderr
    after = path.read_text().splitlines()
    changed = [(old, new) for old, new in zip(before, after, strict=True) if old != new]
    assert len(changed) == 3 and all("tl." in new for _, new in changed)


def test_a_notebook_that_cannot_be_read_says_why(path: Path) -> None:
    path.write_text("{")
    done = CliRunner().invoke(app, ["check", "work.ipynb"])
    assert "cannot be read as a notebook" in done.stdout
