"""Every attack here must be rejected and every honest candidate must pass, through the public
gate.

One file is one candidate; its docstring says what it does. Files in a folder are about the
reference of that name in references/, the others about reference.py. The attacks are our own. One
gate serves all of them, so that an attack which harms what comes after it fails an honest one."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from verdict_helpers import has_crashed, judge, seed_of

from kernel_lsp.evaluator import EvaluationBudget, EvaluationRequest, Gate
from kernel_lsp.evaluator.verify import request_from_files
from kernel_lsp.records import ArgSpec, EvalStatus, Workload, WorkloadOrigin

pytestmark = [pytest.mark.torch, pytest.mark.asyncio(loop_scope="module")]
HERE = Path(__file__).parent
ATTACKS = sorted((HERE / "attacks").rglob("*.py"))
HONEST = sorted((HERE / "honest").rglob("*.py"))
GRADIENTS = Workload(
    name="training",
    origin=WorkloadOrigin.RECORDED,
    inputs=(ArgSpec(name=None, dtype="float32", shape=(16, 64), requires_grad=True),),
)
INFERENCE = {
    "fold_keyed_on_version",
    "folded_buffer_refreshed",
    "inputs_made_contiguous",
    "kernel_by_halves",
    "kernel_with_a_fallback",
    "memory_fully_written",
    "own_context_manager",
    "own_temporaries_in_place",
    "scoped_no_grad",
    "scratch_buffer",
    "writes_into_own_memory",
}
"""Honest candidates without gradients: their workload says that nobody asks for any."""
TRAINED = {"trained", "plain"}
"""Folders of attacks on gradients; the others are judged as inference, so that they fail by what
they do."""
TIMED_ONLY = {
    "every_tenth_call_empty",
    "half_of_the_calls_empty",
    "memo_by_versions",
    "only_after_warm_up",
    "phase_by_address",
    "phase_by_parameters",
    "threads_changed_in_its_calls",
}
"""Attacks that behave while values are checked and show only in timed rounds, which nothing may
disturb."""
ENDED = {
    "descriptors_closed",
    "disk_filled",
    "endless_import",
    "every_process_killed",
    "exception_with_behavior",
    "exit_by_exception",
    "kernel_on_one_element",
    "own_memory_written",
    "fork_without_end",
    "huge_exception",
    "leaves_quietly",
    "library_of_its_own_loaded",
    "memory_without_end",
    "output_without_end",
    "parent_killed",
    "recursion_without_end",
    "replies_forged",
    "segmentation_fault",
    "shape_written_down",
    "sparse_output",
    "stdout_redirected",
}
"""Attacks that end themselves or are ended; the others run to a verdict: none is rejected by
accident."""
ENDLESS = {
    "disk_filled",
    "endless_import",
    "fork_without_end",
    "memory_without_end",
    "output_without_end",
}
SHORT_S, LONG_S = 5.0, 60.0
"""Limits of a call for these, and for all others, which need a moment where nothing else runs."""


def name(candidate: Path) -> str:
    return candidate.relative_to(HERE).with_suffix("").as_posix().split("/", 1)[1]


def request(candidate: Path, limit_s: float) -> EvaluationRequest:
    folder = candidate.parent.name
    about = HERE / "references" / f"{folder}.py"
    reference = about if about.exists() else HERE / "reference.py"
    entry = "blend" if folder == "options" else None
    by_default = candidate.is_relative_to(HERE / "honest") and candidate.stem not in INFERENCE
    inference = not by_default and folder not in TRAINED
    made = request_from_files(
        reference.read_text(), candidate.read_text(), entry=entry, inference=inference
    )
    if folder == "trained":
        made = replace(made, workload=GRADIENTS)
    timed = candidate.stem in TIMED_ONLY
    # Some behave for their first twenty calls: on a slow machine half a second has fewer.
    timing_s = 3.0 if timed else 0.5
    budget = EvaluationBudget(
        call_s=limit_s, load_s=limit_s, compile_s=0, timing_s=timing_s, memory_bytes=6 * 1024**3
    )
    return replace(made, require_speed=timed, budget=budget, seed=seed_of(name(candidate)))


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def gate() -> AsyncIterator[Gate]:
    async with Gate() as made:
        yield made


def parameter(attack: Path) -> Any:
    return pytest.param(
        attack, marks=[pytest.mark.alone] if attack.stem in TIMED_ONLY else [], id=name(attack)
    )


@pytest.mark.parametrize("attack", [parameter(attack) for attack in ATTACKS])
async def test_an_attack_is_rejected(gate: Gate, attack: Path) -> None:
    # A short limit is the judge's, too, and a busy machine may keep that waiting.
    limit_s = SHORT_S if attack.stem in ENDLESS else LONG_S
    asked, again = request(attack, limit_s), request(attack, LONG_S)
    evaluation = await judge(gate, asked, again, ends_itself=attack.stem in ENDED)
    assert evaluation.status is not EvalStatus.PASSED
    assert evaluation.detail
    assert not evaluation.speedups and evaluation.speedup is None
    assert attack.stem in ENDED or not has_crashed(evaluation), evaluation.detail


@pytest.mark.parametrize("candidate", HONEST, ids=name)
async def test_an_honest_candidate_passes(gate: Gate, candidate: Path) -> None:
    evaluation = await gate.evaluate(request(candidate, LONG_S))
    assert evaluation.status is EvalStatus.PASSED, evaluation.detail
