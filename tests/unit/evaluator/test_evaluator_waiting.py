"""OpenMP's idle threads sleep at once where nobody is timed, and nothing else changes."""

import json
import os
import subprocess
import sys

import pytest

from kernel_lsp.evaluator.processes import waiting

PROGRAM = """
import json, os, sys, time
import torch
from kernel_lsp.evaluator.processes import waiting

def threads():
    return len(os.listdir("/proc/self/task"))

def burned():
    x, start = torch.ones(1 << 20), time.process_time()
    for _ in range(40):
        x.add_(1.0)
        time.sleep(0.01)  # nothing to do: what is counted here is the looking for work
    return time.process_time() - start

torch.manual_seed(0)
values = torch.randn(1 << 20) * 1e4
def results():
    square = values.view(1024, 1024)
    return [values.sum().item(), values.std().item(), (square @ square).sum().item()]

usual, before, count = burned(), results(), threads()
done = waiting.sleep_soon(int(sys.argv[1]) or torch.get_num_threads())
print(json.dumps({
    "done": done, "usual": usual, "after": burned(), "same": results() == before,
    "more": threads() - count, "computing": torch.get_num_threads(), "gnu": waiting._library() is not None,
}))
"""


def told(threads: int, **environment: str) -> dict[str, object]:
    """What a fresh process says of itself; ``threads`` 0: as many as torch uses."""
    kept = {
        key: value for key, value in os.environ.items() if not key.startswith(("OMP_", "GOMP_"))
    }
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(threads)],
        env={**kept, **environment},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, object] = json.loads(done.stdout.strip().splitlines()[-1])
    if not found["gnu"]:
        pytest.skip("this torch has another OpenMP")
    return found


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one processor: nobody looks for work")
def test_idle_threads_sleep_at_once_and_results_stay_bit_by_bit() -> None:
    found = told(0)
    assert found["done"] and found["same"] and found["more"] == waiting.TEAM
    assert found["computing"] == len(os.sched_getaffinity(0))
    assert float(str(found["after"])) < 0.5 * float(str(found["usual"])), found


@pytest.mark.parametrize("threads", [1, -1])
def test_a_process_with_fewer_threads_than_processors_is_left_as_it_is(threads: int) -> None:
    found = told(threads)
    assert not found["done"] and found["more"] == 0


def test_without_gnu_openmp_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "LIBRARY", "libno-such-openmp")
    assert not waiting.sleep_soon(64)


def test_where_there_is_no_proc_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> str:
        raise FileNotFoundError

    monkeypatch.setattr("pathlib.Path.read_text", fails)
    assert not waiting.sleep_soon(64)
