"""Kernels that are launched under another name: they are found, and change where their launch is
seen."""

from pathlib import Path

import pytest
from rewrite_helpers import SKILLS, interpreted, skill
from test_kernels_targets import ADD, HEAD, opened, prepared

from kernel_lsp.pipeline.prepare import PreparedJob, apply_candidate
from kernel_lsp.records import Step
from kernel_lsp.rewrite.edit import apply_edit
from kernel_lsp.rewrite.kernels.blocks import adjustable
from kernel_lsp.rewrite.kernels.session import KernelSession
from kernel_lsp.rewrite.kernels.source import KernelSource

pytestmark = pytest.mark.torch
pytest.importorskip("torch")
pytest.importorskip("triton")

LAUNCH = "add_kernel[(triton.cdiv(x.numel(), 128),)](x, y, out, x.numel(), BLOCK=128)"
GRID = "(triton.cdiv(x.numel(), 128),)"
GIVEN = "(x, y, out, x.numel(), BLOCK=128)"
SEEN = {
    "another name": f"other = add_kernel\n    other[{GRID}]{GIVEN}",
    "a name of the file": f"plus[{GRID}]{GIVEN}",
    "with its grid": f"run = add_kernel[{GRID}]\n    run{GIVEN}",
    "both": f"other = plus\n    run = other[{GRID}]\n    run{GIVEN}",
    "a name for the grid": f"grid = {GRID}\n    run = add_kernel[grid]\n    run{GIVEN}",
}
UNSEEN = {
    "partial": "import functools\n    "
    f"functools.partial(add_kernel[{GRID}], x, y)(out, x.numel(), BLOCK=128)",
    "one of two": f"run = add_kernel[{GRID}]\n    (run if x.numel() else None){GIVEN}",
    "handed on": f"(lambda launch: launch{GIVEN})(add_kernel[{GRID}])",
    "set twice": f"run = None\n    run = add_kernel[{GRID}]\n    run{GIVEN}",
    "in a loop": f"for run in (add_kernel[{GRID}],):\n        run{GIVEN}",
}
EXP = (
    "x + tl.load(y_ptr + offsets, mask=mask)",
    "tl.exp(x * 3.0) + tl.load(y_ptr + offsets, mask=mask)",
)
COMPARE = """
import runpy, sys, torch
one, other = (runpy.run_path(name) for name in sys.argv[1:3])
entry = sys.argv[3]
for n in (1, 127, 128, 129, 1000, 4096):
    x, y = torch.randn(n), torch.randn(n)
    results = []
    for program in (one, other):
        given = x.clone(), y.clone()
        made = program[entry](*given)
        assert torch.equal(given[0], x) and torch.equal(given[1], y)
        results.append(made if isinstance(made, tuple) else (made,))
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b)
"""


def text(launch: str, *changes: tuple[str, str]) -> str:
    made = HEAD + ADD.replace(LAUNCH, launch)
    if "plus" in launch:
        made = made.replace("\n\n# kernel-lsp:", "\n\nplus = add_kernel\n\n\n# kernel-lsp:")
    for old, new in changes:
        assert old in made
        made = made.replace(old, new)
    return made


@pytest.mark.parametrize("how", SEEN)
def test_a_launch_that_is_seen_changes_like_any_other(how: str, tmp_path: Path) -> None:
    source = text(SEEN[how])
    one, session = opened(source, "add_kernel")
    assert one.program.launcher == "add" and session.kernel.launched[0].grid == (8,)
    assert {site.skill for site in session.capture().sites} == {
        "triton-block-size",
        "triton-launch-options",
    }
    assert session.notes == []
    steps = [
        Step(skill="triton-block-size", site="BLOCK", parameters={"BLOCK": 512}),
        Step(
            skill="triton-launch-options", site="launch of add_kernel", parameters={"num_warps": 8}
        ),
    ]
    made = session.make(steps)
    assert made.edit is not None
    after = apply_edit(source, one.target.span, made.edit)
    assert after.count("512") == 2 and "128" not in after and after.count("num_warps=8") == 1
    checked = apply_candidate(one, made)
    assert checked is not None and checked.program.source == made.program
    same(one.program.source, made.program, one.program.entry, tmp_path)


@pytest.mark.parametrize("how", UNSEEN)
def test_of_a_launch_that_is_not_seen_the_kernel_alone_may_change(how: str) -> None:
    one = prepared(text(UNSEEN[how], EXP), "add_kernel")
    session = every(one)
    assert session.kernel.launched[0].grid == (8,) and adjustable(session.kernel) == []
    sites = session.capture().sites
    assert session.notes == []
    for site in sites:
        made = session.make([Step(skill=site.skill, site=site.site)])
        assert made.edit is not None and made.edit.others == ()


def every(one: PreparedJob) -> KernelSession:
    skills = [skill(path.name) for path in sorted(SKILLS.glob("triton-*"))]
    return KernelSession(one.program, one.workload, "cuda", skills)


@pytest.mark.parametrize("how", SEEN)
def test_what_it_writes_into_is_copied(how: str, tmp_path: Path) -> None:
    source = text(SEEN[how].replace("x, y, out, ", "x, y, x, "), ("return out", "return None"))
    one, session = opened(source, "add_kernel")
    assert "x = x.clone()" in one.program.source
    made = session.make([Step(skill="triton-block-size", site="BLOCK", parameters={"BLOCK": 64})])
    same(one.program.source, made.program, one.program.entry, tmp_path)


@pytest.mark.parametrize("what", ["plus", "plus=None", "*plus"])
def test_an_argument_is_no_name_of_the_file(what: str) -> None:
    source = text(SEEN["a name of the file"].replace("plus[", "(plus or add_kernel)["))
    source = source.replace("add(x, y)", f"add(x, y, {what})").replace(
        "(plus or", "plus = (plus or"
    )
    source = source.replace("add_kernel)[", "add_kernel)\n    plus[").replace(
        "    plus = (", "    plus = ("
    )
    made = KernelSource.parse(source, "add_kernel", "add")
    assert made.launches() == []


def test_a_kernel_behind_two_names_has_both_launchers() -> None:
    source = text(SEEN["another name"]) + ADD[ADD.index("# kernel-lsp") :].replace(
        "def add(", "def again("
    )
    assert prepared(source, "add_kernel").target.launchers == ("add", "again")


def same(before: str, after: str, entry: str, folder: Path) -> None:
    assert before != after
    for name, program in (("before.py", before), ("after.py", after)):
        (folder / name).write_text(program)
    interpreted(COMPARE, str(folder / "before.py"), str(folder / "after.py"), entry)
