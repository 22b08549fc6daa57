"""What counts as a target, where its spans lie, and how off comments silence it."""

import textwrap

import pytest

from kernel_lsp.analysis import analyze, find_target, named_target
from kernel_lsp.records import Analysis, Snapshot, TargetKind

HEAD = "import torch\nfrom torch import nn\nimport triton\nimport triton.language as tl\n"


def targets(body: str, head: str = HEAD) -> dict[str, TargetKind]:
    return {t.qualname: t.kind for t in run(body, head).targets}


def run(body: str, head: str = HEAD) -> Analysis:
    return analyze(Snapshot(uri="file.py", text=head + textwrap.dedent(body)))


def test_modules_are_found_through_bases_of_the_same_file_and_any_import() -> None:
    found = targets(
        """
        import torch.nn as tnn
        from torch.nn import Module as M
        class A(nn.Module):
            def forward(self, x): return x
        class B(A):
            def forward(self, x): return x
        class C(tnn.Module):
            def forward(self, x): return x
        class D(M):
            class Inner(torch.nn.Linear):
                def forward(self, x): return x
        class NoForward(nn.Module):
            pass
        class Plain:
            def forward(self, x): return x
        """
    )
    assert found == dict.fromkeys(["A", "B", "C", "D.Inner"], TargetKind.MODULE)


def test_modules_whose_bases_come_from_other_files_are_found_by_their_forward() -> None:
    found = targets(
        """
        import abc
        from torch.autograd import Function
        from .layers import Checkpointed, Base as B
        import package
        class A(Checkpointed):
            def forward(self, x): return x
        class Between(B[int]):
            pass
        class C(Between):
            def forward(self, x): return x
        class D(package.models.Pretrained, package.Mixin):
            def forward(self, x): return x
        class Op(Function):
            @staticmethod
            def forward(ctx, x): return x
        class Interface(abc.ABC):
            def forward(self, x): return x
        class Parser(package.Command):
            def run(self, x): return x
        """
    )
    assert found == dict.fromkeys(["A", "C", "D"], TargetKind.MODULE)
    without_torch = (
        "import package\nclass A(package.Mail):\n    def forward(self, x): return 'torch'\n"
    )
    assert targets(without_torch, head="") == {}


def test_a_name_that_is_given_is_found_in_a_file_that_shows_no_torch() -> None:
    text = """
class Kernel(Base):
    def forward(self, x): return x
class Quiet(Base):  # kernel-lsp: off
    def forward(self, x): return x
class Mail:
    def send(self, x): return x
def apart(x, y): return x - y
def declared(x): ...
"""
    names = ("Kernel", "Quiet", "Mail", "apart", "declared", "gone")
    found = {name: named_target(Snapshot(uri="u", text=text), name) for name in names}
    kinds = {name: target.kind for name, target in found.items() if target is not None}
    assert kinds == {"Kernel": TargetKind.MODULE, "apart": TargetKind.FUNCTION}
    assert named_target(Snapshot(uri="u", text="class Kernel(:"), "Kernel") is None


def test_functions_are_found_by_annotation_and_by_torch_calls_on_parameters() -> None:
    found = targets(
        """
        import typing
        import torch.nn.functional as F
        def annotated(x: torch.Tensor): return x + 1
        def optional(x: "torch.Tensor | None", y: torch.Tensor | None): return y
        def called(x): return F.relu(x)
        def numbers(n): return torch.zeros(n)
        def nothing(n): return n + 1
        def get_inputs(): return [torch.rand(3)]
        def test_me(x: torch.Tensor): return x
        class K:
            def method(self, x: torch.Tensor): return x
        @typing.overload
        def stub(x: torch.Tensor): ...
        """
    )
    assert found == dict.fromkeys(["annotated", "optional", "called"], TargetKind.FUNCTION)


def test_kernels_know_their_launchers_and_helpers_belong_to_kernels() -> None:
    analysis = run(
        """
        @triton.jit
        def helper(x): return x + 1
        @triton.autotune(configs=[], key=[])
        @triton.heuristics({})
        @triton.jit
        def kernel(p): tl.store(p, helper(1))
        @triton.jit(debug=True)
        def alone(p): tl.store(p, 1)
        def launch(x: torch.Tensor): kernel[(1,)](x)
        class Op:
            def run(self, x): kernel[(1,)](x)
        """
    )
    assert {t.qualname: t.launchers for t in analysis.targets} == {
        "kernel": ("launch", "Op.run"),
        "alone": (),
    }


def test_what_a_kernel_hands_to_a_scan_belongs_to_it() -> None:
    analysis = run(
        """
        @triton.jit
        def combine(a, b): return a + b
        @triton.jit
        def kernel(p): tl.store(p, tl.associative_scan(tl.load(p), 0, combine))
        def launch(x): kernel[(1,)](x)
        """
    )
    assert [t.qualname for t in analysis.targets] == ["kernel"]


@pytest.mark.parametrize(
    "body",
    [
        "other = kernel; other[(1,)](x)",
        "start = kernel[(1,)]; start(x)",
        "named[(1,)](x)",
        "other = named; other[(1,)](x)",
        "partial(kernel[(1,)], x)()",
        "send(named[(1,)], x)",
    ],
)
def test_a_kernel_is_launched_under_any_name(body: str) -> None:
    analysis = run(
        f"""
        @triton.jit
        def kernel(p): tl.store(p, 1)
        named = kernel
        def launch(x): {body}
        def other(x): return x[0](kernel)
        """
    )
    assert [t.launchers for t in analysis.targets if t.qualname == "kernel"] == [("launch",)]


def test_definitions_under_if_and_try_are_found_and_the_last_of_a_name_counts() -> None:
    text = """
        if torch.cuda.is_available():
            class A(nn.Module):
                def forward(self, x): return x
        try:
            def f(x: torch.Tensor): return x
        except ImportError:
            pass
        class A(nn.Module):
            def forward(self, x): return x + 1
        """
    analysis = run(text)
    assert [t.qualname for t in analysis.targets] == ["f", "A"]


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("prefix", ["", "\ufeff"])
def test_spans_are_string_offsets_under_any_line_ending_and_character(
    newline: str, prefix: str
) -> None:
    lines = [
        "import torch # 🚀 µ",
        "s = '🚀\u2028🚀'; t = 'é'",
        "@torch.no_grad()",
        "def größe(x: torch.Tensor):",
        "\tz = 'é🚀'; y = torch.diag(x) @ x",
        "\x0c",
        "\treturn y",
        "u = 1",
    ]
    text = prefix + newline.join(lines)
    analysis = analyze(Snapshot(uri="u", text=text))
    (target,) = analysis.targets
    (finding,) = analysis.findings
    assert text[target.name_span.start : target.name_span.end] == "größe"
    covered = text[target.span.start : target.span.end]
    assert covered.startswith("@torch.no_grad()") and covered.endswith("return y")
    assert text[finding.span.start : finding.span.end] == "torch.diag(x) @ x"
    assert (finding.data["line"], finding.data["column"]) == (5, lines[4].index("torch.diag") + 1)


DIAG = """
class A(nn.Module):
    def forward(self, a, b):
        return torch.diag(a) @ b
"""


def test_off_above_a_target_removes_it_and_only_it() -> None:
    other = DIAG.replace("class A", "class B")
    analysis = run(f"x = 1\n# kernel-lsp: off\n# a reason{DIAG}{other}")
    assert [t.qualname for t in analysis.targets] == ["B"]
    assert [f.target for f in analysis.findings] == ["B"]


def test_off_with_a_rule_keeps_the_target_and_other_rules() -> None:
    analysis = run(f"x = 1\n# kernel-lsp: off KL101, KL105{DIAG}")
    assert find_target(analysis, "A") is not None and analysis.findings == ()
    assert len(run(f"x = 1\n# kernel-lsp: off KL101{DIAG}").findings) == 1


def test_off_on_the_class_line_or_on_the_line_of_the_finding() -> None:
    assert run(DIAG.replace("Module):", "Module):  # kernel-lsp: off")).targets == ()
    on_line = run(DIAG.replace("@ b", "@ b  # kernel-lsp: off KL105"))
    assert len(on_line.targets) == 1 and on_line.findings == ()


def test_off_at_the_top_silences_the_file_and_a_rule_there_only_the_rule() -> None:
    assert run(DIAG, head='"""Doc."""\n# kernel-lsp: off\n' + HEAD) == Analysis()
    only_rule = run(DIAG, head="# kernel-lsp: off KL105\n" + HEAD)
    assert len(only_rule.targets) == 1 and only_rule.findings == ()


def test_off_inside_a_string_is_no_comment() -> None:
    text = f'x = """\n# kernel-lsp: off\n"""{DIAG}'
    assert len(run(text).findings) == 1


def test_files_without_torch_are_not_even_parsed() -> None:
    assert analyze(Snapshot(uri="u", text="def broken(:")) == Analysis()
