"""Kernels without a workload of their own: what a module or function of the file passes their
launcher."""

from dataclasses import replace
from pathlib import Path

import pytest
from rewrite_helpers import interpreted
from test_kernels_operators import COMMENT, NAMES, TEXT, opened, prepared, refused

from kernel_lsp import analysis
from kernel_lsp.commands.optimize import _requests
from kernel_lsp.pipeline.callers import kernels_of
from kernel_lsp.pipeline.prepare import apply_candidate
from kernel_lsp.records import Snapshot, Step
from kernel_lsp.rewrite.edit import apply_edit
from kernel_lsp.rewrite.kernels.launched import Pointer

pytestmark = pytest.mark.torch
pytest.importorskip("torch")
pytest.importorskip("triton")

BARE = TEXT.replace(COMMENT, "")
LAYER = """

scale = Scale.apply


class Layer(torch.nn.Module):
    def __init__(self, width=200):
        super().__init__()
        self.w = torch.nn.Parameter(torch.ones(5, width))

    def forward(self, x):
        return scale(x.float(), self.w, 0.5) + 1


def get_inputs():
    return [torch.randn(5, 200, dtype=torch.float64)]
"""
NET = LAYER.split("\n\n\ndef get_inputs")[0] + (
    "\n\n\n# kernel-lsp: workload x=f32[5,300] eval | init width=300\n"
    "class Net(torch.nn.Module):\n    def __init__(self, width):\n        super().__init__()\n"
    "        self.layer = Layer(width)\n\n    def forward(self, x):\n        return "
    "self.layer(x * 2)\n"
)
FUNCTION = """

# kernel-lsp: workload x=f32[40,5] grad
def scaled(x):
    x = x.t()
    return Scale.apply(x, torch.ones_like(x).requires_grad_())
"""
PLAIN = """

def launch(x, w, factor):
    out = torch.empty_like(x)
    scale_kernel[(triton.cdiv(x.numel(), 256),)](x, w, out, x.numel(), factor, BLOCK=256)
    return out


class Layer(torch.nn.Module):
    def forward(self, x):
        return launch(launch(x, x + 1, 2.0).relu(), w=x, factor=3.0)


def get_inputs():
    return [torch.randn(7, 9)]
"""
KERNEL = BARE[: BARE.index("@triton.jit\ndef grads_kernel")]


@pytest.mark.parametrize("kernel", NAMES)
@pytest.mark.parametrize(
    ("caller", "shape"),
    [(LAYER, (5, 200)), (NET, (5, 300)), (FUNCTION, (5, 40))],
    ids=["layer", "net", "function"],
)
def test_what_a_caller_passes_is_the_workload_of_both_halves(
    kernel: str, caller: str, shape: tuple[int, ...]
) -> None:
    made = prepared(BARE + caller, kernel)
    session = opened(made, "block-size")
    assert session.kernel.pointers()["x_ptr"].shape == shape
    assert session.kernel.launched[0].arguments["factor"] == (2.0 if caller is FUNCTION else 0.5)
    one = session.make([Step(skill="triton-block-size", site="BLOCK", parameters={"BLOCK": 512})])
    assert one.edit is not None
    after = apply_edit(BARE + caller, made.target.span, one.edit)
    assert after.count("512") == 2 and "of_caller" not in after
    checked = apply_candidate(made, one)
    assert checked is not None and checked.program.source == one.program


PASSED = """
import runpy, sys, torch
program = runpy.run_path(sys.argv[1])
args, kwargs = program["get_inputs"]()
assert kwargs == {} and all(a.is_leaf for a in args if isinstance(a, torch.Tensor))
assert not args[0].requires_grad or sys.argv[2] == "x"
assert args[1].requires_grad == (sys.argv[2] != "")
result = program["launch_on_copies"](*args)
again, _ = program["get_inputs"]()
assert result is not None and again[0].shape == args[0].shape
"""


@pytest.mark.parametrize("kernel", NAMES)
@pytest.mark.parametrize(("caller", "grad"), [(LAYER, "w"), (NET, "w"), (FUNCTION, "x")])
def test_what_is_passed_can_be_passed_again(
    kernel: str, caller: str, grad: str, tmp_path: Path
) -> None:
    path = tmp_path / "program.py"
    path.write_text(prepared(BARE + caller, kernel).program.source)
    interpreted(PASSED, str(path), grad if kernel == "scale_kernel" else "")


def test_of_several_calls_the_first_counts_with_its_names() -> None:
    made = prepared(KERNEL + PLAIN, "scale_kernel")
    session = opened(made, "block-size")
    (launch,) = session.kernel.launched
    assert launch.arguments["factor"] == 2.0
    assert launch.arguments["x_ptr"] == Pointer("float32", (7, 9), (9, 1), "x")


def test_a_launch_before_the_one_that_counts_is_made() -> None:
    first = PLAIN.replace("scale_kernel[", "other_kernel[").replace("def launch(", "def before(")
    first = first[: first.index("\n\n\nclass Layer")]
    other = KERNEL[KERNEL.index("@triton.jit") :].replace("scale_kernel", "other_kernel")
    text = (
        KERNEL
        + other
        + first
        + PLAIN.replace("launch(launch(x, x + 1, 2.0)", "launch(before(x, x + 1, 2.0)")
    )
    (launch,) = opened(prepared(text, "scale_kernel"), "block-size").kernel.launched
    assert launch.arguments["factor"] == 3.0


@pytest.mark.parametrize("kernel", NAMES)
def test_a_workload_of_its_own_comes_first(kernel: str) -> None:
    made = prepared(TEXT + LAYER, kernel)
    assert made.reached is None and "of_caller" not in made.program.source


def test_a_caller_without_a_workload_or_that_never_calls_is_none() -> None:
    silent = LAYER[: LAYER.index("\n\n\ndef get_inputs")]
    assert "nothing says what Scale.apply is called with" in refused(BARE + silent, "scale_kernel")
    unrelated = "\n\ndef get_inputs():\n    return [torch.randn(3, 4), torch.randn(3, 4)]\n"
    other = "\n\nclass Other(torch.nn.Module):\n    def forward(self, x):\n        return x\n"
    assert prepared(BARE + other + unrelated, "scale_kernel").reached is None


def test_what_is_wrong_with_a_callers_comment_is_said() -> None:
    assert "`init` after `|`" in refused(BARE + NET.replace("| init", "| with"), "scale_kernel")


def test_a_caller_that_goes_another_way_is_said() -> None:
    text = BARE + LAYER.replace(
        "return scale(", "if x.dim() == 2:\n            return x\n        return scale("
    )
    made = prepared(text, "scale_kernel")
    with pytest.raises(Exception, match=r"Layer does not call Scale\.forward with its workload"):
        opened(made, "block-size")


def test_the_launcher_of_a_kernel_names_it_too() -> None:
    snapshot = Snapshot(uri="file:///w/op.py", text=KERNEL + PLAIN)
    found = analysis.analyze(snapshot)
    assert (
        kernels_of(snapshot, found, "launch")
        == kernels_of(snapshot, found, "Layer")
        == ["scale_kernel"]
    )


def test_modules_and_functions_name_the_kernels_they_come_to() -> None:
    text = BARE + NET + FUNCTION
    snapshot = Snapshot(uri="file:///w/op.py", text=text)
    found = analysis.analyze(snapshot)
    for name in ("Layer", "Net", "scaled"):
        assert kernels_of(snapshot, found, name) == list(NAMES)
    assert (
        kernels_of(snapshot, found, "scale_kernel") == kernels_of(snapshot, found, "nothing") == []
    )
    plain = replace(
        snapshot, text="import torch\n\n\ndef f(x: torch.Tensor):\n    return torch.relu(x)\n"
    )
    assert kernels_of(plain, analysis.analyze(plain), "f") == []


@pytest.mark.parametrize(
    ("target", "wanted"),
    [
        ("Layer", {"Layer", *NAMES}),
        ("scale_kernel", {"scale_kernel"}),
        ("nothing", {"nothing"}),
        ("Scale.backward", {"grads_kernel"}),
    ],
)
def test_the_command_asks_for_the_kernels_of_a_module(
    target: str, wanted: set[str], tmp_path: Path
) -> None:
    path = tmp_path / "op.py"
    path.write_text(BARE + LAYER)
    assert {one.qualname for one in _requests(f"{path}::{target}")} == wanted
