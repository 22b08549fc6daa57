"""Classes that say little of what they compute: those that inherit their forward, from a class of
the program or from a layer of PyTorch's, those that a function defines, and two of one name."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import torch
from rewrite_helpers import session

from kernel_lsp import analysis
from kernel_lsp.evaluator import programs
from kernel_lsp.files import read_source
from kernel_lsp.pipeline import kept
from kernel_lsp.pipeline.prepare import PreparedJob, prepare
from kernel_lsp.programs import recording
from kernel_lsp.records import Job, Outcome, Snapshot
from kernel_lsp.rewrite.capture import refusals
from kernel_lsp.rewrite.capture.inherited import with_forward
from kernel_lsp.rewrite.capture.tracing import capture
from kernel_lsp.snapshots import store
from kernel_lsp.snapshots.store import ProgramRecording
from kernel_lsp.workloads import running

pytestmark = pytest.mark.torch

HEADS = """
import torch
from torch import nn


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(8))

    def forward(self, x):
        return self.bound(torch.sigmoid(x) * self.scale)

    def bound(self, x):
        return x
"""
PLAIN = """
from heads import Head


class Doubled(Head):
    def forward(self, x):
        return 2 * super().forward(x)


def apart(x, y):
    return ((x - y) ** 2).mean()
"""
PROGRAM = """
import torch
from torch import nn
from torch.nn import functional as F
from heads import Head
from plain import Doubled, apart


class Model(Head):
    def bound(self, x):
        return torch.relu(x)


class Causal(nn.Conv1d):
    def _conv_forward(self, x, weight, bias):
        return super()._conv_forward(F.pad(x, (2, 0)), weight, bias)


def make():
    class Inner(nn.Module):
        def forward(self, x):
            return torch.tanh(x) + 1

    return Inner()


class Twice(nn.Module):
    def forward(self, x):
        return torch.exp(x)


First = Twice


class Twice(nn.Module):
    def forward(self, x):
        return torch.cos(x)


class Metric(nn.Module):
    def __init__(self):
        super().__init__()
        self.defaults = ()

    def __hash__(self):
        return hash(self.defaults)

    def forward(self, x):
        return x.mean()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.model, self.causal, self.inner = Model(), Causal(8, 8, 3), make()
        self.first, self.second = First(), Twice()

    def forward(self, x):
        x = self.causal(self.inner(self.model(x)).transpose(1, 2)).transpose(1, 2)
        return self.first(x) + self.second(x)


net, doubled, metric = Net(), Doubled(), Metric()
for _ in range(4):
    apart(net(torch.randn(2, 5, 8)), doubled(torch.randn(2, 5, 8))).backward()
    metric(torch.randn(8))
"""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recorded program; its data lie beside it."""
    root = tmp_path_factory.mktemp("classes") / "work"
    root.mkdir()
    (root / "heads.py").write_text(HEADS)
    (root / "plain.py").write_text(PLAIN)
    (root / "main.py").write_text(PROGRAM)
    command, here = (sys.executable, "main.py"), Path.cwd()
    os.chdir(root)
    try:
        out = running.default_path(root, command)
        recording.record(root, command, out, root.parent / "data", to_stderr=True)
    finally:
        os.chdir(here)
    return root


@pytest.fixture(scope="module")
def recorded(root: Path) -> ProgramRecording:
    (found,) = store.recordings(root.parent / "data")
    return found


def operations(root: Path, file: str, entry: str) -> list[str]:
    """Of the graph of a recorded target."""
    path = root / file
    text = read_source(path).text
    target = analysis.find_target(analysis.analyze(Snapshot(uri=path.as_uri(), text=text)), entry)
    assert target is not None
    call = kept.find_call(path, text, target, root.parent / "data")
    assert call is not None
    graph = capture(call.program, call.workload, "cpu")
    return [str(node.target).split(".")[1] for node in graph.nodes if node.op == "call_function"]


def test_a_call_is_its_class_s_that_defines_forward(root: Path, recorded: ProgramRecording) -> None:
    """By the methods of the class that inherits it."""
    names = {recorded.path_of(one).name: recorded.qualname_of(one) for one in recorded.seen}
    assert names["heads.py"] == "Head"
    assert operations(root, "heads.py", "Head") == ["sigmoid", "mul", "relu"]


@pytest.mark.parametrize(("name", "counted"), [("Doubled", 3), ("apart", 3)])
def test_what_a_file_without_torch_computes_is_known_by_its_recording(
    root: Path, name: str, counted: int
) -> None:
    path = root / "plain.py"
    job = Job(text=PLAIN, path=str(path), qualname=name, folder=str(root))
    found = prepare(job, str(root.parent / "data"))
    assert isinstance(found, PreparedJob) and found.target.qualname == name
    graph = capture(found.program, found.workload, "cpu")
    assert len([node for node in graph.nodes if node.op == "call_function"]) == counted
    unrecorded = prepare(job, None)
    assert isinstance(unrecorded, Outcome) and "no such target" in (unrecorded.note or "")


def test_a_layer_with_a_method_of_its_own_is_one_graph(root: Path) -> None:
    assert operations(root, "main.py", "Causal") == ["pad", "conv1d"]


def test_what_a_function_defines_opens_with_what_holds_it(root: Path) -> None:
    """Its class is kept by value, and not with what watched it while it was recorded."""
    assert {"tanh", "exp", "cos"} <= set(operations(root, "main.py", "Net"))


def test_an_instance_that_has_no_hash_while_it_is_made_is_recorded(
    root: Path, recorded: ProgramRecording
) -> None:
    (metric,) = [one for one in recorded.seen if recorded.qualname_of(one) == "Metric"]
    assert metric["calls"] == 4
    written = running.default_path(root, (sys.executable, "main.py")).read_text()
    assert "some calls are only counted" not in written


def test_of_two_classes_of_one_name_only_the_one_of_the_text_is_recorded(
    root: Path, recorded: ProgramRecording
) -> None:
    (twice,) = [one for one in recorded.seen if recorded.qualname_of(one) == "Twice"]
    assert twice["calls"] == 4
    assert operations(root, "main.py", "Twice") == ["cos"]


LAYER = """
import torch
from torch import nn


class Model(nn.Linear):
    def __init__(self):
        super().__init__(8, 400)

    def forward_of_nobody(self):
        return None


class Chain(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(8, 400), nn.ReLU())


def get_inputs():
    return [torch.randn(6, 8)]
"""


def test_a_rewrite_gives_the_class_a_forward_and_keeps_the_layer_s() -> None:
    """What is computed for other inputs is the layer's own, by its name."""
    source = LAYER.replace("Model(nn.Linear)", "Other(nn.Linear)").replace("Chain", "Model")
    made = session(source, "fused-pointwise").make([])
    assert "return super().forward(input)" in made.program
    torch.manual_seed(0)
    before = programs.load(source).Model()
    torch.manual_seed(0)
    after = programs.load(made.program).Model()
    for x in (
        torch.randn(6, 8),
        torch.randn(8),
        torch.randn(6, 8, dtype=torch.float32).t()[:8].t(),
    ):
        assert torch.equal(before(x), after(x))


def test_the_layer_of_a_class_is_found_through_its_bases() -> None:
    text = LAYER + "\n\nclass Heir(Chain):\n    def extra_repr(self):\n        return ''\n"
    assert with_forward(text, "Heir").endswith("return super().forward(input)\n")
    of_list = "from torch import nn\n\n\nclass Blocks(nn.ModuleList):\n    name = 'blocks'\n"
    assert with_forward(of_list, "Blocks") == of_list
    assert with_forward(with_forward(text, "Heir"), "Heir") == with_forward(text, "Heir")


def test_which_classes_without_a_forward_are_targets() -> None:
    found = analysis.analyze(
        Snapshot(
            uri="file:///a.py",
            text=LAYER
            + "\n\n"
            + """
class Blocks(nn.ModuleList):
    name = "blocks"


class Plain(nn.Module):
    name = "plain"
""",
        )
    )
    assert [one.qualname for one in found.targets] == ["Model", "Chain"]


def test_autograd_functions_are_seen_whose_apply_is_written_in_c() -> None:
    """As torch 2.14's is, and dict.fromkeys of every Python."""
    effects = refusals.Effects("Model", {}, None)
    kind = type("Named", (dict,), {"__module__": "program"})
    made = effects._applied(vars(dict)["fromkeys"])(kind, ["x"])
    assert made == {"x": None} and isinstance(made, kind)
    assert effects.derivatives == ["Named"]
