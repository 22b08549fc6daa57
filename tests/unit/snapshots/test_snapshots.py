"""What a recorded call may hold: kept inside of the program, opened again with the same
structure."""

import dataclasses
import enum
import importlib
import io
import socket
import sys
import threading
import weakref
import zlib
from collections.abc import Callable
from contextvars import ContextVar
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, prune
from torch.nn.utils import weight_norm as old_weight_norm

from kernel_lsp.errors import SnapshotError
from kernel_lsp.records import Home, Replay
from kernel_lsp.snapshots import (
    describing,
    format,
    keeping,
    making,
    opening,
    replaying,
    sources,
    store,
)
from kernel_lsp.snapshots.opening import OpenedCall, open_call
from kernel_lsp.workloads.recorder import calls, memos, modules, sites
from kernel_lsp.workloads.recorder.recording import ProcessRecording

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings(
        "ignore:Sparse", "ignore:torch.quantize_per_tensor", "ignore:The PyTorch API of nested"
    ),
]


class Mode(enum.Enum):
    FAST = "fast"


@dataclasses.dataclass
class Options:
    width: int
    mode: Mode
    act: Callable[[torch.Tensor], torch.Tensor]


class Tagged(torch.Tensor):
    """A plain subclass of Tensor."""


class Outer(nn.Module):
    """Holds anything, and computes with it by a function."""

    def __init__(self, compute: Any, **held: Any) -> None:
        super().__init__()
        self.compute = compute
        for name, value in held.items():
            setattr(self, name, value)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.compute(self, *args, **kwargs)


@pytest.fixture
def opened(tmp_path: Path) -> Callable[..., OpenedCall]:
    """Keeps a call as the recorder does, and opens it."""
    cloudpickle = calls._load_module(calls.CLOUDPICKLE, Path(store.cloudpickle_file()))
    keeper = keeping.Keeper(str(tmp_path), cloudpickle, torch)

    def keep_and_open(target: Any, *args: Any, home: dict[str, str] | None = None) -> OpenedCall:
        kept = keeper.keep(target, args, {}, {})
        place = home or {"module": __name__, "path": __file__}
        lived = Home(
            **place,
            snapshot=str(tmp_path / kept.name),
            search_path=tuple(sys.path),
            pickler=store.cloudpickle_file(),
            device="cpu",
        )
        return open_call(lived, Path(place["path"]).read_text(), making.Drawn("cpu", 0))

    return keep_and_open


def called(call: OpenedCall) -> Any:
    args, kwargs = call.bind(call.tensors)
    return call.target(*args, **kwargs)


def test_configs_closures_enums_and_lambdas_are_as_they_were(opened: Any) -> None:
    factor = 3.0
    options = Options(width=4, mode=Mode.FAST, act=lambda x: x * factor)
    call = opened(Outer(lambda self, x: (self.o.act(x), self.o.mode), o=options), torch.ones(2, 4))
    (x,), _ = call.bind(call.tensors)
    y, mode = called(call)
    assert torch.equal(y, 3 * x) and mode is sys.modules[__name__].Mode.FAST


@pytest.mark.parametrize("dim", [0, 1])
def test_expanded_and_scalar_tensors_are_kept_by_value(opened: Any, dim: int) -> None:
    times = torch.tensor([7]).expand(3) if dim else torch.tensor(7).expand(1)
    call = opened(Outer(lambda self, t: t + 1), times)
    assert torch.equal(called(call), times + 1)


def test_tied_weights_and_views_stay_tied(opened: Any) -> None:
    weight, buffer = nn.Parameter(torch.randn(4, 4)), torch.arange(8.0)
    outer = Outer(lambda self, x: x @ self.a, a=weight, b=weight)
    outer.register_buffer("whole", buffer)
    outer.register_buffer("part", buffer[2:4])
    target = opened(outer, torch.randn(2, 4).t().contiguous().t()).target
    assert target.a is target.b and isinstance(target.a, nn.Parameter)
    target.whole[2] = 100.0
    assert target.part[0] == 100.0


@pytest.mark.parametrize("wrap", [parametrizations.weight_norm, parametrizations.spectral_norm])
def test_a_parametrized_module_is_opened_with_its_parametrizations(opened: Any, wrap: Any) -> None:
    outer = Outer(lambda self, x: self.conv(x), conv=wrap(nn.Conv1d(4, 8, 3)))
    call = opened(outer, torch.randn(1, 4, 9))
    conv = call.target.conv
    assert nn.utils.parametrize.is_parametrized(conv, "weight") and "weight" not in dict(
        conv.named_parameters()
    )
    assert called(call).shape == (1, 8, 7)
    before = conv.weight.detach().clone()
    with torch.no_grad():
        next(iter(conv.parametrizations.weight.parameters())).mul_(2)
    assert conv.weight.shape == before.shape


def test_a_parametrized_module_of_the_program_is_recorded_as_the_class_that_was_written() -> None:
    outer = Outer(lambda self, x: x, weight=nn.Parameter(torch.ones(2, 2)))
    parametrizations.orthogonal(outer, "weight")
    assert type(outer) is not Outer
    assert sites.written_class(type(outer)) is Outer and sites.written_class(Outer) is Outer


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_hooks_are_kept(opened: Any) -> None:
    linear = old_weight_norm(nn.Linear(4, 4, bias=False))
    prune.random_unstructured(layer := nn.Linear(4, 4), "weight", 0.5)
    handle = nn.Linear(4, 4)
    handle.register_forward_hook(lambda module, args, result: result * 0)
    outer = Outer(
        lambda self, x: self.handle(self.linear(self.layer(x))),
        linear=linear,
        layer=layer,
        handle=handle,
    )
    outer(torch.randn(2, 4))  # what hooks compute has a history
    call = opened(outer, torch.randn(2, 4))
    assert torch.equal(called(call), torch.zeros(2, 4))
    assert len(call.target.linear._forward_pre_hooks) == 1


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.eye(4).to_sparse(),
        lambda: torch.eye(4).to_sparse_csr(),
        lambda: torch.eye(4).to_sparse_csc(),
    ],
)
def test_a_sparse_tensor_is_one_of_the_same_places(opened: Any, make: Any) -> None:
    call = opened(Outer(lambda self, x: self.adjacency @ x, adjacency=make()), torch.ones(4, 2))
    adjacency = call.target.adjacency
    assert adjacency.layout is make().layout
    assert torch.equal(adjacency.to_dense() != 0, torch.eye(4) != 0)
    argument = opened(Outer(lambda self, x: x), make())
    assert called(argument).layout is make().layout
    assert called(call).shape == (4, 2)


def test_nested_quantized_and_subclassed_tensors(opened: Any) -> None:
    parts = [torch.randn(2, 3), torch.randn(4, 3)]
    jagged = torch.nested.nested_tensor(parts, layout=torch.jagged)
    quantized = torch.quantize_per_tensor(torch.tensor([0.0, 1.0, 2.0]), 0.5, 1, torch.qint8)
    tagged = torch.ones(3).as_subclass(Tagged)
    tagged.label = "me"
    outer = Outer(
        lambda self, a, b: (a * 2, b * 2, self.q.dequantize(), self.tagged),
        q=quantized,
        tagged=tagged,
    )
    call = opened(outer, jagged, torch.nested.nested_tensor(parts))
    a, b, numbers, found = called(call)
    assert a.layout is torch.jagged and [tuple(one.shape) for one in a.unbind()] == [(2, 3), (4, 3)]
    assert b.is_nested and b.size(0) == 2
    assert numbers.tolist() == [0.0, 1.0, 2.0]
    assert type(found).__name__ == "Tagged" and found.label == "me"


def test_what_a_module_no_longer_names_is_missed_only_where_it_is_used(
    opened: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread holds the sys.excepthook of its start."""
    before = sys.__excepthook__
    monkeypatch.setattr(sys, "excepthook", lambda *_: None)
    outer = Outer(lambda self, x: x + 1, hook=before)
    kept = opened(outer, torch.zeros(2))
    assert called(kept).shape == (2,)


def test_what_cannot_be_pickled_is_missed_only_where_it_is_used(
    opened: Any, tmp_path: Path
) -> None:
    connection = socket.socket()
    with (tmp_path / "log").open("w") as log:
        held = {
            "log": log,
            "socket": connection,
            "numbers": (number for number in range(3)),
            "thread": threading.current_thread(),
            "lock": threading.Lock(),
            "text": io.StringIO("x"),
        }
        outer = Outer(lambda self, x, use: x + 1 if not use else self.log.write("x"), **held)
        kept = opened(outer, torch.zeros(2), False)
        used = opened(outer, torch.zeros(2), True)
    connection.close()
    assert called(kept).shape == (2,)
    with pytest.raises(
        RuntimeError, match=r"it uses an open file \(_io\.TextIOWrapper\), which a recorded call"
    ):
        called(used)


SEEN = ContextVar("seen", default=None)
"""No pickle takes one."""
WATCH = SimpleNamespace(seen=SEEN, threads=threading.current_thread())


def test_what_a_snapshot_lacks_has_a_key_by_which_a_program_that_is_run_again_is_asked(
    tmp_path: Path,
) -> None:
    with (tmp_path / "log").open("w") as log:
        target = Outer(torch.relu, log=log, lock=threading.Lock(), again=[log])
        keeper = keeping.Keeper(str(tmp_path), importlib.import_module("cloudpickle"), torch)
        numbers = (number for number in [1])
        header, absent = keeper.look(target, (torch.zeros(2),), {"other": numbers})
        assert absent["0"] is log and absent["1"] is numbers
        assert header["absent"] == {"0": "_io.TextIOWrapper", "1": "generator"}


@pytest.mark.parametrize(
    ("command", "found"),
    [
        ("python train.py --steps 3", ("script", "train.py", ["--steps", "3"])),
        ("/usr/bin/python3.11 -u -W ignore -m pack.train x", ("module", "pack.train", ["x"])),
        ("torchrun train.py", None),
        ("python -c pass", None),
        ("", None),
    ],
)
def test_which_programs_are_run_again(command: str, found: Any) -> None:
    if found is not None:
        assert replaying.program_in(command.split()) == found
        return
    with pytest.raises(SnapshotError, match="python FILE"):
        replaying.program_in(command.split())


def test_a_program_that_makes_another_call_is_no_replay(tmp_path: Path) -> None:
    """Its objects would be another call's. The call that is like the one kept is found behind
    others."""
    script = tmp_path / "main.py"
    script.write_text(RUN_AGAIN)
    home = Home(
        module="held", path=str(tmp_path / "held.py"), snapshot=str(tmp_path / "a.call"),
        search_path=(str(tmp_path),), pickler=store.cloudpickle_file(),
        replay=Replay(command=("python", "main.py"), root=str(tmp_path)),
    )  # fmt: skip
    (tmp_path / "held.py").write_text(HELD)
    about = {"module": "held", "class": "Held", "folder": str(tmp_path), "script": str(script)}
    opening._load_cloudpickle(home.pickler)
    sys.path.insert(0, str(tmp_path))
    try:
        look = {"absent": {"0": "_io.TextIOWrapper"}}
        for rows, name in ((3, "two"), (2, "one"), (4, None)):
            spec = {"shape": [rows, 2], "stride": [2, 1], "dtype": "float32"}
            header = {**about, **look, "tensors": [spec]}
            again = dataclasses.replace(home, snapshot=f"{home.snapshot}{rows}")
            if name is None:
                with pytest.raises(SnapshotError, match="did not make that call"):
                    replaying.objects_of_call(again, HELD, header)
                continue
            (file,) = replaying.objects_of_call(again, HELD, header).values()
            assert Path(file.name).name == name and not file.closed
    finally:
        sys.path.remove(str(tmp_path))
        sys.modules.pop("held", None)


HELD = """
from torch import nn


class Held(nn.Module):
    def forward(self, x, file):
        return x
"""
RUN_AGAIN = """
import torch
from held import Held


def main():
    held = Held()
    for rows, name in ((2, "one"), (3, "two")):
        with open(name, "w") as file:
            held(torch.zeros(rows, 2), file)


main()
"""


def test_a_hook_reads_what_its_module_has_assigned(opened: Any) -> None:
    watched = nn.Linear(2, 2)
    watched.register_forward_hook(lambda module, args, result: WATCH.seen.get())
    call = opened(Outer(lambda self, x: self.watched(x), watched=watched), torch.zeros(1, 2))
    assert called(call).shape == (1, 2)
    token = SEEN.set(torch.ones(3))  # type: ignore[arg-type]
    try:
        assert torch.equal(called(call), torch.ones(3))
    finally:
        SEEN.reset(token)


class HandsOn:
    """Has what its parameter has, and names it by its module."""

    def __init__(self, owner: nn.Module, name: str) -> None:
        self.owner, self.name = owner, name

    def __getattr__(self, name: str) -> Any:
        return getattr(getattr(self.owner, self.name), name)


def test_an_object_that_hands_on_what_it_lacks_is_not_asked_before_it_has_its_parts(
    opened: Any,
) -> None:
    outer = Outer(lambda self, x: x * self.other.ndim)
    outer.weight = nn.Parameter(torch.ones(2, 3))
    outer.other = HandsOn(outer, "weight")
    call = opened(outer, torch.ones(2))
    assert torch.equal(called(call), 2 * torch.ones(2))
    assert call.target.other.owner is call.target


def test_weak_references_and_cycles(opened: Any) -> None:
    outer = Outer(lambda self, x: self.inner.outer() is self)
    outer.inner = SimpleNamespace(outer=weakref.ref(outer))
    assert called(opened(outer, torch.zeros(1)))


def test_a_fake_tensor_has_no_memory(opened: Any) -> None:
    fakes = importlib.import_module("torch._subclasses")
    with fakes.FakeTensorMode():
        fake = torch.empty(3, 4)
    assert opened(Outer(lambda self, x: x.shape, fake=fake), torch.zeros(1)).target.fake.is_meta


def test_definitions_of_a_script_may_ask_for_what_it_had_assigned_above_them(
    opened: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import torch\nsmall = bool('x')\n"
        "class Net(torch.nn.Module):\n"
        "    width = 3 if small else 5\n"
        "    def forward(self, x): return x + self.width\n"
        "net = Net()\n"
    )
    main = ModuleType("__main__")
    main.__file__ = str(script)
    exec(script.read_text(), main.__dict__)
    monkeypatch.setitem(sys.modules, "__main__", main)
    call = opened(main.net, torch.zeros(2), home={"module": "__main__", "path": str(script)})
    assert called(call).shape == (2,) and call.target.width == 3


def test_gigabytes_of_buffers_are_described_by_a_sample_of_what_they_hold() -> None:
    """Copied out, this one would take 80 GB; a large model has hundreds to summarize."""
    found = describing.structure(torch.arange(10).expand(1_000_000_000, 10))
    assert found == {"low": 0, "high": 9, "monotone": True}
    summary = describing.summary(torch.ones(1).expand(2_500_000_000), torch)
    assert summary["low"] == summary["high"] == summary["mean"] == 1.0


def test_modules_are_forgotten_without_asking_for_each_where_python_lies(monkeypatch) -> None:
    """Two answers for each of thousands of modules took half of opening a program."""
    own = ModuleType("own_of_the_program")
    own.__file__ = "/work/own_of_the_program.py"
    sys.modules[own.__name__] = own
    asked: list[str] = []
    monkeypatch.setattr("sysconfig.get_path", asked.append)
    sources.unload("/work/another.py")
    assert own.__name__ not in sys.modules and "torch" in sys.modules and "json" in sys.modules
    assert not asked


class Memo(nn.Module):
    """Fills ``table`` at its first call, in the way that is asked for."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way, self.tables, self.table = way, dict[int, Any](), None
        self.register_buffer("places", None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.way == "attribute" and self.table is None:
            self.table = torch.ones(2)
        elif self.way == "buffer" and self.places is None:
            self.places = torch.ones(2)
        elif self.way == "dict":
            self.tables[len(x)] = torch.ones(2)
        elif self.way == "exchange":  # the new one may lie where the old one was
            count, self.table = (self.table or [0])[0] + 1, None
            self.table = [count]
        return x


@pytest.mark.parametrize("way", ["attribute", "buffer", "dict", "none"])
def test_a_module_whose_first_call_fills_a_cache_is_kept_again_when_it_is_full(
    tmp_path: Path, way: str
) -> None:
    """Of two blocks that are alike the first call of each is one with an empty cache."""
    recording, kept = ProcessRecording(str(tmp_path), str(tmp_path)), list[tuple[int, bool]]()
    recording.torch = torch
    blocks, x = nn.ModuleList(Memo(way) for _ in range(2)), torch.ones(2)

    class Calls:
        seconds = 0.0

        def keep(self, target: Any, *_: Any, again: bool, **more: Any) -> dict[str, Any]:
            kept.append((list(blocks).index(target), again))
            return {"snapshot": str(len(kept))}

    recording.calls = Calls()  # type: ignore[assignment]
    observer = modules._ModuleObserver(torch, recording)
    site = recording.site("module", "p.py", "Memo", Memo)
    glance = site.glance(None)
    for number in range(6):
        block = blocks[number % 2]
        recording.watch(
            site,
            glance,
            lambda block=block: modules._ObservedCall(observer, block, (x,), {}),
            lambda block=block: block(x),
        )
    (found,) = site.ways.values()
    assert kept == ([(0, False)] if way == "none" else [(0, False), (0, True)])
    assert found.about["snapshot"] == str(len(kept)) and recording.notes == []


def test_an_object_in_the_place_of_another_is_seen_where_it_lies_at_the_same_address() -> None:
    memo = Memo("exchange")
    for _ in range(3):
        before = memos.state_of(memo)
        assert before == memos.state_of(memo)
        memo(torch.ones(2))
        assert before != memos.state_of(memo)


class Hostile(BaseException):
    def __str__(self) -> str:
        raise SystemExit(7)


RAISED = {
    "a text that raises": "import test_snapshots; raise test_snapshots.Hostile",
    "an interrupt": "raise KeyboardInterrupt",
    "an end": "raise SystemExit(0)",
    "no end of calls": "def f(g): g(g)\nf(f)",
    "an enormous text": "raise ValueError('A' * 2**24)",
}
"""What a pickle may run while it is opened."""


def running(code: str, pickled: bytes) -> bytes:
    """The pickle, which first runs this code."""
    text = code.encode()
    return b"cbuiltins\nexec\n(X" + len(text).to_bytes(4, "little") + text + b"tR0" + pickled


@pytest.fixture
def kept(tmp_path: Path) -> tuple[Home, format.Contents]:
    """A recorded call and what its file holds."""
    cloudpickle = calls._load_module(calls.CLOUDPICKLE, Path(store.cloudpickle_file()))
    layer = Outer(lambda self, x: x + self.weight, weight=nn.Parameter(torch.ones(3)))
    name = keeping.Keeper(str(tmp_path), cloudpickle, torch).keep(layer, (torch.ones(3),), {}, {})
    home = Home(
        module=__name__, path=__file__, snapshot=str(tmp_path / name.name),
        search_path=tuple(sys.path), pickler=store.cloudpickle_file(),
    )  # fmt: skip
    return home, format.read(Path(home.snapshot))


def reopened(home: Home, header: dict[str, Any], parts: dict[str, bytes]) -> OpenedCall:
    """The call of a file with this header and these parts in the place of the one that was kept."""
    content = format.encode(
        {k: v for k, v in header.items() if k not in ("parts", "format")}, parts
    )
    path = Path(home.snapshot).with_name(format.name_of(content))
    path.write_bytes(content)
    lived = dataclasses.replace(home, snapshot=str(path))
    return open_call(lived, Path(__file__).read_text(), making.Drawn("cpu", 0))


@pytest.mark.parametrize("part", ["target", "arguments"])
@pytest.mark.parametrize("code", RAISED.values(), ids=RAISED)
def test_whatever_a_call_raises_while_it_is_opened_is_one_line(
    kept: tuple[Home, format.Contents], part: str, code: str
) -> None:
    home, contents = kept
    parts = {**contents.parts, part: running(code, contents.parts[part])}
    with pytest.raises(SnapshotError, match="could not be opened") as raised:
        reopened(home, contents.header, parts)
    assert len(raised.value.cause) < 400 and raised.value.remedy


def test_values_that_unpack_to_more_than_their_tensor_are_refused(
    kept: tuple[Home, format.Contents],
) -> None:
    """64 MB may unpack to 64 GB."""
    home, contents = kept
    parts = {**contents.parts, "bomb": zlib.compress(bytes(2**20))}
    specs = [{**spec, "blob": "bomb"} for spec in contents.header["tensors"]]
    with pytest.raises(SnapshotError, match="more than it holds"):
        reopened(home, {**contents.header, "tensors": specs}, parts)


@pytest.mark.parametrize(
    "change",
    [
        {"tensors": None},
        {"tensors": [7]},
        {"tensors": [{"storage": 0, "shape": [2**40, 2**40], "stride": [1, 1], "offset": 0}]},
        {"tensors": [{"storage": 0, "shape": "x", "stride": [1], "offset": 0, "dtype": "load"}]},
    ],
    ids=str,
)
def test_a_header_that_describes_no_tensors_is_one_line(
    kept: tuple[Home, format.Contents], change: dict[str, Any]
) -> None:
    home, contents = kept
    with pytest.raises(SnapshotError, match="record"):
        reopened(home, {**contents.header, **change}, contents.parts)
    with pytest.raises(SnapshotError, match="has no arguments"):
        reopened(home, contents.header, {"target": contents.parts["target"]})
