"""Module texts and edit blocks of a model: what becomes of them, and every refusal in words that
help."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernel_lsp.errors import RewriteError
from kernel_lsp.pipeline import module_text, writing
from kernel_lsp.pipeline.prepare import PreparedJob, apply_candidate, prepare
from kernel_lsp.pipeline.workshop import EngineWorkshop
from kernel_lsp.process import Limits
from kernel_lsp.records import Job, Program, SourceEdit, TargetKind
from kernel_lsp.rewrite.client import Engine
from kernel_lsp.rewrite.edit import apply_edit

SOURCE = """\
import torch
from torch import nn
from torch.nn import functional as F

SCALE = 2.0


def helper(x):
    return x * SCALE


class Model(nn.Module):
    def __init__(self, size: int = 4):
        super().__init__()
        self.size = size

    def forward(self, x: torch.Tensor, *, flag=True):
        # rows
        return helper(x).sum(1)

    def describe(self):
        return "model"


def get_inputs():
    return [torch.randn(128, 4) * 1e6]


def get_init_inputs():
    return [4]
"""
PROGRAM = Program(source=SOURCE, entry="Model", kind=TargetKind.MODULE)
NEW = """\
class Model(nn.Module):
    def __init__(self, size: int = 4):
        super().__init__()
        self.size = size

    def forward(self, x, *, flag=True):
        return x.sum(1) * SCALE

    def describe(self):
        return "model"
"""
PARENT = SourceEdit(
    qualname="Model",
    imports=("import math",),
    definitions="# doubles\ndef twice(x):\n    return 2 * x",
    target=NEW.replace("x.sum(1) * SCALE", "twice(x.sum(1))").rstrip(),
)


def edit_of(code: str, parent: SourceEdit | None = None, program: Program = PROGRAM) -> SourceEdit:
    return writing.edit_of(code, program, parent)


def refusal(code: str, parent: SourceEdit | None = None, program: Program = PROGRAM) -> str:
    with pytest.raises(RewriteError) as failure:
        edit_of(code, parent, program)
    assert failure.value.remedy
    return str(failure.value)


# --- what a model sees ---------------------------------------------------------------------


def test_the_region_holds_the_target_and_inputs_are_not_shown() -> None:
    shown = writing.mark_region(PROGRAM, None)
    before, _, rest = shown.partition(f"{writing.BEGINS}\n")
    inside, _, after = rest.partition(f"{writing.ENDS}\n")
    assert inside.startswith("class Model(nn.Module):\n") and inside.endswith('return "model"\n')
    assert "def helper" in before and "get_init_inputs" in after
    assert "get_inputs()" not in shown and "1e6" not in shown
    assert writing.region(PROGRAM, None) == inside.rstrip("\n")


def test_the_region_of_a_parent_is_a_module_text_that_gives_the_same_edit() -> None:
    text = writing.region(PROGRAM, PARENT)
    assert text.startswith("import math\n\n\n# doubles\ndef twice(x):")
    assert edit_of(text) == PARENT
    assert "is what it started from" in refusal(text + "# more\n", PARENT)
    assert f"{writing.BEGINS}\nimport math\n" in writing.mark_region(PROGRAM, PARENT)
    known = replace(
        PARENT, imports=("import torch", "import torch.fft", "from torch import nn", "import math")
    )
    assert writing.region(PROGRAM, known).startswith("import torch.fft\nimport math\n\n\n# doubles")


def test_a_nested_target_is_shown_apart_from_column_0() -> None:
    inner = "class Inner(nn.Module):\n    def forward(self, x):\n        return x + x"
    nested = "".join(f"    {line}\n" for line in inner.splitlines())
    program = Program(source=f"class Outer:\n{nested}", entry="Outer.Inner", kind=TargetKind.MODULE)
    assert writing.region(program, None) == inner
    assert f"{writing.BEGINS}\n{inner}\n{writing.ENDS}" in writing.mark_region(program, None)
    made = edit_of(inner.replace("x + x", "2 * x"), program=program)
    assert (made.qualname, made.target) == ("Outer.Inner", inner.replace("x + x", "2 * x"))


# --- module texts --------------------------------------------------------------------------


def test_a_module_text_is_taken_apart() -> None:
    code = f'''\
"""A docstring."""
import torch
from torch import nn
import torch.nn.functional as F
import triton, math
from triton import language as tl

BLOCK = 128


# adds
@triton.jit
def kernel(x):
    pass


{NEW}

def get_inputs():
    return [torch.zeros(1)]


if __name__ == "__main__":
    print(Model()(get_inputs()[0]))
'''
    made = edit_of(code)
    assert made.qualname == "Model" and made.target == NEW.rstrip()
    assert made.imports == (
        "import triton",
        "import math",
        "from triton import language as tl",
    )
    assert made.definitions == "BLOCK = 128\n\n\n# adds\n@triton.jit\ndef kernel(x):\n    pass"


def test_what_the_program_has_may_be_repeated_and_markers_are_no_text() -> None:
    helper = "def helper(x):\n    return (x * SCALE)  # the same\n"
    made = edit_of(f"{writing.BEGINS}\nSCALE = 2.0\n{helper}{NEW}{writing.ENDS}\n")
    assert (made.definitions, made.target) == ("", NEW.rstrip())


def test_model_new_takes_the_place_of_the_target() -> None:
    original = SOURCE[SOURCE.index("class Model") : SOURCE.index("def get_inputs")]
    new = NEW.replace("class Model", "class ModelNew").replace("super()", "super(ModelNew, self)")
    for code in (new, f"{original}\n\n{new}"):
        made = edit_of(code)
        assert made.target == NEW.rstrip().replace("super()", "super(Model, self)")
        assert made.definitions == ""
    assert "ModelNew is made from Model" in refusal(new.replace("nn.Module", "Model"))
    assert "twice" in refusal(NEW + "\n\n" + new)


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("class Model(nn.Module:\n    pass\n", "line 1"),
        ("x = 1\n", "does not define Model (give the whole class Model)"),
        (NEW + NEW, "defines Model twice"),
        ("def Model(x):\n    return x\n", "no class any more"),
        (
            NEW.replace("x, *, flag=True", "y, *, flag=True"),
            "(keep it as it is: (self, x, *, flag=True))",
        ),
        (NEW.replace("flag=True", "flag=False"), "signature of forward"),
        (NEW.replace("size: int = 4", "size"), "signature of __init__"),
        (NEW.replace("def describe", "def _describe"), "lost describe()"),
        (NEW.replace("def forward", "def run"), "lost forward()"),
        (NEW + "SCALE = 3.0\n", "SCALE stands outside the markers"),
        (NEW + "def helper(x):\n    return x\n", "helper stands outside the markers"),
        (
            NEW + "torch.backends.cuda.matmul.allow_tf32 = True\n",
            "runs code when the file is imported",
        ),
        (NEW + "print(1)\n", "line 11 runs code"),
        ("from torch import *\n" + NEW, "cannot be followed"),
        ("from .kernels import k\n" + NEW, "cannot be followed"),
        ("from __future__ import annotations\n" + NEW, "how the whole file is read"),
        (SOURCE, "the original, unchanged"),
        ("#" * 10_001, "10001 characters (at most 10000"),
        ("", "does not define Model"),
        ("class Model(nn.Module):\n" + " " * 4 + "(" * 5000, "does not parse"),
    ],
)
def test_what_cannot_stand_is_refused_with_a_remedy(code: str, said: str) -> None:
    assert said in refusal(code)


def test_a_function_target() -> None:
    source = "import torch\n\n\ndef f(x: torch.Tensor, k=2):\n    return x * k\n"
    program = Program(source=source, entry="f", kind=TargetKind.FUNCTION)
    assert (
        edit_of("def f(x, k=2):\n    return k * x", program=program).target
        == "def f(x, k=2):\n    return k * x"
    )
    assert "signature of f" in refusal("def f(x):\n    return x * 2", program=program)
    assert "no function any more" in refusal("class f:\n    pass", program=program)
    assert "does not define f" in refusal("class ModelNew:\n    pass", program=program)


@pytest.mark.parametrize(
    ("code", "name"),
    [
        ("import json as np\n", "np"),
        ("from numpy import abs as np\n", "np"),
        ("def np(x):\n    return x\n", "np"),
        ("def sum(x):\n    return x\n", "sum"),
        ("from torch import max\n", "max"),
        ("import numpy as np\nimport numpy\n", None),
        ("import torch.nn.functional\n", None),
        ("def other(x):\n    return x\n", None),  # defined in the file: ours gets another name
    ],
)
def test_nothing_in_the_rest_of_the_file_gets_another_meaning(code: str, name: str | None) -> None:
    file = "\ufeffimport numpy as np\nimport torch\ndef other():\n    pass\n" + SOURCE
    assert module_text.clash(edit_of(code + NEW), file) == name


# --- edit blocks ---------------------------------------------------------------------------


def block(old: str, new: str) -> str:
    return f"<<<<<<< SEARCH\n{old}\n=======\n{new}\n>>>>>>> REPLACE\n"


def test_edit_blocks_change_the_region_one_after_the_other() -> None:
    rows, short = (
        "        # rows\n        return helper(x).sum(1)",
        "        return helper(x.sum(1))",
    )
    made = edit_of(block(rows, short) + block(short, "        return x.sum(1) * SCALE"))
    assert "return x.sum(1) * SCALE" in made.target and "# rows" not in made.target
    assert "x: torch.Tensor" in made.target  # the rest keeps its text


def test_edit_blocks_of_a_child_change_the_parents_definitions_and_imports() -> None:
    made = edit_of(
        block("    return 2 * x", "    return x + x") + block("import math", "import cmath"), PARENT
    )
    assert made.definitions == "# doubles\ndef twice(x):\n    return x + x"
    assert (made.imports, made.target) == (("import cmath",), PARENT.target)


def test_blanks_and_line_ends_do_not_matter() -> None:
    code = block("        return helper(x).sum(1)   ", "        return helper(x).sum(-1)").replace(
        "\n", "\r\n"
    )
    assert "        return helper(x).sum(-1)\n\n    def describe" in edit_of(code).target


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (block("    return 3 * x", "    return x"), "edit 1 do not occur between the markers"),
        (
            block("    return helper(x).sum(1)", "    return x"),
            "there is '        return helper(x).sum(1)', not '    return helper(x).sum(1)'",
        ),
        (
            block("SCALE = 2.0", "SCALE = 1.0"),
            "do not occur between the markers",
        ),  # it stands outside
        (block("    return x * SCALE", "    return x"), "do not occur"),
        (block("", "x = 1"), "edit 1 has no old lines"),
        ("<<<<<<< SEARCH\n        # rows\n>>>>>>> REPLACE\n", "no ======="),
        (block("        # rows", "") + "<<<<<<< SEARCH\n        # ro", "edit 2 has no end"),
        (block("        return helper(x).sum(1)", "        return ("), "does not parse"),
        (block("        # rows", "        # columns"), "the original, unchanged"),
    ],
)
def test_blocks_that_do_not_fit_are_refused(code: str, said: str) -> None:
    assert said in refusal(code)


def test_old_lines_that_occur_twice_are_refused() -> None:
    twice = (
        "class Model(nn.Module):\n    def forward(self, x):\n"
        "        y = x + 1\n        y = x + 1\n        return y\n"
    )
    program = Program(source=twice, entry="Model", kind=TargetKind.MODULE)
    assert "occur 2 times" in refusal(block("        y = x + 1", ""), program=program)
    both = block("        y = x + 1\n        y = x + 1", "        y = x + 2")
    assert "x + 2" in edit_of(both, program=program).target


PIECES = st.sampled_from(
    [
        NEW,
        SOURCE,
        "<<<<<<< SEARCH\n",
        "=======\n",
        ">>>>>>> REPLACE\n",
        "class Model",
        "import os\n",
        "\r",
        "\0",
    ]
)


@given(st.lists(PIECES | st.text(max_size=30), max_size=6).map("".join))
def test_whatever_is_written_becomes_an_edit_of_the_target_or_a_refusal(code: str) -> None:
    try:
        made = edit_of(code)
    except RewriteError as error:
        assert error.cause and error.remedy
        return
    assert made.qualname == "Model" and made.target.lstrip("@").startswith("class Model")
    assert "def get_inputs" not in made.definitions + made.target


# --- nothing reaches the file that the gate has not judged ---------------------------------


def workshop() -> EngineWorkshop:
    """Without an engine: writing needs none."""
    found = prepare(Job(text=SOURCE + "\n\nother = 1\n", path="model.py", qualname="Model"))
    assert isinstance(found, PreparedJob)
    return EngineWorkshop(Engine(python="", limits=Limits(), confinement=None), found)


@pytest.mark.parametrize(
    ("head", "tail", "kept"),
    [
        ("import antigravity\n", "", ()),
        ("X = print('evil')\n", "", ()),
        ("class K:\n    print('evil')\n", "", ()),
        ("def k(x=print('evil')):\n    return x\n", "", ()),
        ("A = 1\nB = print('evil')\n", " * A", ("A = 1",)),
        ("import math, json\n", " * math.pi", ("import math",)),
        ("def g(y):\n    return h(y)\ndef h(y):\n    return y\n", "+ g(1)", ("def g", "def h")),
        ("other = 2\n", "+ other", ("other_2 = 2",)),  # the file's own stays what it is
    ],
)
async def test_what_the_target_does_not_use_is_left_out(
    head: str, tail: str, kept: tuple[str, ...]
) -> None:
    shop = workshop()
    made = await shop.write(head + NEW.replace("* SCALE", f"* SCALE {tail}"), None)
    assert made.edit is not None
    file = shop._prepared.snapshot.text
    after = apply_edit(file, shop._prepared.target.span, made.edit)
    judged = apply_candidate(shop._prepared, made)
    assert (
        judged is not None and module_text.find_unjudged(file, after, judged.program.source) is None
    )
    for text in kept:
        assert text in after and text in judged.program.source
    assert ("evil" in after, "antigravity" in after, "json" in after) == (False, False, False)


@pytest.mark.parametrize(
    ("head", "said"),
    [
        ("A = 1; B = print('evil')\n", "line 1 holds two statements"),
        ("def __getattr__(name):\n    return 1\n", "__getattr__ means something else"),
        ("__all__ = ['A']\n", "__all__ means something else"),
    ],
)
async def test_what_would_run_unseen_is_refused(head: str, said: str) -> None:
    with pytest.raises(RewriteError, match=said):
        await workshop().write(head + NEW, None)


def test_a_statement_that_is_not_judged_is_noticed() -> None:
    assert module_text.find_unjudged("x = 1\n", "import os\nx = 1\n", "x = 1\n") == "import os"
    assert module_text.find_unjudged("x = 1\n", "import os\nx = 1\n", "import os\n") is None


@pytest.mark.parametrize(
    "expression", ["+".join(["x"] * 2000), "-" * 2000 + "x", "x" + ".a" * 2000]
)
async def test_deep_nesting_is_refused(expression: str) -> None:
    with pytest.raises(RewriteError):
        await workshop().write(NEW.replace("* SCALE", f"* ({expression})"), None)
