"""Whatever an editor can hold: analysis answers, and never raises."""

import warnings
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernel_lsp.analysis import analyze, fingerprint_of, slice_program
from kernel_lsp.errors import CaptureError
from kernel_lsp.records import Snapshot, Span, Target, TargetKind

CASES = sorted((Path(__file__).parents[2] / "cases").glob("KL*.py"))
MODULE = (
    "import torch\nclass A(torch.nn.Module):\n    def forward(self, x):\n        return {body}\n"
)


@pytest.mark.parametrize(
    "text",
    [
        "import torch\ndef f(:",
        "import torch\n\0",
        "import torch\ns = '\ud800'",
        "import torch\n" + "(" * 10_000,
        "import torch\n" + "-" * 100_000 + "1",
        "import torch\nx = " + "[" * 150 + "]" * 150 + "+",
        "import torch\ndef f(x: torch.Tensor):\n  global x\n",
        "import torch\n" + "".join(f"{' ' * i}if x:\n" for i in range(150)),
        "import torch\nx = '''",
        "# torch\n\tx\n  y",
    ],
)
def test_broken_text_is_a_problem_with_a_place(text: str) -> None:
    problem = analyze(Snapshot(uri="u", text=text)).problem
    assert problem is not None and problem.message and problem.line >= 1 and problem.column >= 1
    assert fingerprint_of(text, "f") is None


def test_the_place_of_a_syntax_error_is_the_editor_s() -> None:
    problem = analyze(Snapshot(uri="u", text="import torch\nx = 1\nx = = 2\n")).problem
    assert problem is not None and (problem.line, problem.column) == (3, 5)


@pytest.mark.parametrize(
    "body",
    [
        " + ".join(["x"] * 900),
        " + ".join(["x"] * 2500),
        "x" + ".abs()" * 900,
        "x" + ".abs().sum(1)" * 400,
        "f(" * 90 + "x" + ")" * 90,
    ],
)
def test_long_expressions_answer_in_some_way(body: str) -> None:
    analysis = analyze(Snapshot(uri="u", text=MODULE.format(body=body)))
    assert analysis.problem is not None or [t.qualname for t in analysis.targets] == ["A"]


def test_a_long_file_gives_all_its_targets() -> None:
    text = "import torch\n" + "".join(
        f"class A{i}(torch.nn.Module):\n    def forward(self, x):\n        return x\n\n"
        for i in range(2500)
    )
    assert len(analyze(Snapshot(uri="u", text=text)).targets) == 2500


def test_invalid_escapes_in_user_code_warn_nobody() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        analysis = analyze(Snapshot(uri="u", text=MODULE.format(body="x, '\\d'")))
    assert analysis.problem is None


def test_the_collector_is_left_as_it_was() -> None:
    import gc

    analyze(Snapshot(uri="u", text=MODULE.format(body="x")))
    assert gc.isenabled()


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(CASES), st.data())
def test_no_edit_of_real_code_makes_the_analysis_raise(path: Path, data: st.DataObject) -> None:
    """Typing: cut out a piece, put in another, at any place."""
    text = path.read_text()
    start = data.draw(st.integers(0, len(text)))
    end = min(len(text), start + data.draw(st.integers(0, 60)))
    inserted = data.draw(
        st.sampled_from(
            [
                "",
                "(",
                ")",
                ":",
                "\n",
                "    ",
                "'",
                '"""',
                "🚀",
                "\0",
                "\x0c",
                "def ",
                "@",
                "#",
                "\\",
            ]
        )
    )
    edited = text[:start] + inserted + text[end:]
    analysis = analyze(Snapshot(uri="u", text=edited))
    for target in analysis.targets:
        assert edited[target.name_span.start : target.name_span.end]
        assert fingerprint_of(edited, target.qualname) == target.fingerprint
    for finding in analysis.findings:
        assert 0 <= finding.span.start < finding.span.end <= len(edited)


def test_slicing_says_when_there_is_nothing_to_slice() -> None:
    target = Target(
        qualname="A",
        kind=TargetKind.MODULE,
        name_span=Span(start=0, end=1),
        span=Span(start=0, end=1),
        fingerprint="",
    )
    with pytest.raises(CaptureError, match="no longer in"):
        slice_program(Snapshot(uri="u", text="x = 1"), target)
    with pytest.raises(CaptureError, match="line 1"):
        slice_program(Snapshot(uri="u", text="x = ("), target)
