"""What must be done once for a file, however many targets it has."""

import ast
from collections.abc import Iterator

import pytest

from kernel_lsp.analysis import analyze
from kernel_lsp.documents import Snapshot

TARGET = """

class Model{number}(nn.Module):
    def forward(self, x):
        return torch.tanh(torch.exp(torch.sin(x) * 2.0) + 1.0)
"""


def test_a_file_is_walked_once_for_what_it_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """A walk for each of 278 targets took 15 s for a file of 5,000 lines, on every key."""
    many = "".join(TARGET.format(number=number) for number in range(20))
    text = f"import torch\nfrom torch import nn\n{many}\nmodel = torch.compile(Model3())\n"
    walk, walked = ast.walk, list[ast.AST]()

    def counted(node: ast.AST) -> Iterator[ast.AST]:
        walked.append(node)
        return walk(node)

    monkeypatch.setattr(ast, "walk", counted)
    found = analyze(Snapshot(uri="file:///a.py", text=text))
    assert [one.rule for one in found.findings].count("KL101") == 19, (
        "all but the one that is compiled"
    )
    assert sum(isinstance(node, ast.Module) for node in walked) <= 2
