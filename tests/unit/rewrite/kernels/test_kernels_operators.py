"""Kernels that an autograd Function launches: its forward and its backward are targets of their
own."""

import tomllib
from pathlib import Path

import pytest
from rewrite_helpers import interpreted, skill

from kernel_lsp.pipeline.prepare import PreparedJob, apply_candidate, prepare
from kernel_lsp.records import ArgSpec, Job, Step
from kernel_lsp.rewrite.edit import apply_edit
from kernel_lsp.rewrite.kernels.harness import launcher_of
from kernel_lsp.rewrite.kernels.session import KernelSession

pytestmark = pytest.mark.torch
pytest.importorskip("torch")
pytest.importorskip("triton")

TEXT = """
import torch
import triton
import triton.language as tl
from torch.autograd import Function


@triton.jit
def scale_kernel(x_ptr, w_ptr, out_ptr, n, factor, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask)
    tl.store(out_ptr + offsets, x * tl.load(w_ptr + offsets, mask=mask) * factor, mask=mask)


@triton.jit
def grads_kernel(dy_ptr, x_ptr, w_ptr, dx_ptr, dw_ptr, n, factor, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    dy = tl.load(dy_ptr + offsets, mask=mask) * factor
    x = tl.load(x_ptr + offsets, mask=mask)
    w = tl.load(w_ptr + offsets, mask=mask)
    tl.store(dx_ptr + offsets, dy * w, mask=mask)
    tl.store(dw_ptr + offsets, dy * x, mask=mask)


# kernel-lsp: workload x=f32[5,200] grad w=f32[5,200] grad
class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w, factor: float = 2.0):
        out = torch.empty_like(x)
        n = x.numel()
        scale_kernel[(triton.cdiv(n, 256),)](x, w, out, n, factor, BLOCK=256)
        ctx.save_for_backward(x, w)
        ctx.factor = factor
        return out

    @staticmethod
    def backward(ctx, dy):
        x, w = ctx.saved_tensors
        dx, dw = torch.empty_like(x), torch.empty_like(w)
        n = x.numel()
        grads_kernel[(triton.cdiv(n, 256),)](dy.contiguous(), x, w, dx, dw, n, ctx.factor, BLOCK=256)
        return dx, dw, None
"""
COMMENT = "# kernel-lsp: workload x=f32[5,200] grad w=f32[5,200] grad\n"
NAMES = {"scale_kernel": "Scale.forward", "grads_kernel": "Scale.backward"}


def prepared(text: str, kernel: str, folder: Path | None = None) -> PreparedJob:
    known = None if folder is None else str(folder)
    made = prepare(
        Job(text=text, path=f"{known or '/w'}/op.py", qualname=kernel, device="cuda", folder=known)
    )
    assert isinstance(made, PreparedJob), made
    return made


def opened(made: PreparedJob, *skills: str) -> KernelSession:
    return KernelSession(
        made.program, made.workload, "cuda", [skill(f"triton-{name}") for name in skills]
    )


def replaced(*changes: tuple[str, str]) -> str:
    text = TEXT
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return text


def refused(text: str, kernel: str) -> str:
    made = prepare(Job(text=text, path="/w/op.py", qualname=kernel, device="cuda"))
    assert not isinstance(made, PreparedJob)
    return made.note


@pytest.mark.parametrize("kernel", NAMES)
@pytest.mark.parametrize(
    "changes",
    [
        (),
        (("(torch.autograd.Function)", "(Function)"),),
        (("class Scale(", "@torch.compiler.allow_in_graph\nclass Scale("),),
    ],
    ids=["plain", "imported", "decorated"],
)
def test_both_halves_are_targets_and_their_launches_change_in_the_class(
    kernel: str, changes: tuple[tuple[str, str], ...]
) -> None:
    text = replaced(*changes)
    made = prepared(text, kernel)
    assert (
        made.program.launcher
        == launcher_of(made.program.source, made.program.entry)
        == NAMES[kernel]
    )
    session = opened(made, "block-size", "launch-options")
    assert {site.skill for site in session.capture().sites} == {
        "triton-block-size",
        "triton-launch-options",
    }
    one = session.make([Step(skill="triton-block-size", site="BLOCK", parameters={"BLOCK": 512})])
    assert one.edit is not None
    after = apply_edit(text, made.target.span, one.edit)
    assert after.count("512") == 2 and after.count("256") == 2
    checked = apply_candidate(made, one)
    assert checked is not None and checked.program.source == one.program


def test_a_forward_keeps_the_gradients_of_its_workload_and_a_backward_makes_its_own() -> None:
    forward, backward = (prepared(TEXT, kernel).workload for kernel in NAMES)
    assert [spec.requires_grad for spec in forward.inputs or ()] == [True, True]
    assert [spec.requires_grad for spec in backward.inputs or ()] == [False, False]


COMPARE = """
import runpy, sys, torch
one, other = (runpy.run_path(name)["launch_on_copies"] for name in sys.argv[1:3])
for shape in ((5, 200), (1, 1), (3, 512), (7, 301)):
    torch.manual_seed(0)
    x, w = torch.randn(shape), torch.randn(shape)
    results = []
    for call in (one, other):
        for rest in ((), (0.5,)):
            leaves = [x.clone().requires_grad_(), w.clone().requires_grad_()]
            made = call(*leaves, *rest)
            assert torch.equal(leaves[0], x) and torch.equal(leaves[1], w)
            made = made if isinstance(made, tuple) else (made,)
            if made[0].requires_grad:  # a forward
                made += torch.autograd.grad(made[0].square().sum(), leaves)
            results.append(made)
    half = len(results) // 2
    for a, b in zip(results[:half], results[half:]):
        assert all(torch.equal(p, q) for p, q in zip(a, b, strict=True)), shape
    factor = 2.0
    dy = 2 * (x * w * factor) if len(results[0]) == 3 else x * w * factor
    expected = [dy * factor * w, dy * factor * x]
    for p, q in zip(results[0][-2:], expected, strict=True):
        torch.testing.assert_close(p.detach(), q)
"""


@pytest.mark.parametrize("kernel", NAMES)
def test_values_and_gradients_stay_for_other_shapes_and_arguments(
    kernel: str, tmp_path: Path
) -> None:
    compare(prepared(TEXT, kernel), tmp_path)


def compare(made: PreparedJob, tmp_path: Path) -> None:
    step = Step(skill="triton-block-size", site="BLOCK", parameters={"BLOCK": 64})
    programs = (made.program.source, opened(made, "block-size").make([step]).program)
    assert programs[0] != programs[1]
    for name, text in zip(("before.py", "after.py"), programs, strict=True):
        (tmp_path / name).write_text(text)
    interpreted(COMPARE, str(tmp_path / "before.py"), str(tmp_path / "after.py"))


# --- where the workload comes from -------------------------------------------------------------

CALLER = """

# kernel-lsp: workload w=f32[40] x=f32[40] grad
def scaled(w, x):
    return Scale.apply(x, w, 0.5)
"""


@pytest.mark.parametrize(
    ("caller", "expected"),
    [
        (CALLER, ["x", "w", 0.5]),
        (CALLER.replace("(w, x)", "(w, x, factor=3.0)").replace("0.5", "factor"), ["x", "w", 3.0]),
        (CALLER.replace(", 0.5", ""), ["x", "w"]),
    ],
)
def test_a_function_that_hands_its_arguments_on_says_them(
    caller: str, expected: list[object]
) -> None:
    made = prepared(TEXT.replace(COMMENT, "") + caller, "scale_kernel")
    specs = made.workload.inputs or ()
    assert [spec.value for spec in specs[2:]] == expected[2:]
    assert [spec.shape for spec in specs[:2]] == [(40,), (40,)]
    assert [spec.requires_grad for spec in specs[:2]] == [True, False]
    assert all(spec.name is None for spec in specs)


@pytest.mark.parametrize(
    "body",
    [
        "return Scale.apply(x.float(), w)",
        "x = x + 1\n    return Scale.apply(x, w)",
        "return Scale.apply(*(x, w))",
    ],
)
def test_a_function_that_changes_what_it_hands_on_is_run_as_far_as_there(body: str) -> None:
    caller = CALLER.replace("return Scale.apply(x, w, 0.5)", body)
    made = prepared(TEXT.replace(COMMENT, "") + caller, "scale_kernel")
    assert (
        made.reached is not None
        and made.reached.caller == "scaled"
        and made.workload.inputs is None
    )
    assert opened(made, "block-size").kernel.pointers()["x_ptr"].shape == (40,)


def test_without_a_workload_the_line_says_where_to_put_one() -> None:
    module = (
        "class Layer(torch.nn.Module):\n    def forward(self, x):\n        return Scale.apply(x, "
        "self.w)\n"
    )
    for kernel in NAMES:
        note = refused(f"{TEXT.replace(COMMENT, '')}\n\n{module}", kernel)
        assert note.startswith(
            "nothing says what Scale.apply is called with (put a comment above class "
        )


@pytest.mark.parametrize(
    "place", ["    @staticmethod\n    def forward", "@triton.jit\ndef scale_kernel"]
)
def test_a_comment_above_forward_or_the_kernel_counts_too(place: str) -> None:
    text = replaced(
        (COMMENT, ""), (place, f"{place[: len(place) - len(place.lstrip())]}{COMMENT}{place}")
    )
    made = prepared(text, "scale_kernel")
    assert [spec.name for spec in made.workload.inputs or ()] == ["x", "w"]


LAUNCH = """
[[launch]]
target = "op.py::{kernel}"
launcher = "op.py::Scale.{half}"
called_with = [{{ name = "ctx", unknown = "ScaleBackward" }}, {given}]
arguments = []
grid = [3]
"""


@pytest.mark.parametrize("kernel", NAMES)
def test_a_recorded_forward_is_the_workload_of_both(kernel: str, tmp_path: Path) -> None:
    x = '{ name = "x", dtype = "float32", shape = [700], requires_grad = true }'
    dy = '{ name = "dy", dtype = "float32", shape = [700] }'
    recorded = LAUNCH.format(
        kernel="scale_kernel", half="forward", given=f"{x}, {x.replace('x', 'w', 1)}"
    )
    recorded += LAUNCH.format(kernel="grads_kernel", half="backward", given=dy)
    assert tomllib.loads(recorded)
    (tmp_path / ".kernel-lsp").mkdir()
    (tmp_path / ".kernel-lsp" / "run.toml").write_text(recorded)
    text = TEXT.replace(COMMENT, "")
    (tmp_path / "op.py").write_text(text)
    made = prepared(text, kernel, tmp_path)
    specs = made.workload.inputs
    grad = kernel == "scale_kernel"
    assert specs == tuple(
        ArgSpec(name=name, dtype="float32", shape=(700,), requires_grad=grad) for name in ("x", "w")
    )
    assert opened(made, "block-size").capture().sites


# --- in place, and what is refused -------------------------------------------------------------


def test_what_a_forward_writes_into_is_copied() -> None:
    text = replaced(("(x, w, out, n, factor, BLOCK=256)", "(x, w, x, n, factor, BLOCK=256)"))
    forward, backward = (prepared(text, kernel).program.source for kernel in NAMES)
    assert "x = x if x is None else x.clone()" in forward and "return result, x\n" in forward
    assert "one.clone() if isinstance(one" in backward


SAVED = (
    ("dy.contiguous(), x, w, dx, dw, n", "dy.contiguous(), x, w, x, dw, n"),
    ("return dx,", "return x,"),
)
HANDED = ("dy.contiguous(), x, w, dx, dw, n", "dy, x, w, dy, dw, n"), ("return dx,", "return dy,")


@pytest.mark.parametrize("changes", [SAVED, HANDED], ids=["what was saved", "what it is handed"])
def test_a_backward_that_works_in_place_gets_copies(
    changes: tuple[tuple[str, str], ...], tmp_path: Path
) -> None:
    text = replaced(*changes)
    backward, forward = (prepared(text, kernel) for kernel in ("grads_kernel", "scale_kernel"))
    assert backward.program.source.count(".clone()") == 2
    assert "clone" not in forward.program.source.split("def launch_on_copies")[1]
    compare(backward, tmp_path)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            "(ctx, x, w, factor: float = 2.0)",
            "(ctx, x, *w)",
            "Scale.forward takes starred or keyword",
        ),
        ("    @staticmethod\n    def forward", "    def forward", "Scale has no static forward"),
        (
            "(torch.autograd.Function):\n    @staticmethod",
            ":",
            "is launched by Scale.forward, a method",
        ),
    ],
)
def test_what_cannot_be_applied_is_refused_in_one_line(old: str, new: str, said: str) -> None:
    note = refused(replaced((old, new)), "scale_kernel")
    assert said in note and "\n" not in note


def test_a_forward_beside_its_context_is_called_with_all_its_arguments() -> None:
    text = replaced(
        ("(ctx, x, w, factor: float = 2.0)", "(x, w, factor=2.0)"),
        ("        ctx.save_for_backward(x, w)\n        ctx.factor = factor\n", ""),
        (
            "    @staticmethod\n    def backward",
            "    @staticmethod\n    def setup_context(ctx, inputs, output):\n"
            "        ctx.save_for_backward(*inputs[:2])\n        ctx.factor = inputs[2]\n\n"
            "    @staticmethod\n    def backward",
        ),
    )
    for kernel in NAMES:
        made = prepared(text, kernel)
        assert "def launch_on_copies(x, w, factor=2.0)" in made.program.source
        assert opened(made, "block-size").capture().sites
