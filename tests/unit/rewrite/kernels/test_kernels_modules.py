"""Kernels that a module's own methods launch: the module is called, with its parameters."""

from pathlib import Path

import pytest
from rewrite_helpers import interpreted
from test_kernels_operators import TEXT, opened, prepared, refused

from kernel_lsp.pipeline.prepare import apply_candidate
from kernel_lsp.records import Step, TargetKind
from kernel_lsp.rewrite.edit import apply_edit

pytestmark = pytest.mark.torch
pytest.importorskip("torch")
pytest.importorskip("triton")

KERNEL = TEXT[: TEXT.index("@triton.jit\ndef grads_kernel")]
MODULE = """class Layer(torch.nn.Module):
    def __init__(self, width=300):
        super().__init__()
        self.w = torch.nn.Parameter(torch.randn(5, width))
        self.register_buffer("seen", torch.zeros(5, width))

    def forward(self, x):
        out = self.run(x.relu(), x)
        return out if self.training else out + 1

    def run(self, x, given):
        out = torch.empty_like(x)
        n = x.numel()
        scale_kernel[(triton.cdiv(n, 256),)](x, self.w, out, n, 2.0, BLOCK=256)
        return out


def get_inputs():
    return [torch.randn(5, 300)]
"""
COMMENT = "# kernel-lsp: workload x=f32[5,70] eval | init width=70\n"
COMPARE = """
import runpy, sys, torch
torch.manual_seed(0)
modules = [runpy.run_path(name)["Layer"](int(sys.argv[3])) for name in sys.argv[1:3]]
modules[1].load_state_dict(modules[0].state_dict())
for training in (True, False):
    x = torch.randn(5, int(sys.argv[3]))
    results = [module.train(training)(x.clone()) for module in modules]
    torch.testing.assert_close(*results)
    torch.testing.assert_close(results[0], x.relu() * modules[0].w.detach() * 2.0 + (not training))
"""


@pytest.mark.parametrize(("comment", "width", "training"), [("", 300, None), (COMMENT, 70, False)])
def test_the_module_is_called_and_its_method_changes(
    comment: str, width: int, training: bool | None, tmp_path: Path
) -> None:
    text = KERNEL + comment + MODULE
    made = prepared(text, "scale_kernel")
    assert (
        made.program.entry == "Layer"
        and made.program.kind is TargetKind.MODULE
        and made.reached is None
    )
    assert made.program.launcher == "Layer.run" and made.workload.training is training
    session = opened(made, "block-size", "launch-options")
    assert session.kernel.pointers()["w_ptr"].shape == (5, width)
    one = session.make([Step(skill="triton-block-size", site="BLOCK", parameters={"BLOCK": 64})])
    assert one.edit is not None and [name for name, _ in one.edit.others] == ["Layer.run"]
    after = apply_edit(text, made.target.span, one.edit)
    assert after.count("64") == 2 and "256" not in after
    checked = apply_candidate(made, one)
    assert checked is not None and checked.program.source == one.program
    for name, program in (("before.py", made.program.source), ("after.py", one.program)):
        (tmp_path / name).write_text(program)
    for size in (width, 1, 64, 333):
        interpreted(COMPARE, str(tmp_path / "before.py"), str(tmp_path / "after.py"), str(size))


def test_what_belongs_to_the_module_may_be_written_into() -> None:
    text = KERNEL + MODULE.replace("self.w, out, n", "self.w, self.seen, n")
    assert opened(prepared(text, "scale_kernel"), "block-size").capture().sites


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("self.w, out, n", "self.w, given, n", "Layer.run writes into what it is given (given)"),
        ("(torch.nn.Module)", "(Base)", "is launched by Layer.run, a method"),
        ("\n\n\ndef get_inputs():\n    return [torch.randn(5, 300)]\n", "\n", "no workload"),
    ],
)
def test_what_cannot_be_called_is_refused_in_one_line(old: str, new: str, said: str) -> None:
    assert old in MODULE
    note = refused(
        KERNEL + "class Base:\n    pass\n\n\n" + MODULE.replace(old, new), "scale_kernel"
    )
    assert said in note and "\n" not in note


def test_a_constructor_that_fails_says_so() -> None:
    made = prepared(KERNEL + MODULE.replace("width=300", "width"), "scale_kernel")
    with pytest.raises(Exception, match=r"Layer\(…\) failed: TypeError"):
        opened(made, "block-size")
