"""Static guards: what they name, and the honest code that they must leave alone."""

from pathlib import Path

import pytest

from kernel_lsp.evaluator import guards

HONEST = Path(__file__).parent.parent / "adversarial" / "honest"


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
    ],
)
def test_a_suspicious_line_is_named(source: str, word: str) -> None:
    found = guards.scan(source)
    assert found and any(word in item.what for item in found)
    assert found[-1].line == source.count("\n") + 1


@pytest.mark.parametrize("path", sorted(HONEST.glob("*.py")), ids=lambda path: path.stem)
def test_honest_code_raises_no_suspicion(path: Path) -> None:
    assert guards.scan(path.read_text()) == []


def test_a_source_that_does_not_parse_is_left_to_the_loader() -> None:
    assert guards.scan("def f(:") == [] and guards.scan("\0") == []
