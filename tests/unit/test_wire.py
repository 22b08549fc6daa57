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
    timings=(
        Timing(
            provider="eager", median_ms=1.5, p20_ms=1.0, p80_ms=2.0, num_reps=10, cold_cache=True
        ),
    ),
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
    with pytest.raises(ValueError):
        wire.from_json(Interval, {"low": 1, "mid": 2, "high": 10**400})
    with pytest.raises(TypeError):
        wire.from_json(Evaluation, {**wire.to_json(EVALUATION), "speedups": [1]})


KEY = bytes(range(wire.KEY_BYTES))
MESSAGES = st.dictionaries(st.text(), st.none() | st.integers() | st.text())


def pipe(content: bytes = b"", direction: bytes = wire.REPLIES) -> wire.Pipe:
    return wire.Pipe(io.BytesIO(content), wire.Seal(KEY, direction))


def frame(number: int, message: dict[str, object], *blobs: bytes) -> bytes:
    """The frame that comes as the ``number``-th (from 1) on the replies' side."""
    seal = wire.Seal(KEY, wire.REPLIES)
    for _ in range(number - 1):
        seal(b"")
    return b"".join(wire.encode_frame(seal, message, blobs))


@given(st.lists(st.tuples(MESSAGES, st.lists(st.binary(), max_size=4)), max_size=3))
def test_frames_come_back_in_order(sent: list[tuple[dict[str, object], list[bytes]]]) -> None:
    there = pipe()
    for message, blobs in sent:
        wire.write_frame(there, message, blobs)
    back = pipe(there.stream.getvalue())  # type: ignore[attr-defined]
    assert [wire.read_frame(back) for _ in sent] == sent
    assert wire.read_frame(back) is None


@pytest.mark.parametrize(
    "content",
    [
        frame(2, {"n": 1}),
        b"".join(wire.encode_frame(wire.Seal(bytes(wire.KEY_BYTES), wire.REPLIES), {"n": 1})),
        b"".join(wire.encode_frame(wire.Seal(KEY, wire.REQUESTS), {"n": 1})),
        frame(1, {"n": 1}).replace(b'"n":1', b'"n":2'),
        frame(1, {"n": 1}, b"abc")[:-19] + b"printed" + frame(1, {"n": 1}, b"abc")[-19:],
    ],
    ids=[
        "another number",
        "another key",
        "the other direction",
        "another header",
        "pushed in between",
    ],
)
def test_what_is_not_sealed_for_this_place_is_refused(content: bytes) -> None:
    with pytest.raises(wire.Forged):
        wire.read_frame(pipe(content))


def test_a_frame_cannot_be_played_again() -> None:
    back = pipe(frame(1, {"n": 1}) * 2)
    assert wire.read_frame(back) == ({"n": 1}, [])
    with pytest.raises(wire.Forged):
        wire.read_frame(back)


def test_claimed_pipes_leave_prints_to_the_log(tmp_path: Path) -> None:
    program = (
        "import os, sys\nfrom kernel_lsp import wire\n"
        "requests, replies = wire.claim_stdio()\n"
        "print('noise'); os.system('echo more'); sys.stdin.read()\n"
        "wire.write_frame(replies, wire.read_frame(requests)[0])\n"
    )
    root = str(Path(wire.__file__).parent.parent)
    sent = b"".join(
        bytes(chunk) for chunk in wire.encode_frame(wire.Seal(KEY, wire.REQUESTS), {"n": 1})
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        input=KEY + sent,
        capture_output=True,
        env={**os.environ, "PYTHONPATH": root},
        timeout=200,
    )
    assert wire.read_frame(pipe(done.stdout)) == ({"n": 1}, [])
    assert b"noise" in done.stderr and b"more" in done.stderr
