"""Statements of a forward as a method: the program computes what it did; the rest is refused."""

from __future__ import annotations

import textwrap
from typing import Any

import pytest

from kernel_lsp.errors import CaptureError
from kernel_lsp.records import Part
from kernel_lsp.rewrite.outlining import Outlined, outline, readers, runs


def program(body: str, signature: str = "self, a, b=2, *rest, flag=True") -> str:
    inner = textwrap.indent(textwrap.dedent(body).strip("\n"), " " * 8)
    return f"class Net:\n    def forward({signature}):\n{inner}\n"


def moved(body: str, first: int, last: int) -> Outlined:
    """Lines count from the body's first."""
    return outline(program(body), "Net", Part(first=first + 2, last=last + 2))


def result(text: str, *arguments: Any, **named: Any) -> Any:
    namespace: dict[str, Any] = {}
    exec(text, namespace)
    return namespace["Net"]().forward(*arguments, **named)


SAME = {
    "a run in the middle": ("c = a + b\nd = c * 2\nif d > 3:\n    d = -d\nreturn d + c", 1, 2),
    "the end, with its return": ("c = a + b\nprint\nd = c * c\nreturn d, a", 3, 4),
    "a name that is rebound": ("a = a * 3\na = a + b\nreturn a", 2, 2),
    "one branch binds, the parameter stands in": ("if flag:\n    b = a * 5\nreturn b", 1, 2),
    "a loop adds up": ("t = 0\nfor i in range(a):\n    t += i * b\nreturn t", 2, 3),
    "a comprehension's variable is its own": ("c = [a * i for i in rest]\nreturn sum(c) + b", 1, 1),
    "a walrus": ("c = (n := a + 1) * b\nd = c + n\nreturn d", 2, 2),
    "a walrus in a test": ("if (n := a + 1) > 3:\n    b = n\nd = n + b\nreturn d", 1, 2),
    "several targets": ("c, (d, *e) = a, (b, 1, 2)\nx = c + d\ny = sum(e)\nreturn x * y", 1, 2),
    "with": (
        "import contextlib\nwith contextlib.nullcontext(4) as w:\n    c = a * w\nd = c + "
        "b\nreturn d",
        2,
        3,
    ),
    "a lambda's own parameter": ("f = lambda a: a + 1\nc = f(b)\nreturn c + a", 1, 2),
    "a lambda's default": ("c = a + 1\nf = lambda x=c: x * 2\nd = f()\nreturn d", 2, 3),
    "several lines and comments": ("c = (\n    a\n    + b\n)  # why\n# more\nd = c * "
                                   "2\nreturn d", 1, 6),
}  # fmt: skip


@pytest.mark.parametrize(("body", "first", "last"), SAME.values(), ids=SAME)
def test_the_program_computes_what_it_did(body: str, first: int, last: int) -> None:
    outlined = moved(body, first, last)
    for arguments, named in [((3,), {}), ((4, 7), {"flag": False}), ((5, 1, 2, 3), {"flag": True})]:
        assert result(outlined.text, *arguments, **named) == result(
            program(body), *arguments, **named
        )
    assert f"self.{outlined.method}(" in outlined.text


REFUSED = {
    "unbound before": ("if flag:\n    c = a\nd = c + 1\nreturn d", 3, 3, "c may be unbound before"),
    "unbound after": ("d = a\nif flag:\n    c = a + 1\nreturn c", 2, 3, "c may be unbound after"),
    "returns in the middle": ("if flag:\n    return a\nc = a + "
                              "b\nreturn c", 1, 3, "return in the middle"),
    "del": ("c = a + b\ndel a\nreturn c", 1, 2, "they delete a"),
    "import": ("import math\nc = math.pi * a\nreturn c", 1, 2, "they import"),
    "a closure sees a later value": (
        "f = lambda: c\nc = a + b\nd = f()\nreturn d", 2, 2, "shares c"),
    "a closure of theirs is given another value later": (
        "c = 1\nf = lambda: c\nc = a + b\nreturn f()", 2, 2, "shares c"),
    "a lazy generator": ("g = (a * i for i in rest)\na = 0\nreturn list(g)", 1, 1, "shares a"),
    "nothing is used": ("c = a + b\nreturn a", 1, 1, "nothing that they compute is used"),
    "two on one line": ("c = a; d = (c +\n  1)\nreturn d", 1, 1, "another statement"),
    "a walrus behind a condition": ("c = a and (n := b)\nd = c + "
                                    "n\nreturn d", 1, 2, "n may be unbound"),
    "locals()": ("c = a + b\nreturn locals()['c']", 1, 1, "locals()"),
    "nonlocal": ("def f():\n    nonlocal a\n    a = 1\nc = a + b\nreturn c", 4, 4, "nonlocal"),
    "a generator": ("c = a + b\nyield c", 1, 1, "generator"),
    "self is another": ("self = a\nc = self + b\nreturn c", 2, 2, "gives self another value"),
    "an exception decides": (
        "try:\n    c = a + b\nexcept TypeError:\n    pass\nreturn c", 1, 4, "c may be unbound"),
}  # fmt: skip


@pytest.mark.parametrize(("body", "first", "last", "why"), REFUSED.values(), ids=REFUSED)
def test_what_a_method_cannot_do_for_its_caller_is_refused(
    body: str, first: int, last: int, why: str
) -> None:
    with pytest.raises(CaptureError) as error:
        moved(body, first, last)
    assert why in str(error.value)


def test_parameters_are_what_is_read_and_results_what_is_read_later() -> None:
    outlined = moved("c = a + b\nd = c * 2\ne = d + 1\nif e > 2:\n    d = e\nreturn d", 1, 3)
    assert outlined.inputs == ("a", "b")
    assert outlined.outputs == ("d", "e")
    assert "d, e = self._forward_part(a, b)" in outlined.text


def test_lines_outside_of_the_statements_keep_their_bytes() -> None:
    body = "c = a + b\n# about d\nd = c * 2\nreturn d"
    before, after = program(body).split("\n"), moved(body, 3, 3).text.split("\n")
    assert after[:4] == before[:4] and after[5] == before[5]
    assert "        d = c * 2" in after


def test_two_classes_and_two_parts_have_names_of_their_own() -> None:
    once = moved("c = a + b\nd = c * 2\nreturn d", 1, 1).text
    twice = outline(once, "Net", Part(first=4, last=4))
    assert twice.method == "_forward_part_2" and result(twice.text, 3) == result(once, 3) == 10
    heir = program("c = a + b\nreturn c").replace("class Net:", "class Net(Base):")
    assert outline(heir, "Net", Part(first=3, last=3)).method == "_forward_part_net"


def test_runs_lie_between_breaks_and_leave_out_what_computes_nothing() -> None:
    text = program(
        "c = a + b\nd = c.item()\ne = c * 2\nf = e + 1\nif a:\n    return e\ng = f\nreturn g * 2"
    )
    assert runs(text, "Net", {4}) == [
        Part(first=3, last=3),
        Part(first=5, last=6),
        Part(first=9, last=10),
    ]
    assert readers(text, "Net", Part(first=5, last=6), ["e"]) == [6]
