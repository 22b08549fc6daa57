"""The smallest edit: what the rewrite leaves alone keeps its bytes."""

import ast
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernel_lsp.errors import RewriteError
from kernel_lsp.records import SourceEdit, Span
from kernel_lsp.rewrite.edit import apply_edit, changes

FILE = '''#!/usr/bin/env python
"""Docstring."""

import os

import torch

LIMIT = 3  # kept


# about Model
@decorate
class Model:
    a = 1

    def forward(self, x):
        return x  # tail


def last():
    pass
'''
TARGET = """@decorate
class Model:
    a = 1

    def _forward_eager(self, x):
        return x  # tail

    def forward(self, x):
        return x + 0"""


def span_of(text: str, name: str) -> Span:
    for node in ast.walk(ast.parse(text.removeprefix("\ufeff"))):
        if getattr(node, "name", None) == name:
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
            width = 2 if "\r\n" in text else 1
            start = sum(len(line) + width for line in lines[: first - 1])
            start += len(lines[first - 1]) - len(lines[first - 1].lstrip(" \t\ufeff"))
            end = sum(len(line) + width for line in lines[: node.end_lineno]) - width
            return Span(start=start, end=end)
    raise AssertionError(name)


def edit(**kwargs: object) -> SourceEdit:
    return SourceEdit(qualname="Model", **kwargs)


def test_only_the_changed_lines_are_touched() -> None:
    made = changes(FILE, span_of(FILE, "Model"), edit(target=TARGET))
    assert sum(c.end - c.start for c in made) <= len("    def forward(self, x):\n")
    assert apply_edit(FILE, span_of(FILE, "Model"), edit(target=TARGET)) == FILE.replace(
        "    def forward(self, x):\n        return x  # tail\n",
        "    def _forward_eager(self, x):\n        return x  # tail\n\n"
        "    def forward(self, x):\n        return x + 0\n",
    )


def test_lines_of_a_long_target_of_equal_lines_are_changed_alone() -> None:
    """difflib takes lines that are frequent in 200 lines or more for junk unless it is asked not
    to."""
    draw = random.Random(5)
    lines = [f"        x = x + {draw.randrange(30)}" for _ in range(400)]
    text = "\n".join(["class Model:", "    def forward(self, x):", *lines, "        return x", ""])
    target = text.rstrip("\n").split("\n")
    target[100] = target[300] = "        x = x * 7"
    made = changes(text, span_of(text, "Model"), edit(target="\n".join(target)))
    assert [text[one.start : one.end].count("\n") for one in made] == [1, 1]


def test_what_the_file_imports_or_defines_already_is_not_written_again() -> None:
    text = "import torch\n\n\ndef helper():\n    return 1\n\n\nclass Model:\n    a = helper()\n"
    same = edit(
        imports=("import torch",),
        definitions="def helper():\n    return 1",
        target="class Model:\n    a = helper() + 1",
    )
    made = apply_edit(text, span_of(text, "Model"), same)
    assert made == text.replace("a = helper()\n", "a = helper() + 1\n")
    text = text.replace("import torch\n", "import torch\nfrom mine import nn\n")
    other = edit(
        imports=("import torch as t", "from torch import nn"),
        definitions="def helper():\n    return 2",
        target="class Model:\n    a = helper()",
    )
    made = apply_edit(text, span_of(text, "Model"), other)
    assert made.startswith(
        "import torch\nfrom mine import nn\nimport torch as t\nfrom torch import nn\n"
    )
    assert "def helper_2():\n    return 2\n\n\nclass Model:\n    a = helper_2()" in made


def test_a_target_of_one_line_is_found_on_it() -> None:
    text = "import os\ndef before(): return 1\ndef target(x): return x\n"
    made = apply_edit(text, span_of(text, "target"), edit(target="def target(x): return x + 1"))
    assert made == text.replace("return x\n", "return x + 1\n")
    added = edit(target="def target(x): return x", definitions="def helper():\n    pass")
    made = apply_edit(text, span_of(text, "target"), added)
    assert made.index("def before") < made.index("def helper") < made.index("def target")


def test_imports_follow_the_last_import_once_and_definitions_precede_the_comment_of_the_target() -> (
    None
):
    wanted = edit(
        imports=("import torch", "import triton", "import triton"),
        definitions="def helper():\n    pass",
        target=TARGET,
    )
    text = apply_edit(FILE, span_of(FILE, "Model"), wanted)
    assert text.count("import torch\n") == 1 and "import torch\nimport triton\n\nLIMIT" in text
    assert "def helper():\n    pass\n\n\n# about Model\n@decorate\nclass Model" in text


def test_an_import_goes_behind_docstring_and_shebang_when_there_is_none() -> None:
    text = "#!/usr/bin/python\n# -*- coding: utf-8 -*-\nclass Model:\n    pass\n"
    made = apply_edit(
        text,
        span_of(text, "Model"),
        edit(imports=("import torch",), target="class Model:\n    pass"),
    )
    assert made.startswith(
        "#!/usr/bin/python\n# -*- coding: utf-8 -*-\nimport torch\n\nclass Model"
    )
    text = '"""Doc."""\nfrom __future__ import annotations\nclass Model:\n    pass\n'
    made = apply_edit(
        text,
        span_of(text, "Model"),
        edit(imports=("import torch",), target="class Model:\n    pass"),
    )
    assert made.index("__future__") < made.index("import torch") < made.index("class")


def test_a_nested_target_keeps_its_indentation() -> None:
    text = "class Outer:\n\tclass Model:\n\t\tx = 1  # one\n\t\ty = 2\n\nz = 3\n"
    made = apply_edit(
        text,
        span_of(text, "Model"),
        edit(definitions="a = 1", target="class Model:\n\tx = 1  # one\n\ty = 4"),
    )
    assert made == "a = 1\n\n\nclass Outer:\n\tclass Model:\n\t\tx = 1  # one\n\t\ty = 4\n\nz = 3\n"


def test_a_result_that_does_not_compile_is_refused() -> None:
    with pytest.raises(RewriteError, match="would not compile"):
        apply_edit(FILE, span_of(FILE, "Model"), edit(target="class Model:\n  def"))


def test_a_moved_target_is_refused() -> None:
    with pytest.raises(RewriteError, match="no longer where it was"):
        apply_edit(FILE, Span(start=len(FILE), end=len(FILE)), edit(target=TARGET))


@pytest.mark.parametrize("eol", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("ending", [True, False])
@pytest.mark.parametrize("bom", ["", "\ufeff"])
def test_line_endings_form_feeds_and_byte_order_marks_survive(
    eol: str, ending: bool, bom: str
) -> None:
    body = "import torch\n\x0c\ns = '\u2028é😀'\n\nclass Model:\n    x = 1\n"
    text = bom + (body if ending else body.rstrip("\n")).replace("\n", eol)
    made = apply_edit(
        text,
        span_of(text, "Model"),
        edit(imports=("import os",), target="class Model:\n    x = 1\n    y = 2"),
    )
    tail = f"class Model:{eol}    x = 1{eol}    y = 2"
    assert made.startswith(
        f"{bom}import torch{eol}import os{eol}\x0c{eol}s = '\u2028é😀'{eol}{eol}{tail}"
    )
    assert ("\n" in made.replace("\r\n", "")) == (eol == "\n")


LINES = st.lists(
    st.sampled_from(["a = 1", "b = 2  # é", "", "# note", "c = '\u2028'", "d = 4\t"]), max_size=6
)


@settings(max_examples=60, deadline=None)
@given(before=LINES, old=LINES, new=LINES, after=LINES, eol=st.sampled_from(["\n", "\r\n"]))
def test_everything_outside_the_target_survives_byte_for_byte(
    before: list[str], old: list[str], new: list[str], after: list[str], eol: str
) -> None:
    def block(lines: list[str]) -> list[str]:
        return ["class Model:", *(f"    {line}" if line else "" for line in lines), "    end = 0"]

    text = eol.join([*before, *block(old), *after, ""])
    made = apply_edit(text, span_of(text, "Model"), edit(target="\n".join(block(new))))
    assert made == eol.join([*before, *block(new), *after, ""])
    assert apply_edit(made, span_of(made, "Model"), edit(target="\n".join(block(new)))) == made


def test_a_definition_never_takes_the_name_of_another_one() -> None:
    text = "def helper():\n    return 1\n\n\nclass Model:\n    x = 1\n"
    wanted = edit(
        definitions="def helper():\n    return 2", target="class Model:\n    x = helper()"
    )
    made = apply_edit(text, span_of(text, "Model"), wanted)
    namespace: dict[str, object] = {}
    exec(made, namespace)
    assert namespace["helper"]() == 1 and namespace["Model"].x == 2  # type: ignore[operator, attr-defined]
    assert (
        apply_edit(
            made, span_of(made, "Model"), edit(definitions="", target="class Model:\n    x = 1")
        ).count("def ")
        == 2
    )
