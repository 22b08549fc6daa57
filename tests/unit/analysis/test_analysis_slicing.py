"""Slices hold what a target needs and nothing else; fingerprints change with just that."""

import ast
import textwrap
from pathlib import Path

import pytest

from kernel_lsp.analysis import analyze, find_target, fingerprint_of, slice_program
from kernel_lsp.records import Program, Snapshot

ROOT = Path(__file__).parents[3]
FILES = sorted([*(ROOT / "tests" / "cases").glob("KL*.py"), *(ROOT / "examples").glob("*.py")])

TEXT = '''"""Module docstring."""
from __future__ import annotations
import os, sys
import torch
from torch import nn, Tensor as T
import torch.nn.functional as F
try:
    import fast
except ImportError:
    fast = None
BATCH = 128
HIDDEN = BATCH * 2
UNUSED = print("never")
print("top level")
torch.manual_seed(0)
def helper(x):
    return x * HIDDEN
def other(x): return os.getcwd()
class Base(nn.Module):
    def go(self, x):
        return helper(x)
model = print("shadowed by a local")
class Model(Base):
    """The target."""
    def forward(self, x, scale=HIDDEN):
        model = self.go(x)  # a local
        return [F.relu(y) for y in model] if fast is None else fast.run(model)
model = Model().cuda()
def get_inputs():
    return [torch.randn(BATCH)]
if __name__ == "__main__":
    os = None
    print(Model()(*get_inputs()))
'''


def sliced(text: str, qualname: str = "Model") -> Program:
    snapshot = Snapshot(uri="u", text=text)
    target = find_target(analyze(snapshot), qualname)
    assert target is not None
    return slice_program(snapshot, target)


def test_a_slice_is_exactly_what_the_target_needs_in_order() -> None:
    program = sliced(TEXT)
    assert program.missing == ()
    assert program.entry == "Model"
    expected = ast.parse('''
from __future__ import annotations
import torch
from torch import nn
import torch.nn.functional as F
try:
    import fast
except ImportError:
    fast = None
BATCH = 128
HIDDEN = BATCH * 2
def helper(x):
    return x * HIDDEN
class Base(nn.Module):
    def go(self, x):
        return helper(x)
class Model(Base):
    """The target."""
    def forward(self, x, scale=HIDDEN):
        model = self.go(x)
        return [F.relu(y) for y in model] if fast is None else fast.run(model)
def get_inputs():
    return [torch.randn(BATCH)]
''')
    assert ast.dump(ast.parse(program.source)) == ast.dump(expected)


def test_an_assignment_that_runs_code_is_kept_only_when_its_name_is_used() -> None:
    text = TEXT.replace("model = self.go(x)  # a local", "x = self.go(x)")
    assert "model = Model().cuda()" in sliced(text).source


def test_names_that_nothing_defines_are_reported_and_star_imports_are_trusted() -> None:
    text = TEXT.replace("return x * HIDDEN", "return x * undefined_thing + len(x)")
    assert sliced(text).missing == ("undefined_thing",)
    starred = sliced(text.replace("import os, sys", "from somewhere import *"))
    assert starred.missing == () and "from somewhere import *" in starred.source


def test_a_kernel_brings_its_launchers_and_helpers() -> None:
    text = textwrap.dedent("""\
        import triton, torch
        import triton.language as tl
        SIZE = tl.constexpr(4)
        @triton.jit
        def plus(x): return x + SIZE
        @triton.jit
        def kernel(p): tl.store(p, plus(1))
        def unrelated(x: torch.Tensor): return x
        def launch(x): kernel[(1,)](x)
        """)
    source = sliced(text, "kernel").source
    assert all(part in source for part in ("SIZE", "def plus", "def launch", "@triton.jit"))
    assert "unrelated" not in source and "import triton\n" in source


def test_statements_on_one_line_and_decorated_definitions_are_cut_exactly() -> None:
    definition = "@(lambda c: c)\nclass M(nn.Module):\n  def forward(self, x): return x + B\n"
    text = "import torch; from torch import nn; A = 1; B = A\n" + definition
    assert sliced(text, "M").source == "from torch import nn\nA = 1\nB = A\n\n\n" + definition


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_a_slice_compiles_and_slicing_it_again_changes_nothing(path: Path) -> None:
    snapshot = Snapshot(uri=str(path), text=path.read_text())
    for target in analyze(snapshot).targets:
        program = slice_program(snapshot, target)
        assert program.missing == ()
        compile(program.source, "slice", "exec")
        assert fingerprint_of(program.source, program.entry) == target.fingerprint
        again = sliced(program.source, program.entry)
        assert again.source == program.source


# --- fingerprints ------------------------------------------------------------------------


def changed(before: str, after: str, qualname: str = "Model") -> bool:
    assert before in TEXT
    new = fingerprint_of(TEXT.replace(before, after), qualname)
    assert new is not None
    return new != fingerprint_of(TEXT, qualname)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("  # a local", ""),
        ('    """The target."""\n', ""),
        ("return x * HIDDEN", "return (  x*HIDDEN  )  # why"),
        ("\n", "\r\n"),
        ("\n", "\n\n"),
        ("import os, sys", "import os"),
        ("from torch import nn, Tensor as T", "from torch import nn"),
        ("return os.getcwd()", "return 1"),
        ('print("top level")', "pass"),
        ("[torch.randn(BATCH)]", "[torch.randn(3)]"),
    ],
)
def test_comments_formatting_and_unrelated_code_keep_the_fingerprint(
    before: str, after: str
) -> None:
    assert not changed(before, after)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("x * HIDDEN", "x + HIDDEN"),
        ("BATCH = 128", "BATCH = 64"),
        ("import torch.nn.functional as F", "import torch.special as F"),
        ("self.go(x)  #", "self.go(x, 1)  #"),
        ("class Model(Base)", "class Model(nn.Module)"),
        ("fast = None", "fast = 0"),
        ("scale=HIDDEN", "scale=2"),
    ],
)
def test_the_target_and_all_that_it_uses_are_in_the_fingerprint(before: str, after: str) -> None:
    assert changed(before, after)


def test_constants_of_other_types_differ_and_a_missing_name_has_no_fingerprint() -> None:
    one, true, real = (fingerprint_of(f"def f(): return {v}", "f") for v in ("1", "True", "1.0"))
    assert len({one, true, real}) == 3
    assert fingerprint_of(TEXT, "Nobody") is None


def test_nested_classes_have_their_own_fingerprint() -> None:
    inner = "    class B(torch.nn.Module):\n        def forward(self, x): return x\n"
    text = "import torch\nclass A:\n    x = 1\n" + inner
    before = fingerprint_of(text, "A.B")
    assert before is not None
    assert fingerprint_of(text.replace("x = 1", "x = 2"), "A.B") == before
    assert fingerprint_of(text.replace("return x", "return -x"), "A.B") != before
