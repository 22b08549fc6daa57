"""A comment that leaves out a finding on its line: where it goes, and where none can stand."""

import pytest

from kernel_lsp.analysis import analyze
from kernel_lsp.analysis.silence import ignoring
from kernel_lsp.config import Settings
from kernel_lsp.records import Snapshot, Span
from kernel_lsp.session import EditorSession
from tests.unit.session.test_session import look

MODULE = """import torch
from torch import nn


class Net(nn.Module):
    def forward(self, x):
        return torch.sum(x[:, :1], dim=1) + x.item(){end}
"""


def rules(text: str) -> set[str]:
    return {one.rule for one in analyze(Snapshot(uri="a.py", text=text)).findings}


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        ("", "  # kernel-lsp: ignore[KL104]"),
        ("  # told later", "  # told later  # kernel-lsp: ignore[KL104]"),
        ("   ", "  # kernel-lsp: ignore[KL104]   "),
        ("  # kernel-lsp: ignore[KL999]", "  # kernel-lsp: ignore[KL999, KL104]"),
        ("  # kernel-lsp: off KL999", "  # kernel-lsp: off KL999, KL104"),
        ("\r", "  # kernel-lsp: ignore[KL104]\r"),
    ],
)
def test_the_comment_leaves_out_what_it_names(end: str, expected: str) -> None:
    text = MODULE.replace("{end}", end)
    assert "KL104" in rules(text)
    found = ignoring(text, text.index("x.item()"), "KL104")
    assert found is not None
    place, new = found
    changed = text[:place] + new + text[place:]
    assert changed == MODULE.replace("{end}", expected)
    assert "KL104" not in rules(changed)


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ('x = """\nhere\n"""\n', "here"),
        ('x = f(1, """\nlonger\n""")\n', "f(1"),
        ("x = 1 + \\\n    2\n", "1 +"),
        ("x = 1  # kernel-lsp: off\n", "1"),
        ("x = (\n", "x"),
    ],
)
def test_where_no_comment_can_stand_none_is_offered(text: str, at: str) -> None:
    assert ignoring(text, text.index(at), "KL104") is None


def test_the_editor_is_offered_it_once_for_each_rule() -> None:
    text = MODULE.replace("{end}", " + x.item()")
    session = EditorSession(client="test 1")
    session.configure("/w", Settings())
    shown = Snapshot(uri="file:///w/a.py", text=text)
    session.open(shown, "/w", "a.py")
    look(session, shown)
    where = Span(start=text.index("return"), end=text.index("return"))
    line = Span(start=where.start, end=len(text))
    found = [(one.rule, title) for one, title, _ in session.ignores(shown.uri, line)]
    assert found.count(("KL104", "Ignore on this line")) == 1
