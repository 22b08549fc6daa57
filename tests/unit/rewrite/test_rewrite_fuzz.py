"""Random programs: every rewrite that is offered agrees with eager; see rewrite_fuzz.py for what
is drawn."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from example_helpers import examples
from rewrite_fuzz import failures

pytestmark = pytest.mark.torch
FUZZ = Path(__file__).parents[2] / "helpers" / "rewrite_fuzz.py"


@pytest.mark.parametrize("first", range(0, examples(20), 4))
def test_plain_rewrites_of_random_programs_agree_with_eager(first: int) -> None:
    wrong = [text for seed in range(first, first + 4) for text in failures(seed)[1]]
    assert not wrong, "\n".join(wrong)


def test_kernels_of_random_programs_agree_with_eager() -> None:
    pytest.importorskip("triton")
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    number = examples(15)
    limit = max(280, 20 * number)  # seconds, which only a hang takes
    command = [sys.executable, "-W", "ignore", str(FUZZ), "300", str(number), "triton"]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=limit, check=False
    )
    last = done.stdout.strip().split("\n")[-1]
    assert done.returncode == 0 and last.endswith(" 0 programs wrong"), (
        done.stdout[-4000:] + done.stderr[-2000:]
    )
