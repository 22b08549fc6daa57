"""Targets that write into their arguments and buffers: caches of keys and values."""

from __future__ import annotations

import copy
import importlib.util
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
import torch
from recorded_helpers import recorded
from rewrite_helpers import graph_of, module, skill

from kernel_lsp.errors import CaptureError, RewriteError
from kernel_lsp.records import (
    Home,
    Program,
    Step,
    TargetKind,
    TorchSetting,
    Workload,
    WorkloadOrigin,
)
from kernel_lsp.rewrite.capture.tracing import capture
from kernel_lsp.rewrite.capture.writes import require_order, writes_of
from kernel_lsp.rewrite.engine import EngineSession
from kernel_lsp.rewrite.graph import after_write
from kernel_lsp.snapshots import store
from kernel_lsp.snapshots.keeping import Keeper

pytestmark = pytest.mark.torch

WIDTH = 16
NET = """\
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(16, 16)
        self.register_buffer("past", torch.zeros(2, 8, 16))
        self.register_buffer("hidden", torch.zeros(2, 8, 16), persistent=False)

    def forward(self, x, cache, position):
{body}
"""
INFERENCE = TorchSetting(gradients=False)


def cache() -> dict[str, Any]:
    torch.manual_seed(1)
    draw = torch.randn(2, 5, WIDTH), torch.randn(2, 8, WIDTH), torch.randn(2, 3, WIDTH)
    return {"k": draw[0], "v": draw[1], "n": torch.tensor([4]), "seen": [draw[2]], "count": 4}


def net(folder: Path, body: str, *, of: Callable[[], Any] = cache) -> tuple[Program, Workload]:
    lines = "\n".join(f"        {line}" for line in body.strip().split("\n"))
    args = torch.randn(2, 1, WIDTH), of(), torch.tensor([3])
    program, workload = recorded(folder, NET.format(body=lines), "Net", (), *args)
    return program, replace(workload, training=False, setting=INFERENCE)


def run(program: Program, text: str, calls: int = 1) -> tuple[list[Any], Any, Any]:
    """Results, cache and buffers after some calls of a text of the program."""
    namespace: dict[str, Any] = {"__name__": "text"}
    exec(text, namespace)
    torch.manual_seed(0)
    module, given = namespace["Net"]().eval(), cache()
    torch.manual_seed(2)
    with torch.no_grad():
        made = [module(torch.randn(2, 1, WIDTH), given, torch.tensor([i])) for i in range(calls)]
    return made, given, dict(module.named_buffers())


def rewritten(program: Program, workload: Workload, *skills: str) -> str:
    """The program after every site of the skills, on the CPU, where nothing of Triton is made."""
    session = EngineSession(program, workload, "cpu", [skill(name) for name in skills])
    session.capture()
    steps: list[Step] = []
    while sites := session.look(steps):
        steps.append(Step(skill=sites[0].skill, site=sites[0].site))
    return session.make(steps).program


def equal(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[k], other[k]) for k in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(equal, one, other))
    return bool(one == other)


WRITES = {
    "in place": (
        'h = self.a(x)\np = cache["n"] * 2\ncache["n"].add_(1)\nself.past[:, 2:3] = h\n'
        'self.hidden[0] = h[0]\ncache["v"].index_copy_(1, position, h)\n'
        'return self.past.sum(1) + cache["v"].mean(1) + cache["n"] + p'
    ),
    "an item that grows": (
        'h = self.a(x)\ncache["k"] = torch.cat([cache["k"], h], dim=1)\nreturn cache["k"].sum(1)'
    ),
    "items that are others, or new": (
        'cache["seen"][0] = self.a(x)\ncache["new"] = (self.a(x), "name")\ncache["name"] = "two"\n'
        'cache["seen"].append(x * 2)\nreturn cache["seen"][0] * 2'
    ),
    "two that change places": (
        'cache["k"], cache["v"] = cache["v"], cache["k"]\nreturn self.a(x) + cache["k"].sum()'
    ),
    "written twice, read before and after": (
        'v = cache["v"]\nb = v * 2\nv[:, 0:1] = x\nm = v.sum(1)\nv.mul_(0.5)\nv[:, 0:1] = 2 * x\n'
        "return m - v.sum(1) + b.sum()"
    ),
}


@pytest.mark.parametrize("body", WRITES.values(), ids=WRITES)
def test_a_rewritten_forward_writes_what_the_original_writes(tmp_path: Path, body: str) -> None:
    program, workload = net(tmp_path, body)
    text = rewritten(program, workload)
    assert "_forward_eager" in text
    fast = text.replace("return self._forward_eager(x, cache, position)", "pass")
    assert equal(run(program, fast), run(program, program.source))


def test_reads_before_and_after_a_write_are_of_two_values(tmp_path: Path) -> None:
    body = (
        'b = cache["v"] * 2\ncache["v"][:, 1:2] = x\nreturn self.a(x) + b.sum() + cache["v"].sum()'
    )
    graph = capture(*net(tmp_path, body), "cpu")
    (write,) = writes_of(graph)
    (after,) = [node for node in graph.nodes if node.target is after_write]
    (piece,) = write.args[:1]
    assert after.args == (piece.args[0], write) and graph.named("mul").args[0] is piece.args[0]
    assert [node.name for node in after.users] == ["sum_2"]
    require_order(graph)


def test_a_rewrite_that_reads_at_the_wrong_side_of_a_write_is_refused(tmp_path: Path) -> None:
    graph = capture(*net(tmp_path, WRITES["in place"]), "cpu").copy()
    writes_of(graph)[0].append(graph.named("mul"))
    with pytest.raises(RewriteError, match="mul would read a tensor after add_ has written"):
        require_order(graph)


def test_a_rewrite_that_loses_a_write_is_refused(tmp_path: Path) -> None:
    graph = capture(*net(tmp_path, WRITES["in place"]), "cpu").copy()
    write = writes_of(graph)[0]
    write.replace_all_uses_with(write.args[0])
    graph.fx.erase_node(write)
    with pytest.raises(RewriteError, match="would be lost"):
        require_order(graph)


REFUSED = {
    "a view through which is written": (
        'view = cache["v"][:, :4]\nview[:, 1:2] = x\nreturn self.a(x) + view.sum()',
        "reads a view of cache.* that was made before",
    ),
    "a view that is read after the write": (
        'view = cache["v"][:, :2]\ncache["v"].mul_(2)\nreturn self.a(x) + view.sum()',
        "reads a view of cache.* that was made before",
    ),
    "a number that counts": (
        'cache["count"] = cache["count"] + 1\nreturn self.a(x) * cache["count"]',
        "counts in cache",
    ),
    "a key that is taken out": ('k = cache.pop("k")\nreturn self.a(x) + k.sum()', "takes 'k' out"),
    "an attribute of the module": ("self.last = self.a(x)\nreturn x * 2", "sets self.last"),
}


@pytest.mark.parametrize(("body", "words"), REFUSED.values(), ids=REFUSED)
def test_what_a_rewritten_forward_could_not_leave_behind_is_refused(
    tmp_path: Path, body: str, words: str
) -> None:
    with pytest.raises(CaptureError, match=words):
        capture(*net(tmp_path, body), "cpu")


REMEMBERED = """\
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.size, self.table, self.last = nn.Linear(16, 16), None, None, None
        self.forward(torch.ones(2, 8, 16))

    def tables(self, x):
        if x.shape[1] != self.size:
            self.size, self.table = x.shape[1], torch.ones(x.shape[1], 16)
            self.last = self.table
        return self.table

    def forward(self, x):
        {set}
        return self.a(x) * self.table
"""


@pytest.mark.parametrize(
    ("line", "count", "words"),
    [
        ("self.table = self.tables(x)", 8, None),
        ("self.table = self.tables(x)", 9, "sets self.size"),
        ("self.table = self.tables(x); self.last = self.table", 8, "sets self.last"),
        ("self.table = self.tables(x); self.table = self.last", 8, "sets self.table"),
        ("self.table = self.tables(x) * 1", 8, "sets self.table"),
    ],
)
def test_an_attribute_may_be_set_to_the_tensor_that_was_read_there(
    tmp_path: Path, line: str, count: int, words: str | None
) -> None:
    """Its other name may be another's at the next call."""
    program, workload = recorded(
        tmp_path, REMEMBERED.format(set=line), "Net", (), torch.randn(2, count, 16)
    )
    if words is None:
        assert capture(program, workload, "cpu").named("mul") is not None
        return
    with pytest.raises(CaptureError, match=words):
        capture(program, workload, "cpu")


def test_a_slice_does_not_write_into_a_buffer_that_nobody_would_compare() -> None:
    init = 'self.register_buffer("past", torch.zeros(6, 8), persistent=False)'
    with pytest.raises(CaptureError, match=r"self\.past, a buffer that is not saved"):
        graph_of(module("self.past[:, 0:1] = x[:, :1]\nreturn self.past * 2", init))


def test_arguments_that_share_memory_are_not_written_to(tmp_path: Path) -> None:
    def shared() -> dict[str, Any]:
        both = torch.randn(4, 8, WIDTH)
        return {"v": both[:2], "w": both[1:3]}

    body = 'cache["v"].mul_(2)\nreturn self.a(x) + cache["w"].sum()'
    with pytest.raises(CaptureError, match="shares memory with another tensor"):
        capture(*net(tmp_path, body, of=shared), "cpu")


def test_one_tensor_in_two_places_stays_one(tmp_path: Path) -> None:
    def twice() -> dict[str, Any]:
        one = torch.randn(2, 5, WIDTH)
        return {"k": one, "old": one}

    body = 'cache["k"] = torch.cat([cache["k"], self.a(x)], dim=1)\nreturn cache["old"] * 2'
    graph = capture(*net(tmp_path, body, of=twice), "cpu")
    assert any(" is cache" in condition for condition in graph.requirements)


def test_writes_are_refused_while_gradients_are_recorded(tmp_path: Path) -> None:
    program, workload = net(tmp_path, WRITES["in place"])
    workload = replace(workload, training=True, setting=TorchSetting(gradients=True))
    with pytest.raises(CaptureError, match="while gradients are recorded"):
        capture(program, workload, "cpu")


# --- lengths ---------------------------------------------------------------------------------


def test_a_cache_may_have_any_length_that_the_program_does_not_decide_by(tmp_path: Path) -> None:
    program, workload = net(tmp_path, WRITES["an item that grows"])
    text = rewritten(program, workload)
    assert "cache['k'].shape == (2, cache['k'].shape[1], 16)" in text
    counted = text.replace("return self._forward_eager(", "raise AssertionError(")
    assert equal(run(program, counted, calls=3), run(program, program.source, calls=3))


@pytest.mark.parametrize(
    "body",
    [
        'k = torch.cat([cache["k"], self.a(x)], dim=1)\ncache["k"] = k\n'
        "return k.sum(1) if k.shape[1] < 40 else k.mean(1)",
        'k = torch.cat([cache["k"], self.a(x)], dim=1)\ncache["k"] = k\n'
        "return k.sum(1) * k.shape[1]",
    ],
    ids=["a branch", "a factor"],
)
def test_a_length_that_decides_stays_as_it_was_recorded(tmp_path: Path, body: str) -> None:
    text = rewritten(*net(tmp_path, body))
    assert "cache['k'].shape == (2, 5, 16)" in text


# --- torch.compile ----------------------------------------------------------------------------

KEEPING = 'cache["n"].add_(1)\ncache["k"] = torch.cat([cache["k"], x], dim=1)\nreturn self.a(x)'


def compiled(folder: Path) -> tuple[Program, str]:
    """A step of a decoding loop, and its text as it hands itself to torch.compile."""
    program, workload = net(folder, KEEPING)
    opened = EngineSession(program, workload, "cuda", [skill("compile-target")])
    site = next(one for one in opened.capture().sites if one.benefit is None)
    steps = [Step(skill=site.skill, site=site.site)]
    return program, opened.propose(steps).candidate.program


@pytest.mark.parametrize("failure", ["none", "refused", "too many graphs"])
def test_a_step_that_writes_into_a_cache_is_compiled_as_one_graph_and_writes_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: str
) -> None:
    program, text = compiled(tmp_path)
    asked, tried = list[dict[str, Any]](), list[int]()
    failures = {
        "refused": torch._dynamo.exc.Unsupported("a print"),
        "too many graphs": torch._dynamo.exc.FailOnRecompileLimitHit("9 of 8"),
    }

    def compiler(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
        def run_compiled(*args: Any) -> Any:
            tried.append(len(args))
            if (found := failures.get(failure)) is not None:
                raise found
            return function(*args)

        asked.append(options)
        return run_compiled

    monkeypatch.setattr(torch, "compile", compiler)
    assert equal(run(program, _on_cpu(text), calls=3), run(program, program.source, calls=3))
    assert asked == [{"fullgraph": True}]
    assert len(tried) == (3 if failure == "none" else 1), "at any length of the cache"


def test_a_compiled_step_that_fails_behind_a_write_is_not_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, text = compiled(tmp_path)

    def compiler(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
        def run_compiled(*args: Any) -> Any:
            function(*args)
            raise torch.OutOfMemoryError("no room for what comes next")

        return run_compiled

    monkeypatch.setattr(torch, "compile", compiler)
    with pytest.raises(torch.OutOfMemoryError):
        run(program, _on_cpu(text))


def _on_cpu(text: str) -> str:
    """The text, for tensors that lie on no GPU."""
    return text.replace(".is_cuda", ".is_cpu")


# --- transformers -----------------------------------------------------------------------------


def decoding(folder: Path) -> tuple[Program, Workload, Any, list[Any]]:
    """A decoder layer of a Llama in the second step of a decoding loop; the layer, and three
    calls."""
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=64,
    )
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config).eval()
    past, layer, calls = (
        transformers.DynamicCache(config=config),
        model.model.layers[1],
        list[Any](),
    )
    with torch.no_grad():
        model(torch.randint(64, (2, 6)), past_key_values=past)
        handle = layer.register_forward_pre_hook(
            lambda _, args, kwargs: calls.append(copy.deepcopy((args, kwargs))), with_kwargs=True
        )
        for _ in range(3):
            model(torch.randint(64, (2, 1)), past_key_values=past)
        handle.remove()
    module = sys.modules[type(layer).__module__]
    args, kwargs = copy.deepcopy(calls[0])
    kept = Keeper(str(folder), cloudpickle, torch).keep(layer, args, kwargs, {})
    home = Home(
        module=module.__name__,
        path=str(module.__file__),
        snapshot=str(folder / kept.name),
        search_path=tuple(sys.path),
        pickler=store.cloudpickle_file(),
    )
    source = Path(home.path).read_text()
    program = Program(source=source, entry="LlamaDecoderLayer", kind=TargetKind.MODULE, home=home)
    workload = Workload(
        name="recorded", origin=WorkloadOrigin.RECORDED, training=False, setting=INFERENCE
    )
    return program, workload, layer, calls


def test_a_decoding_step_of_transformers_is_one_graph(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fast path is taken in each step, whatever the cache's length, and leaves the same
    cache."""
    program, workload, layer, calls = decoding(tmp_path)
    session = EngineSession(program, workload, "cpu", [])
    assert len(session.graph.nodes) > 40
    text = session.make([]).program.replace(
        "return self._forward_eager_llamadecoderlayer(", "raise AssertionError("
    )
    own = sys.modules[type(layer).__module__]
    (tmp_path / "changed.py").write_text(text)
    spec = importlib.util.spec_from_file_location(f"{own.__name__}_c", tmp_path / "changed.py")
    assert spec is not None and spec.loader is not None
    changed = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, changed)
    spec.loader.exec_module(changed)
    forward = changed.LlamaDecoderLayer.forward
    for name in ("LlamaRMSNorm", "LlamaAttention", "LlamaMLP"):  # of which the layer is made
        setattr(changed, name, getattr(own, name))
    for args, kwargs in calls:
        theirs = copy.deepcopy(kwargs)
        with torch.no_grad():
            assert torch.equal(forward(layer, *args, **kwargs), layer(*args, **theirs))
        pairs = zip(kwargs["past_key_values"].layers, theirs["past_key_values"].layers, strict=True)
        assert all(equal(dict(vars(one)), dict(vars(other))) for one, other in pairs)
