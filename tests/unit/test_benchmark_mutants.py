"""The generated candidates of benchmarks/gate.py: enough of them, and what they are called."""

import itertools
import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.gating import mutants

ROOT = Path(__file__).resolve().parents[2]


def test_there_are_enough_and_most_have_16_bits() -> None:
    wrong, honest = list(mutants.wrong(0)), list(mutants.honest(0))
    assert len(wrong) >= 6000 and len(honest) >= 600
    assert 2 * sum(one.dtype != "float32" for one in wrong) >= len(wrong)
    assert len({one.key for one in [*wrong, *honest]}) == len(wrong) + len(honest)
    for one in {one.candidate: one for one in itertools.chain(wrong[:400], honest[:100])}.values():
        compile(one.candidate, one.key, "exec")


def test_a_seed_gives_the_same_candidates() -> None:
    first, again, other = (list(itertools.islice(mutants.wrong(seed), 20)) for seed in (1, 1, 2))
    assert first == again != other


@pytest.mark.torch
def test_a_sample_differs_where_it_should() -> None:
    asked = [*itertools.islice(mutants.wrong(3), 60), *itertools.islice(mutants.honest(3), 20)]
    lines = [{"key": o.key, "reference": o.reference, "candidate": o.candidate} for o in asked]
    child = subprocess.run(
        [sys.executable, "-m", "benchmarks.gating.differing"],
        input="\n".join(map(json.dumps, lines)), capture_output=True, text=True, check=True,
        cwd=ROOT,
    )  # fmt: skip
    found = {row["key"]: row for row in map(json.loads, child.stdout.splitlines())}
    assert not [key for key, row in found.items() if row.get("error")]
    assert not [one.key for one in asked if not one.mutation and found[one.key]["where"]]
    differing = sum(bool(found[one.key]["where"]) for one in asked if one.mutation)
    assert (
        differing >= 50
    )  # a few mutations change nothing on these inputs; the benchmark leaves them out
