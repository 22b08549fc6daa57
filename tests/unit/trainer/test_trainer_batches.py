"""Rows become tensors: only chosen tokens count, and how a step is cut does not matter."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trainer.algorithms import batches
from trainer.algorithms.batches import Example
from trainer.records import Tally

pytestmark = pytest.mark.torch
FREE = Example(prompt=(1, 2, 3), reply=(4, 5), sampled=(-0.5, -0.25), advantage=2.0)
HELD = Example(
    prompt=(1,), reply=(6, 7, 8), allowed=((6,), (7, 9, 10), None), sampled=(0.0, -1.0, -2.0)
)


def test_only_tokens_of_replies_that_were_chosen_count() -> None:
    batch = batches.collate([FREE, HELD], pad=0)
    assert batch.input_ids.tolist() == [[1, 2, 3, 4, 5], [1, 6, 7, 8, 0]]
    assert batch.rows.tolist() == [0, 0, 1, 1]
    assert batch.places.tolist() == [2, 3, 1, 2]  # the state before a token predicts it
    assert batch.targets.tolist() == [4, 5, 7, 8]
    assert batch.allowed.tolist() == [[-1] * 3, [-1] * 3, [7, 9, 10], [-1] * 3]
    assert batch.mask.tolist() == [[True, True], [True, True]]
    assert batch.sampled.tolist() == [[-0.5, -0.25], [-1.0, -2.0]]
    assert batch.advantages.tolist() == [[2.0, 2.0], [0.0, 0.0]]
    assert batch.folded(torch.tensor([1.0, 2, 3, 4])).tolist() == [[1, 2], [3, 4]]


def test_a_row_of_several_turns_has_an_advantage_for_each_token() -> None:
    talk = Example(
        prompt=(1,), reply=(2, 3, 4), allowed=((2, 5), (3,), (4, 6)), advantages=(0.5, -1.0)
    )
    assert batches.collate([talk, FREE], pad=0).advantages.tolist() == [[0.5, -1.0], [2.0, 2.0]]


def test_a_rejected_row_stays_and_is_masked() -> None:
    batch = batches.collate([FREE, HELD], pad=0, kept=[False, True])
    assert batch.mask.tolist() == [[False, False], [True, True]]
    assert batch.rows.tolist() == [1, 1] and batch.input_ids.shape[0] == 2


def test_unknown_log_probabilities_are_not_zero() -> None:
    batch = batches.collate([Example(prompt=(1,), reply=(2,))], pad=0)
    assert batch.sampled.isnan().all()


def test_what_cannot_be_used_is_counted_with_its_reason() -> None:
    tally = Tally()
    forced = Example(prompt=(1,), reply=(2,), allowed=((2,),))
    assert batches.usable([FREE, HELD, forced], 4, tally) == [HELD]
    assert tally.read == 3 and tally.kept == 1
    assert {one.reason: one.count for one in tally.skipped} == {
        batches.TOO_LONG: 1,
        batches.EMPTY: 1,
    }


lengths = st.lists(st.integers(1, 50), min_size=1, max_size=40)


def of_lengths(counts: list[int]) -> list[Example]:
    return [Example(prompt=(1,), reply=(2,) * count) for count in counts]


@given(lengths, st.integers(1, 300))
def test_parts_hold_every_row_once_within_the_limit(counts: list[int], tokens: int) -> None:
    examples = of_lengths(counts)
    found = list(batches.parts(examples, tokens))
    assert sorted(place for part in found for place in part) == list(range(len(counts)))
    for part in found:
        padded = len(part) * max(len(examples[place]) for place in part)
        assert padded <= tokens or len(part) == 1


@given(lengths, st.integers(1, 8))
def test_shares_hold_every_row_once_and_none_is_empty(counts: list[int], processes: int) -> None:
    if len(counts) < processes:
        with pytest.raises(ValueError, match="processes"):
            batches.shares(of_lengths(counts), processes)
        return
    found = batches.shares(of_lengths(counts), processes)
    assert len(found) == processes and all(found)
    assert sorted(place for share in found for place in share) == list(range(len(counts)))
