"""Modules that cannot be one graph: where they break, and which of their statements can be
rewritten."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from recorded_helpers import recorded
from rewrite_helpers import skill

from kernel_lsp.errors import CaptureError, RewriteError
from kernel_lsp.records import Part, Program, Step, Workload
from kernel_lsp.rewrite.client import Surveyed
from kernel_lsp.rewrite.engine import EngineSession
from kernel_lsp.rewrite.outlining import outline
from kernel_lsp.rewrite.parts import survey

pytestmark = pytest.mark.torch

NET = """\
class Net(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.a = nn.Linear(width, width)
        self.b = nn.Linear(width, width)
        self.seen = 0

    def forward(self, x, scale=1.0):
        h = self.a(x)
        h = F.silu(h) * torch.sigmoid(h) + 0.5 * h
        if h.abs().max() > 100:
            h = h / 100
        self.seen += 1
        rate = h.mean().item()
        y = self.b(h) * scale
        y = F.gelu(y) * torch.sigmoid(y * 1.702) + y
        y = y * 2 + rate
        return y.exp() + x
"""


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> tuple[Program, Workload]:
    x = torch.randn(64, 256)
    return recorded(tmp_path_factory.mktemp("net"), NET, "Net", (256,), x, scale=2.0)


@pytest.fixture(scope="module")
def found(net: tuple[Program, Workload]) -> Surveyed:
    return survey(*net, "cpu")


def line(program: Program, code: str) -> int:
    return program.source.split("\n").index(code) + 1


def test_each_break_is_told_once_with_what_would_remove_it(
    net: tuple[Program, Workload], found: Surveyed
) -> None:
    program, _ = net
    told = [(one.code, one.cause, one.remedy[:12]) for one in found.breaks]
    assert told == [
        ("if h.abs().max() > 100:", "decides by tensor values", "choose by to"),
        ("self.seen += 1", "keeps self.seen for later", "return it, o"),
        ("rate = h.mean().item()", "moves a value to the host", "keep it a te"),
    ]
    assert [one.line for one in found.breaks] == sorted(
        line(program, f"        {one.code}") for one in found.breaks
    )


def test_parts_lie_between_breaks_and_read_no_number_that_changes(
    net: tuple[Program, Workload], found: Surveyed
) -> None:
    """``rate`` is another number in each call: a graph that holds it would never be used."""
    program, _ = net
    parts = {one.part for one in found.parts}
    first, second = (
        line(program, "        h = self.a(x)"),
        line(program, "        y = self.b(h) * scale"),
    )
    assert parts == {
        Part(first=first, last=first + 1),
        Part(first=second, last=second + 1),
        Part(first=second + 3, last=second + 3),
    }


def rewritten(program: Program, workload: Workload, first: str, last: str) -> str:
    part = Part(first=line(program, f"        {first}"), last=line(program, f"        {last}"))
    session = EngineSession(
        replace(program, part=part), workload, "cpu", [skill("fused-pointwise")]
    )
    site = session.capture().sites[0]
    return session.make([Step(skill=site.skill, site=site.site, parameters={})]).program


def test_a_rewrite_edits_its_statements_alone(net: tuple[Program, Workload]) -> None:
    program, workload = net
    text = rewritten(
        program, workload, "h = self.a(x)", "h = F.silu(h) * torch.sigmoid(h) + 0.5 * h"
    )
    lines = text.split("\n")
    call = lines.index("        h = self._forward_part(x)")
    rest = program.source[program.source.index("        if h.abs()") :].rstrip()
    assert rest in text and lines[call + 1].strip() == "if h.abs().max() > 100:"
    assert "return self._forward_part_eager(x)" in text
    moved = (
        "        h = self.a(x)\n        h = F.silu(h) * torch.sigmoid(h) + 0.5 * h\n        "
        "return h"
    )
    assert moved in text


SHARED = '''\
class Shared(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.a = nn.Linear(width, width)

    def forward(self, x):
        h = F.silu(self.a(x)) * 2 + 1
        y = h.t()
        if y.sum() > 1e9:
            y = y * 2
        y.add_(1)
        return h.sum() + y.sum()
'''  # fmt: skip


def test_results_that_share_memory_go_on_sharing_it(tmp_path: Path) -> None:
    """What comes after writes into ``y``, which is ``h``: a part may hand on both only as one
    memory."""
    program, workload = recorded(tmp_path, SHARED, "Shared", (256,), torch.randn(256, 256))
    part = Part(
        first=line(program, "        h = F.silu(self.a(x)) * 2 + 1"),
        last=line(program, "        y = h.t()"),
    )
    session = EngineSession(
        replace(program, part=part), workload, "cpu", [skill("fused-pointwise")]
    )
    for site in session.capture().sites:
        try:
            made = session.make([Step(skill=site.skill, site=site.site, parameters={})])
        except RewriteError:
            continue
        method = made.program[made.program.index("def _forward_part(") :]
        assert ".t()" in method or "y = h" in method, method


CHANGED = """\
class Changed(nn.Module):
    def forward(self, x, seen):
        if x.sum() > 1e9:
            x = x * 2
        {code}
        return x * 2 + 1
"""


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("seen.append(x.exp() * 2); x = x + 1", "changes its argument"),
        ("x.mul_(2); x = x.exp() + 1", "in place"),
        ("out = [x * 2, x + 1]; x = out", "hands on a list"),
    ],
)
def test_statements_that_change_what_others_hold_are_no_part(
    tmp_path: Path, code: str, why: str
) -> None:
    text = CHANGED.format(code=code).replace(
        "return x *", "return x[0] *" if "out" in code else "return x *"
    )
    program, workload = recorded(tmp_path, text, "Changed", (), torch.randn(4, 8), [])
    at = line(program, f"        {code}")
    with pytest.raises(CaptureError, match=why):
        EngineSession(replace(program, part=Part(first=at, last=at)), workload, "cpu", [])


def test_the_setting_is_the_one_where_the_part_begins(tmp_path: Path) -> None:
    text = """\
class Cast(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(8, 8)

    @torch.no_grad()
    def forward(self, x):
        if x.sum() > 1e9:
            x = x * 2
        x = F.silu(self.a(x)) * 2 + 1
        print(x.shape)
        return x
"""
    program, workload = recorded(tmp_path, text, "Cast", (), torch.randn(4, 8))
    at = line(program, "        x = F.silu(self.a(x)) * 2 + 1")
    session = EngineSession(
        replace(program, part=Part(first=at, last=at)), workload, "cpu", [skill("fused-pointwise")]
    )
    assert session.graph.gradients is False
    assert outline(program.source, "Cast", Part(first=at, last=at)).outputs == ("x",)


CACHED = """\
import functools
from typing import overload


class Layer:
    def __init__(self):
        self.keys = None


class Cache:
    def __init__(self):
        self.layers = [Layer()]

    def update(self, k):
        known = self.layers[0].keys
        self.layers[0].keys = k if known is None else torch.cat([known, k], 1)
        return self.layers[0].keys


def attend(q, k):
    return torch.softmax(q @ k.mT * 0.5, -1) @ k


def plainly(forward):
    @functools.wraps(forward)
    def wrapper(self, *args, **kwargs):
        return forward(self, *args, **kwargs)
    return wrapper


class Net(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.q = nn.Linear(width, width)
        self.k = nn.Linear(width, width)

    @overload
    def forward(self, x: torch.Tensor) -> torch.Tensor: ...

    @plainly
    def forward(self, x, cache):
        q = F.silu(self.q(x)) + 1
        k = F.silu(self.k(x)) + 1
        k = cache.update(k)
        function = attend
        y = function(q, k)
        return y.exp() + x
"""


def test_parts_lie_around_a_cache_that_grows_in_a_decorated_forward(tmp_path: Path) -> None:
    """Where no line says what a tracer stumbled over, the halves are tried."""
    scope: dict[str, object] = {"torch": torch, "nn": torch.nn, "F": torch.nn.functional}
    exec(CACHED, scope)
    cache = scope["Cache"]()  # type: ignore[operator]
    program, workload = recorded(tmp_path, CACHED, "Net", (8,), torch.randn(2, 4, 8), cache)
    with pytest.raises(CaptureError, match="decorated with @plainly"):
        EngineSession(program, workload, "cpu", [])
    found = survey(program, workload, "cpu")
    spans = {(one.part.first, one.part.last) for one in found.parts}
    first = line(program, "        q = F.silu(self.q(x)) + 1")
    last = line(program, "        return y.exp() + x")
    assert spans == {(first, first + 1), (last - 2, last)}


HELD = """\
class Pair:
    def __init__(self, first, second):
        self.first, self.second = first, second


class Net(nn.Module):
    def forward(self, x):
        h = F.silu(x) * torch.sigmoid(x)
        h = h.exp() + 1
        out = Pair(h * 2, h)
        if x.sum() > 1e9:
            x = x * 2
        y = F.silu(out.first) * out.second
        return y.exp() + x
"""


def test_the_statement_that_makes_an_object_for_later_is_a_break(tmp_path: Path) -> None:
    program, workload = recorded(tmp_path, HELD, "Net", (), torch.randn(4, 8))
    found = survey(program, workload, "cpu")
    assert ("out = Pair(h * 2, h)", "a part of Net hands on a Pair") in [
        (one.code, one.cause) for one in found.breaks
    ]
    first = line(program, "        h = F.silu(x) * torch.sigmoid(x)")
    assert Part(first=first, last=first + 1) in {one.part for one in found.parts}
