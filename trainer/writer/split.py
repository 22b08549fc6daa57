"""Which tasks a writer learns from and which it never sees, fixed before any data exists.

Two parts are held out. *operators*: every task with one of `HELD_OUT_OPERATORS`, in its source or
in its captured graph. *compositions*: tasks whose operators are all known, in an order of kinds
(families.py) that no task of the training part has; a hash of the family decides. Families of a
single kind stay in training, else whole kinds would be unseen. Of what is left one task in eight, by a
hash of its tree, is *reinforced*: it is kept for the gate's verdicts (reinforcing.py), since a
writer knows the rewrites of its lessons by heart, and reinforcing these teaches nothing. Not
covered: the same mathematics spelled by other operators, which `near_duplicates` does not find
either."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from enum import StrEnum

from kernel_lsp.records import Json
from trainer.tasks.families import TaskStructure
from trainer.tasks.likeness import Mark

HELD_OUT_OPERATORS = frozenset(
    {"mish", "leaky_relu", "logsumexp", "instance_norm", "smooth_l1_loss", "avgpool2d"}
    | {"avg_pool2d", "log_softmax"}
)
"""Of five kinds: two pointwise, one each of reduce, norm, loss and softmax, and a pool."""
HELD_OUT_SHARE = 8
"""One of so many families is held out."""
REINFORCED_SHARE = 8
"""One of so many other tasks is kept for reinforcement."""
OVERLAP = 0.9
"""Share of a task's runs of tokens in one training task from which it counts as a duplicate."""


class WriterPart(StrEnum):
    TRAIN = "train"
    REINFORCED = "reinforced"
    COMPOSITIONS = "compositions"
    OPERATORS = "operators"


def part_of(found: TaskStructure, digest: str, graph_operators: Iterable[str] = ()) -> WriterPart:
    """The part of a task. ``digest``: of its tree (likeness.py); ``graph_operators``: of the
    captured graph, where it is known."""
    if HELD_OUT_OPERATORS & {*found.ops, *(one.rstrip("_") for one in graph_operators)}:
        return WriterPart.OPERATORS
    if len(found.kinds) > 1 and _hash(found.family) % HELD_OUT_SHARE == 0:
        return WriterPart.COMPOSITIONS
    if _hash(digest) % REINFORCED_SHARE == 0:
        return WriterPart.REINFORCED
    return WriterPart.TRAIN


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4])


def near_duplicates(held_out: Sequence[Mark], training: Sequence[Mark]) -> Json:
    """How many held-out tasks are in the training part in other words: the same tree, the same
    operators in the same order, most of the text."""
    digests = {one.digest for one in training}
    orders = {one.ops for one in training}
    places: dict[int, list[int]] = defaultdict(list)
    for number, one in enumerate(training):
        for gram in one.grams:
            places[gram].append(number)
    overlaps = []
    for one in held_out:
        shared = Counter(number for gram in one.grams for number in places.get(gram, ()))
        most = max(shared.values(), default=0)
        overlaps.append(most / len(one.grams) if one.grams else 0.0)
    return {
        "tasks": len(held_out),
        "same_tree": sum(one.digest in digests for one in held_out),
        "same_operators": sum(one.ops in orders for one in held_out),
        "same_text": sum(share >= OVERLAP for share in overlaps),
        "mean_overlap": sum(overlaps) / len(overlaps) if overlaps else None,
    }
