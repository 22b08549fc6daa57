"""Pragma comments: what they mean, and what a malformed one is told."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernel_lsp.errors import WorkloadError
from kernel_lsp.records import ArgSpec, Snapshot, Span, Target, TargetKind, Workload, WorkloadOrigin
from kernel_lsp.workloads import workloads_for
from kernel_lsp.workloads.pragma import parse

CLASS = "class M(torch.nn.Module):\n    def forward(self, x): return x\n"


def read(text: str, name: str = "M") -> tuple[tuple[Workload, ...], tuple[Exception, ...]]:
    start = text.index(f"class {name}")
    span = Span(start=start, end=len(text))
    target = Target(
        qualname=name, kind=TargetKind.MODULE, name_span=span, span=span, fingerprint=""
    )
    return workloads_for(Snapshot(uri="m.py", text=text), target, None)


def one(pragma: str) -> Workload:
    workloads, problems = read(f"import torch\n# kernel-lsp: workload {pragma}\n{CLASS}")
    assert problems == ()
    (workload,) = workloads
    return workload


def test_the_example_of_the_documentation() -> None:
    assert one("x=f32[128,4096] mask=bool[128,1] n=4 | init hidden=4096") == Workload(
        name="x=f32[128,4096] mask=bool[128,1] n=4 | init hidden=4096",
        origin=WorkloadOrigin.PRAGMA,
        inputs=(
            ArgSpec(name="x", dtype="float32", shape=(128, 4096)),
            ArgSpec(name="mask", dtype="bool", shape=(128, 1)),
            ArgSpec(name="n", value=4),
        ),
        init=(ArgSpec(name="hidden", value=4096),),
    )


@pytest.mark.parametrize(
    ("item", "spec"),
    [
        ("f16[2]", ArgSpec(name=None, dtype="float16", shape=(2,))),
        ("x=bf16[2, 3]", ArgSpec(name="x", dtype="bfloat16", shape=(2, 3))),
        ("x=float64[]", ArgSpec(name="x", dtype="float64", shape=())),
        ("ids=i64[8,9]<32000", ArgSpec(name="ids", dtype="int64", shape=(8, 9), distribution="index:32000")),
        ("x=f32[4] grad", ArgSpec(name="x", dtype="float32", shape=(4,), requires_grad=True)),
        ("f32[] ones", ArgSpec(name=None, dtype="float32", shape=(), distribution="ones")),
        ("p=-0.5", ArgSpec(name="p", value=-0.5)),
        ("mode='a b|c'", ArgSpec(name="mode", value="a b|c")),
        ("flag=True", ArgSpec(name="flag", value=True)),
        ("mask=None", ArgSpec(name="mask", value=None)),
        ("size=(2, 3)", ArgSpec(name="size", value=(2, 3))),
        ("size=[2, 3]", ArgSpec(name="size", value=[2, 3])),
    ],
)  # fmt: skip
def test_every_kind_of_item(item: str, spec: ArgSpec) -> None:
    assert one(item).inputs == (spec,)


def test_modes_and_constructor_arguments_without_inputs() -> None:
    assert one("eval x=f32[1]").training is False
    assert one("x=f32[1] train").training is True
    assert one("x=f32[1]").training is None
    assert one("inference x=f32[1]").setting.gradients is False
    assert one("eval x=f32[1]").setting.gradients is None
    with pytest.raises(WorkloadError, match="contradict"):
        parse(" train inference x=f32[1]")
    only_init = one("| init 8 bias=False")
    assert only_init.inputs is None
    assert only_init.init == (ArgSpec(name=None, value=8), ArgSpec(name="bias", value=False))


def test_several_comments_are_several_workloads_in_order() -> None:
    text = f"# kernel-lsp: workload f32[1]\n# why\n#kernel-lsp:workload f32[2]\r\n{CLASS}"
    workloads, _ = read(text)
    assert [w.inputs[0].shape for w in workloads if w.inputs] == [(1,), (2,)]


def test_only_the_comment_block_right_above_counts() -> None:
    text = f"# kernel-lsp: workload f32[1]\nx = 1\n{CLASS}"
    assert read(text) == ((), ())


@pytest.mark.parametrize(
    ("pragma", "words"),
    [
        ("", "names no argument"),
        ("x=f99[1]", "no dtype"),
        ("x=f32[a,2]", "no integers"),
        ("x=f32[-1]", "no integers"),
        ("x=hello", "neither dtype"),
        ("x=f32[1]<5", "cannot hold"),
        ("x=i64[1]<no", "positive integer"),
        ("grad x=f32[1]", "must follow a tensor"),
        ("x=i64[1] grad", "only floating-point"),
        ("x=f32[1] x=f32[2]", "given twice"),
        ("x=f32[1] f32[2]", "unnamed arguments first"),
        ("x=f32[1] | hidden=3", "expected `init`"),
        ("x=f32[1", "neither dtype"),
    ],
)
def test_a_malformed_comment_names_line_and_remedy(pragma: str, words: str) -> None:
    workloads, problems = read(f"import torch\n# kernel-lsp: workload {pragma}\n{CLASS}")
    assert workloads == ()
    (problem,) = problems
    assert str(problem).startswith("line 2: workload comment: ") and words in str(problem)
    assert problem.remedy  # type: ignore[attr-defined]


def test_a_malformed_comment_does_not_hide_its_neighbors() -> None:
    workloads, problems = read(
        f"# kernel-lsp: workload x=?\n# kernel-lsp: workload f32[2]\n{CLASS}"
    )
    assert len(workloads) == len(problems) == 1


@given(st.text(max_size=60).filter(lambda t: not set(t) & set("\r\n")))
def test_no_comment_makes_it_raise(pragma: str) -> None:
    workloads, problems = read(f"# kernel-lsp: workload {pragma}\n{CLASS}")
    assert len(workloads) + len(problems) == 1


# --- get_inputs --------------------------------------------------------------------------

INPUTS = "def get_inputs():\n    return [1]\n"


def origins(text: str, name: str = "M") -> list[WorkloadOrigin]:
    return [w.origin for w in read(text, name)[0]]


def test_get_inputs_comes_after_comments_and_leaves_arguments_to_the_program() -> None:
    text = f"# kernel-lsp: workload f32[1]\n{CLASS}{INPUTS}"
    assert origins(text) == [WorkloadOrigin.PRAGMA, WorkloadOrigin.GET_INPUTS]
    assert read(CLASS + INPUTS)[0] == (
        Workload(name="get_inputs()", origin=WorkloadOrigin.GET_INPUTS),
    )


def test_get_inputs_means_the_outermost_module() -> None:
    part = "class Part(torch.nn.Module):\n    def forward(self, x): return x\n"
    init = "    def __init__(self): self.part = Part()\n"
    whole = CLASS.replace("    def forward", init + "    def forward")
    assert origins(part + whole + INPUTS, "M") == [WorkloadOrigin.GET_INPUTS]
    assert origins(part + whole + INPUTS, "Part") == []


def test_get_inputs_of_an_object_or_of_broken_text_is_none() -> None:
    assert origins(CLASS + "def f(): return self.get_inputs()\n") == []
    assert origins(CLASS + INPUTS + "(") == []
