"""Static guards: what they name, and the honest code that they must leave alone."""

from pathlib import Path

import pytest

from kernel_lsp.evaluator import guards

HONEST = Path(__file__).parents[2] / "adversarial" / "honest"


@pytest.mark.parametrize(
    "source, word",
    [
        ("import subprocess", "starts programs"),
        ("from concurrent.futures import ThreadPoolExecutor", "threads"),
        ("import torch\ntorch.allclose = lambda *a: True", "replaces torch.allclose"),
        ("torch.backends.cuda.matmul.allow_tf32 = True", "switches"),
        ("from os import _exit", "os._exit"),
        ("x = sys._getframe()", "sys._getframe"),
        ("setattr(time, 'perf_counter', None)", "replaces attributes of time"),
        ("getattr(torch, 'all' + 'close')", "assembled name"),
        ("error.__traceback__.tb_frame", "tb_frame"),
        ("exec('x = 1')", "runs code from data"),
        ("import kernel_lsp.evaluator", "judge"),
        ("open('/tmp/x')", "files"),
        ("import os as system\nsystem.fork()", "os.fork"),
        ("from torch import manual_seed as draw\ndraw(0)", "random stream"),
        ("import torch\nkind = torch.nn.Linear\nkind.forward = None", "replaces kind.forward"),
        ("import torch\ntorch.os.getcwd()", "through torch"),
        ("import torch\ntorch.library.Library('aten', 'IMPL')", "overrides operations"),
        ("run = exec", "names exec"),
        ("victim.__code__ = other.__code__", "__code__"),
    ],
)
def test_a_suspicious_line_is_named(source: str, word: str) -> None:
    found = guards.scan(source)
    assert found and any(word in item.what for item in found)
    assert found[-1].line == source.count("\n") + 1


@pytest.mark.parametrize("path", sorted(HONEST.rglob("*.py")), ids=lambda path: path.stem)
def test_honest_code_raises_no_suspicion(path: Path) -> None:
    assert guards.scan(path.read_text()) == []


def test_a_source_that_does_not_parse_is_left_to_the_loader() -> None:
    assert guards.scan("def f(:") == [] and guards.scan("\0") == []


@pytest.mark.parametrize(
    "before, after, word",
    [
        ("x, *, scale=1.0", "x", "does not take scale"),
        ("x, scale=1.0", "x, scale=2.0", "another default for scale: 2.0 instead of 1.0"),
        ("x, y", "x", "fewer arguments"),
    ],
)
def test_an_argument_that_is_gone_or_another_is_named(before: str, after: str, word: str) -> None:
    found = guards.compare_interfaces(f"def f({before}): pass", "f", f"def f({after}): pass", "f")
    assert len(found) == 1 and word in found[0].what


def test_an_optional_argument_that_is_never_read_is_named_only_where_the_original_reads_it() -> (
    None
):
    reading, ignoring = "def f(x, scale=1.0): return x * scale", "def f(x, scale=1.0): return x"
    assert guards.compare_interfaces(reading, "f", reading, "f") == []
    assert guards.compare_interfaces(ignoring, "f", ignoring, "f") == []
    (found,) = guards.compare_interfaces(reading, "f", ignoring, "f")
    assert found.what == "f() never reads scale, which the original does"


def test_required_arguments_may_be_renamed_and_methods_are_compared_in_classes() -> None:
    original = "class Model:\n    def forward(self, x, eps=1e-5):\n        return x + eps\n"
    renamed = original.replace("Model", "ModelNew").replace("x", "values")
    assert guards.compare_interfaces(original, "Model", renamed, "ModelNew") == []
    other = original.replace("1e-5", "1e-6")
    assert guards.compare_interfaces(original, "Model", other, "Model")[0].line == 2
