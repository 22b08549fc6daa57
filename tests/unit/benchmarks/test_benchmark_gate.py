"""What benchmarks/gate.py computes and sends: statistics by hand, texts that are what they say."""

import ast
import itertools
from math import comb

import pytest

from benchmarks.gating import faults, leftovers, mix, summary, tasks
from kernel_lsp import scratch
from kernel_lsp.evaluator import guards
from kernel_lsp.records import EvalStatus, Interval


def test_spread_is_the_farthest_repeat_from_the_median():
    assert summary.spread([1.00, 1.01, 0.97]) == pytest.approx(0.03)
    assert summary.spread([2.0]) == 0


def test_share_within_counts_workloads_and_knows_nothing_of_none():
    assert summary.share_within([0.005, 0.01, 0.02, 0.5], 0.01) == 0.5
    assert summary.share_within([], 0.01) is None


@pytest.mark.parametrize(
    "low, high, excluded",
    [
        (0.99, 1.01, False),
        (1.019, 1.3, False),
        (1.021, 1.3, True),
        (0.9, 0.98, True),
        (0.9, 0.985, False),
    ],
)
def test_an_interval_excludes_one_only_when_it_lies_beside_it(low, high, excluded):
    assert summary.excludes_one(Interval(low=low, mid=(low + high) / 2, high=high)) is excluded


def test_no_event_in_n_trials_bounds_the_rate_by_the_rule_of_three():
    assert summary.upper_bound(0, 500) == pytest.approx(1 - 0.05 ** (1 / 500))
    assert summary.upper_bound(0, 0) is None


def test_at_the_upper_bound_few_events_are_as_unlikely_as_promised():
    bound = summary.upper_bound(2, 40)
    seen = sum(comb(40, k) * bound**k * (1 - bound) ** (40 - k) for k in range(3))
    assert seen == pytest.approx(0.05, abs=1e-6)
    assert summary.upper_bound(5, 5) == 1.0


def test_five_numbers_of_a_hundred_and_one():
    assert summary.five_numbers([float(i) for i in range(101)]) == (0, 5, 50, 95, 100)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_there_are_twenty_tasks_and_forty_pairs_of_different_names(device):
    names = [task.name for task in tasks.tasks(device)]
    pairs = [task.name for task in tasks.pairs(device)]
    assert len(set(names)) == 20 and len(set(pairs)) == 40


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_no_task_trips_the_static_guards(device):
    for task in (*tasks.tasks(device), *tasks.pairs(device), *mix.SMALL, faults.TASK):
        for text in (task.reference, task.candidate, task.itself(1)):
            ast.parse(text)
            assert not guards.scan(text), task.name


@pytest.mark.parametrize("fault", faults.faults("cuda"), ids=lambda fault: fault.name)
def test_a_fault_is_not_refused_before_it_happens(fault):
    ast.parse(fault.text)
    assert not guards.scan(fault.text)


def test_candidates_are_all_different_and_half_of_them_kernels_on_a_gpu():
    sent = list(itertools.islice(mix.stream("cuda"), 80))
    assert len({one.text for one in sent}) == 80
    assert sum(one.triton for one in sent) == 40
    assert not any(one.triton for one in itertools.islice(mix.stream("cpu"), 20))


def test_seven_of_ten_candidates_are_right_and_every_failure_occurs_in_both_kinds():
    sent = list(itertools.islice(mix.stream("cuda"), 80))
    assert sum(one.outcome == "right" for one in sent) == 56
    for outcome in mix.EXPECTED:
        assert {one.triton for one in sent if one.outcome == outcome} == {True, False}


def test_a_verdict_is_true_only_when_it_is_the_one_expected():
    sent = next(one for one in mix.stream("cpu") if one.outcome == "wrong")
    assert sent.right(EvalStatus.WRONG_RESULT)
    assert not sent.right(EvalStatus.PASSED) and not sent.right(None)


def test_a_folder_is_left_behind_unless_it_is_this_processs_own():
    with leftovers.own_folder() as folder:
        before = leftovers.folders(folder)
        (folder / "kernel-lsp-of-another").mkdir()
        left = scratch.make("left")
        found = set(leftovers.folders(folder)) - set(before)
        left.rmdir()
    assert found == {"kernel-lsp-of-another", left.name}
