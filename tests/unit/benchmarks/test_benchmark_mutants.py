"""The generated candidates of benchmarks/gate.py: enough of them, and what they are called."""

import itertools
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.gating import big, mutants, mutation
from benchmarks.gating.kernel_mutants import KERNELS
from benchmarks.gating.mutation import Shard
from benchmarks.gating.tasks import GateTask

ROOT = Path(__file__).resolve().parents[3]


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
    # A few mutations change nothing on these inputs; the benchmark leaves them out.
    assert differing >= 50


def test_kernels_are_mutated_too() -> None:
    wrong, honest = list(mutants.wrong(0, KERNELS)), list(mutants.honest(0, KERNELS))
    assert len(wrong) >= 3000 and len(honest) >= 600
    assert len({one.key for one in [*wrong, *honest]}) == len(wrong) + len(honest)
    right = {one.reference: one.candidate for one in honest}
    assert not [one.key for one in wrong if one.candidate == right[one.reference]]
    for one in {one.candidate: one for one in [*wrong[:400], *honest[:50]]}.values():
        compile(one.candidate, one.key, "exec")


def test_shards_share_all_references_and_honest_ones_are_among_them() -> None:
    whole = [one.key for group in mutation._groups("cpu", 0, Shard()) for one in group]
    parts = [
        one.key
        for number in range(3)
        for group in mutation._groups("cpu", 0, Shard.parse(f"{number}/3"))
        for one in group
    ]
    assert sorted(parts) == sorted(whole) and len(set(whole)) == len(whole)
    honest = sum("/honest/" in key for key in whole)
    assert honest >= mutation.HONEST and len(whole) - honest >= mutation.WRONG


@pytest.mark.torch
async def test_what_ends_the_process_that_tries_it_differs_and_the_next_is_tried() -> None:
    one = next(mutants.wrong(3))
    fatal = replace(one, candidate="import os\nos._exit(3)\n")
    async with mutation._differing("cpu") as tried:
        assert (await tried(fatal))["where"] == "it ends the process"
        assert "error" not in await tried(one)


@pytest.mark.torch
@pytest.mark.parametrize("task", big.programs(2**14), ids=lambda task: task.name)
def test_a_big_program_and_its_candidate_agree(task: GateTask) -> None:
    import torch

    from kernel_lsp.evaluator import programs

    reference, candidate = programs.load(task.reference), programs.load(task.candidate)
    torch.manual_seed(0)
    given, one = reference.get_inputs(), reference.Model()
    other = candidate.ModelNew()
    other.load_state_dict(one.state_dict())
    torch.testing.assert_close(other(*given), one(*given))
