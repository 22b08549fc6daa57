"""Records survive JSON, frames survive pipes, and foreign data is refused."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernel_lsp import wire
from kernel_lsp.records import (
    ArgSpec,
    Check,
    EvalStatus,
    Evaluation,
    Interval,
    Timing,
    Workload,
    WorkloadOrigin,
)

WORKLOAD = Workload(
    name="w",
    origin=WorkloadOrigin.PRAGMA,
    inputs=(ArgSpec(name="x", dtype="float32", shape=(2, 3)), ArgSpec(name=None, value=[1, None])),
)
EVALUATION = Evaluation(
    status=EvalStatus.PASSED,
    device="cpu",
    checks=(Check(name="values", passed=None),),
    timings=(Timing(provider="eager", median_ms=1.5, p20_ms=1.0, p80_ms=2.0, num_reps=10, cold_cache=True),),
    speedups={"eager": Interval(low=1.0, mid=2.0, high=3.0)},
)


@pytest.mark.parametrize("record", [WORKLOAD, EVALUATION], ids=["workload", "evaluation"])
def test_a_record_comes_back_equal_through_text(record: Workload | Evaluation) -> None:
    assert wire.from_json(type(record), json.loads(wire.dumps(record))) == record


def test_unknown_keys_are_ignored_and_unknown_values_refused() -> None:
    data = {**wire.to_json(WORKLOAD), "added_later": 1}
    assert wire.from_json(Workload, data) == WORKLOAD
    with pytest.raises(ValueError):
        wire.from_json(Workload, {**data, "origin": "guessed"})
    with pytest.raises(TypeError):
        wire.from_json(Workload, {**data, "name": 3})
    with pytest.raises(TypeError):
        wire.from_json(Workload, ["not", "an", "object"])


@given(st.dictionaries(st.text(), st.none() | st.integers() | st.text()), st.lists(st.binary(), max_size=4))
def test_a_frame_comes_back(message: dict[str, object], blobs: list[bytes]) -> None:
    stream = io.BytesIO()
    wire.write_frame(stream, message, blobs)
    stream.seek(0)
    assert wire.read_frame(stream) == (message, blobs)
    assert wire.read_frame(stream) is None


def test_claimed_pipes_leave_prints_to_the_log(tmp_path: Path) -> None:
    program = (
        "import os, sys\nfrom kernel_lsp import wire\n"
        "requests, replies = wire.claim_stdio()\n"
        "print('noise'); os.system('echo more'); sys.stdin.read()\n"
        "wire.write_frame(replies, wire.read_frame(requests)[0])\n"
    )
    root = str(Path(wire.__file__).parent.parent)
    sent = b"".join(bytes(chunk) for chunk in wire.encode_frame({"n": 1}))
    done = subprocess.run(
        [sys.executable, "-c", program],
        input=sent,
        capture_output=True,
        env={**os.environ, "PYTHONPATH": root},
        timeout=30,
    )
    assert wire.read_frame(io.BytesIO(done.stdout)) == ({"n": 1}, [])
    assert b"noise" in done.stderr and b"more" in done.stderr
