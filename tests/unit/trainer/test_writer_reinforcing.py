"""The writer is reinforced: what a verdict is worth, the whole loop, kills, and what never comes."""

import asyncio
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from writer_helpers import PLAN, RIGHT, WRONG, CountingJudge, VowelJudge, make_task, write_run

from trainer.algorithms import divergence
from trainer.writer import evaluating, judging, reinforcing, turns
from trainer.writer.judging import KnownVerdicts, WriterVerdict, WrittenCase
from trainer.writer.turns import WriterTurn

pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Two threads of torch on two busy cores are many times slower than one."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


UNREADABLE = WriterVerdict(status=judging.UNREADABLE, parsed=False)
UNCHANGED = WriterVerdict(status=judging.UNCHANGED, compiled=True)
NOT_JUDGED = WriterVerdict(status=judging.REFUSED)
CHILD = Path(__file__).parents[2] / "helpers" / "writer_child.py"


def turn(member: int, number: int, verdict: WriterVerdict | None, task: str = "t") -> WriterTurn:
    return WriterTurn(
        task=task, member=member, turn=number, prompt=(1,), reply=(2,), text="", verdict=verdict
    )


# --- formulas -------------------------------------------------------------------------------------


def test_the_divergence_is_zero_where_both_agree_and_never_negative() -> None:
    found = divergence.k3(torch.tensor([[-1.0, -1.0, -2.0]]), torch.tensor([[-1.0, -1.5, -1.0]]))
    # e^-0.5 - 1 + 0.5 and e^1 - 1 - 1
    assert found[0].tolist() == pytest.approx([0.0, 0.1065307, 0.7182818])


def test_its_mean_over_the_policys_own_tokens_is_the_divergence() -> None:
    policy, frozen = torch.tensor([0.75, 0.25]), torch.tensor([0.5, 0.5])
    mean = (policy * divergence.k3(policy.log(), frozen.log())).sum()
    assert float(mean) == pytest.approx(0.75 * math.log(1.5) + 0.25 * math.log(0.5))


def test_entropy_counts_sampled_tokens_alone() -> None:
    logprobs = torch.tensor([[-1.0, -3.0], [-2.0, 0.0]])
    mask = torch.tensor([[True, True], [True, False]])
    assert float(divergence.sampled_entropy(logprobs, mask)) == pytest.approx(2.0)
    assert float(divergence.sampled_entropy(logprobs, mask & False)) == 0.0


@pytest.mark.parametrize(
    ("verdict", "right", "graded"),
    [
        (RIGHT, 1.0, 1.0),
        (WRONG, 0.0, 0.3),
        (WriterVerdict(status="runtime_error"), 0.0, 0.1),
        (UNREADABLE, 0.0, 0.0),
        (UNCHANGED, 0.0, 0.0),
        (NOT_JUDGED, None, None),
        (WriterVerdict(status="not_run"), None, None),
        (None, None, None),
    ],
)
def test_rewards_of_values_alone(
    verdict: WriterVerdict | None, right: float | None, graded: float | None
) -> None:
    assert turns.reward_of(verdict, "right") == right
    assert turns.reward_of(verdict, "graded") == pytest.approx(graded)


def test_rewards_with_times_are_the_published_ones() -> None:
    timed = replace(RIGHT, speedups={"eager": 2.0, "compile": 1.5}, lower=1.4)
    assert turns.reward_of(timed, "kevin") == pytest.approx(0.3 + 2.0)
    assert turns.reward_of(timed, "bound") == pytest.approx(0.5 + math.log(1.4))
    assert turns.reward_of(RIGHT, "kevin") is None  # right, and nobody timed it
    assert turns.reward_of(WRONG, "kevin") == 0.0


def test_advantages_compare_a_group_and_leave_out_what_nobody_judged() -> None:
    group = [turn(0, 0, RIGHT), *(turn(member, 0, WRONG) for member in (1, 2, 3)), turn(4, 0, None)]
    found = turns.advantages_of(group, "right", "trloo")
    # N = 4, mean 1/4: 4/3 (1 - 1/4) and 4/3 (0 - 1/4)
    assert [value for _, value in found] == pytest.approx([1.0, -1 / 3, -1 / 3, -1 / 3])
    # The unbiased deviation of 1, 0, 0, 0 is 1/2.
    grpo = [value for _, value in turns.advantages_of(group, "right", "grpo")]
    assert grpo == pytest.approx([1.5, -0.5, -0.5, -0.5], abs=1e-5)


def test_a_first_turn_is_credited_for_the_second_as_kevin_says() -> None:
    rollouts = [turn(0, 0, WRONG), turn(0, 1, RIGHT), turn(1, 0, WRONG), turn(1, 1, WRONG)]
    values = [value for _, value in turns.advantages_of(rollouts, "right", "kevin")]
    # Returns 0.4, 1, 0, 0: mean 0.35, unbiased deviation sqrt(0.67 / 3)
    deviation = math.sqrt((0.05**2 + 0.65**2 + 2 * 0.35**2) / 3)
    assert values == pytest.approx([v / deviation for v in (0.05, 0.65, -0.35, -0.35)], abs=1e-5)


def test_shares_say_what_is_right_after_each_turn() -> None:
    written = [
        replace(turn(0, 0, RIGHT), text="@triton.jit"),
        turn(1, 0, WRONG),
        turn(1, 1, RIGHT),
        turn(2, 0, UNREADABLE),
        turn(2, 1, WRONG),
        turn(3, 0, UNCHANGED),
        turn(4, 0, None),
    ]
    found = turns.shares(written, "right")
    assert (found["replies"], found["unknown"]) == (7, 1)
    assert (found["parsed"], found["ran"]) == (0.75, 0.5)
    assert (found["right/turn_1"], found["right/turn_2"]) == (0.25, 0.5)
    assert found["own_kernel"] == 1.0 and found["reward"] == pytest.approx(2 / 6)


def test_two_arms_are_compared_task_by_task() -> None:
    rows = [make_task(2), make_task(3), make_task(4)]
    more = {"t2": ["a", "b"], "t3": ["a", "b"], "t4": []}
    less = {"t2": ["b", "c"], "t3": ["b", "c"], "t4": ["b", "c"]}
    known = {
        WrittenCase(row, text).key: RIGHT if text == "a" else WRONG
        for row in rows
        for text in "abc"
    }
    found = evaluating._difference(rows, more, less, known, 1)
    assert found == {"tasks": 2, "mean": 0.5, "low": 0.5, "high": 0.5}
    both = evaluating._difference(rows, more, less, known, 2)
    assert both is not None and both["mean"] == 1.0  # one of two is right: certain
    assert evaluating._difference(rows, more, less, known, 4) is None


def test_right_without_a_kernel_is_not_ones_own() -> None:
    rows = [make_task(2), make_task(3), make_task(4)]
    kernel, plain = "@triton.jit\ndef k1(): ...", "def forward(self): ..."
    arm = {"t2": [kernel, plain], "t3": [kernel, plain], "t4": [plain]}
    verdicts = {("t2", kernel): RIGHT, ("t2", plain): RIGHT, ("t3", kernel): WRONG}
    verdicts |= {("t3", plain): RIGHT, ("t4", plain): NOT_JUDGED}
    known = {
        WrittenCase(row, text).key: verdicts[row.name, text]
        for row in rows
        for text in arm[row.name]
    }
    found = evaluating._summary(rows, arm, known)
    assert (found["tasks"], found["replies"]) == (2, 4)
    assert found["right_of_1"]["mean"] == 0.75 and found["own_of_1"]["mean"] == 0.25


# --- verdicts on disk -----------------------------------------------------------------------------


def test_verdicts_outlive_the_process_but_for_a_line_that_was_cut(tmp_path: Path) -> None:
    file = tmp_path / "known.jsonl"
    known = KnownVerdicts(file)
    known.add("a", RIGHT)
    known.add("b", NOT_JUDGED)
    known.add("c", WRONG)
    file.write_text(file.read_text()[:-20])
    again = KnownVerdicts(file)
    assert again.get("a") == RIGHT and again.get("b") is None and again.get("c") is None
    again.add("c", WRONG)
    assert KnownVerdicts(file).get("c") == WRONG


def test_equal_programs_are_judged_once_whatever_asks(tmp_path: Path) -> None:
    case = WrittenCase(make_task(2), "what")
    for _ in range(2):
        judge = CountingJudge(tmp_path)
        asyncio.run(judge.judge([case, case], math.inf))
        assert judge.known[case.key] == WRONG or judge.known[case.key] == RIGHT
    assert len((tmp_path / "counts.jsonl").read_text().splitlines()) == 1


def test_what_nobody_can_read_is_known_no_sooner_than_what_the_gate_must_judge() -> None:
    class NeverInTime(judging.WriterJudge):
        def _settled(self, case: WrittenCase) -> WriterVerdict | str:
            return UNREADABLE if case.reply == "unreadable" else case.reply

        async def _verdict(self, case: WrittenCase, text: str, timed: bool) -> WriterVerdict:
            await asyncio.sleep(60)
            return RIGHT

    judge = NeverInTime("interpreter", 1, {})
    cases = [WrittenCase(make_task(2), reply) for reply in ("readable", "unreadable")]
    asyncio.run(judge.judge(cases, time.monotonic() + 0.1))
    assert judge.known == {}
    asyncio.run(judge.judge(cases[::-1], time.monotonic() + 0.1))
    assert judge.known == {cases[1].key: UNREADABLE}


# --- the loop -------------------------------------------------------------------------------------


@pytest.mark.parametrize("advantage", ["trloo", "grpo", "kevin"])
def test_what_is_rewarded_becomes_more_frequent(tmp_path: Path, advantage: str) -> None:
    write_run(tmp_path)
    plan = replace(PLAN, steps=12, tasks=3, group=8, advantage=advantage, turns=2, rate=2e-2)
    found = asyncio.run(reinforcing.run(tmp_path, plan, "cpu", VowelJudge()))
    first, last = found["first_steps"]["right/turn_1"], found["last_steps"]["right/turn_1"]
    assert last > first + 0.2
    assert found["curve"][0]["kl"] == pytest.approx(0.0, abs=1e-6) and found["curve"][-1]["kl"] > 0
    assert asyncio.run(reinforcing.run(tmp_path, plan, "cpu")) == found  # what is done stays done
    assert (tmp_path / "rl" / "model" / "config.json").is_file()


def weights_of(folder: Path) -> dict[str, torch.Tensor]:
    model, _ = reinforcing.load_model(folder, "cpu")
    return {name: tensor.to(torch.bfloat16) for name, tensor in model.state_dict().items()}


@pytest.mark.parametrize(
    ("right", "wrong", "rows"),
    [(WRONG, WRONG, 8), (NOT_JUDGED, NOT_JUDGED, 0), (RIGHT, None, None)],
)
def test_where_rewards_are_alike_or_unknown_no_weight_becomes_nan(
    tmp_path: Path, right: WriterVerdict, wrong: WriterVerdict | None, rows: int | None
) -> None:
    write_run(tmp_path)
    judge = VowelJudge(right, wrong)
    found = asyncio.run(reinforcing.run(tmp_path, replace(PLAN, advantage="grpo"), "cpu", judge))
    text = json.dumps(found["curve"])
    assert "NaN" not in text and "Infinity" not in text
    before, after = weights_of(tmp_path / "model"), weights_of(tmp_path / "rl" / "model")
    assert all(torch.equal(before[name], after[name]) for name in before)
    if rows is not None:
        assert {entry["rows"] for entry in found["curve"]} == {rows}
        assert {entry["updates"] for entry in found["curve"]} == {0}


def test_a_killed_run_goes_on_and_nothing_is_judged_twice(tmp_path: Path) -> None:
    whole, other = tmp_path / "whole", tmp_path / "killed"
    command = [sys.executable, str(CHILD), str(whole), str(other), "0", "0.15"]
    path = os.pathsep.join(sys.path)
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=240, env={**os.environ, "PYTHONPATH": path}
    )
    assert done.returncode == 0, done.stderr[-2000:]
    curves = [
        [
            {name: value for name, value in json.loads(line).items() if "seconds" not in name}
            for line in (folder / "rl.jsonl").read_text().splitlines()
        ]
        for folder in (whole, other)
    ]
    assert len(curves[0]) == 6 and curves[0] == curves[1]
    looked_at = (other / "counts.jsonl").read_text().splitlines()
    # A reply that was being judged at one of the two kills has no verdict yet.
    assert len(looked_at) - len(set(looked_at)) <= 2
    known = [json.loads(line)["key"] for line in (other / "known.jsonl").read_text().splitlines()]
    assert len(known) == len(set(known)) == len(set(looked_at))
