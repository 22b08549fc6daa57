"""What kind of program a reference is, found out by running it: once, when it is opened.

Random, stateful, insensitive to its inputs, which buffers it changes, which memory layouts and
batch sizes it accepts. Raises EvaluationError for what cannot be judged by. Nothing here depends
on a candidate."""

from __future__ import annotations

import itertools
from collections.abc import Collection
from typing import Any

import torch

from kernel_lsp.errors import EvaluationError, boundary
from kernel_lsp.evaluator import deviations
from kernel_lsp.evaluator.circumstances import (
    AUTOCAST,
    CIRCUMSTANCES,
    INFERENCE,
    OTHER_MODE,
    in_words,
    module_of,
)
from kernel_lsp.evaluator.judging import inputs, needs, numerics, variations
from kernel_lsp.evaluator.judging.oracle import Ran, Reference, TrialInputs
from kernel_lsp.evaluator.judging.variations import Group
from kernel_lsp.evaluator.processes import crashes
from kernel_lsp.evaluator.tensors import map_tensors, tensor_leaves, with_arithmetic

INDICES = (torch.int32, torch.int64)
MAX_OF_SPREAD = 0.05
"""Rounding in another order stays far below, other numbers of the same kind make 1.4 of it."""


def study(
    reference: Reference, trial: TrialInputs, other: TrialInputs, without: Collection[str] = ()
) -> None:
    """Fill in what the reference shows on its own inputs; ``other``: the same with other inputs.

    ``without``: inputs that are not tried, because they have ended such a process.
    """
    arguments = tensor_leaves(trial["arguments"])
    reference.elements = sum(t.numel() for t in arguments)
    reference.grad = reference.subject.records_gradients(trial["arguments"])
    reference.may_record_gradients = not reference.grad and reference.subject.may_record_gradients(
        trial["arguments"]
    )
    with boundary(EvaluationError, "could not judge: the reference fails on its own inputs"):
        first = reference.run(trial, noise_seed=1)
        again = reference.run(trial, noise_seed=1)
        noisy = reference.run(trial, noise_seed=2) if first.draws else first
    if not tensor_leaves(first.output):
        raise EvaluationError("could not judge: the reference returns no tensor")
    if not alike(first.output, again.output):
        raise EvaluationError(
            "could not judge: the reference gives another result when called again",
            "it keeps state outside its buffers, or draws randomness that no seed controls",
        )
    reference.deterministic = same(first.output, again.output)
    reference.random = not alike(first.output, noisy.output)
    reference.changed = _changed(first, trial)
    reference.aliases = any(name.startswith("input") for names in first.relations for name in names)
    reference.result_bytes = needs.bytes_of(first.output)
    reference.output_dtypes = [t.dtype for t in tensor_leaves(first.output)]
    reference.insensitive = _insensitive(reference, first, other)
    _vary(reference, trial, first, without)
    _circumstances(reference, trial)
    if not reference.range_bound:
        _edges(reference, trial, without)
        _resize(reference, trial, first, without)


def _circumstances(reference: Reference, trial: TrialInputs) -> None:
    """Which other circumstances it takes, and what it does in the other mode."""
    setting = reference.workload.setting
    asked = {
        OTHER_MODE: module_of(reference.target) is not None,
        AUTOCAST: setting.autocast is None,
        INFERENCE: not setting.inference,
    }
    for name in (name for name in CIRCUMSTANCES if asked[name]):
        label = in_words(name, reference.target)
        other = {**trial, "circumstance": name, "grad": reference.grad and name != INFERENCE}
        ran = _accept_arguments(reference, other, trial["arguments"], label)
        if ran is None:
            continue
        reference.circumstances.append(name)
        if name == OTHER_MODE:
            reference.changed_otherwise = _changed(ran, trial)
            reference.draws_otherwise = ran.draws


def _changed(ran: Ran, trial: TrialInputs) -> list[str]:
    """Names of buffers and parameters that a call changed."""
    return [k for k, v in ran.state.items() if not same(v.cpu(), trial["state"][k].cpu())]


def _edges(reference: Reference, trial: TrialInputs, without: Collection[str]) -> None:
    """Which values at the edges it takes, tried on few rows where there are many."""
    arguments, draw = trial["arguments"], reference.generator(2)
    if reference.elements > variations.BIG and reference.batch:
        arguments = variations.change_batch(
            arguments, reference.batch[0], reference.batch[1][0], draw
        )
    for family in inputs.EDGES:
        label = f"{family} values"
        if label in without:
            continue
        varied = inputs.vary(arguments, family, draw, reference.subject.fixed)
        if _accept_arguments(reference, trial, varied, label) is not None:
            reference.edges.append(family)


def _resize(reference: Reference, trial: TrialInputs, first: Ran, without: Collection[str]) -> None:
    """Which dimensions it takes in other sizes. A kernel in the reference may read on behind its
    inputs, so only its batch is asked for, which was tried with other values there (`_batch`)."""
    if "triton" in reference.program.source or reference.subject.fixed:
        return
    asked = variations.groups(trial["arguments"])
    if reference.batch:
        asked.insert(0, tuple((place, 0) for place in reference.batch[0]))
    taken: set[tuple[int, int]] = set()
    for group in asked:
        sizes = [
            n
            for n in variations.other_sizes(trial["arguments"], group)
            if _fits(reference, n) and not _is_indexed_beyond(reference, trial, group, n)
        ]
        label = f"another size of {len(group)} dimensions"
        if taken & set(group) or not sizes or label in without:
            continue
        draw = reference.generator(3)
        changed = variations.resize_inputs(trial["arguments"], group, max(sizes), draw)
        ran = _accept_arguments(reference, trial, changed, label)
        if ran is not None and _same_kind(ran.output, first.output):
            taken |= set(group)
            reference.sizes.append((group, sizes))


def _fits(reference: Reference, size: int) -> bool:
    """Nothing is left of an empty tensor that a GPU could be asked about."""
    return size > 0 or reference.device.name != "cuda"


def _is_indexed_beyond(reference: Reference, trial: TrialInputs, group: Group, size: int) -> bool:
    """Whether integers among inputs and buffers may index the dimensions of ``group``, and reach
    beyond them when they have this smaller size. A GPU answers such an index with an assertion,
    after which the judge cannot go on; whether one was drawn is chance, so twice the largest
    counts."""
    arguments = tensor_leaves(trial["arguments"])
    now = arguments[group[0][0]].shape[group[0][1]]
    if reference.device.name != "cuda" or size >= now:
        return False
    largest = [
        int(tensor.abs().max())
        for tensor in (*arguments, *trial["state"].values())
        if tensor.numel() and tensor.dtype in INDICES
    ]
    return any(size <= 2 * index and index < now for index in largest)


def _insensitive(reference: Reference, first: Ran, other: TrialInputs) -> list[int]:
    """Outputs that are bit for bit the same for other inputs, parameters and random numbers being
    equal."""
    fixed = reference.subject.fixed
    if fixed and len(fixed) == len(tensor_leaves(other["arguments"])):
        return []  # there are no other inputs: its result may still depend on them
    try:
        second = reference.run(other, noise_seed=1)
    except Exception:  # the program refuses such values: then nothing is known
        return []
    pairs = zip(tensor_leaves(first.output), tensor_leaves(second.output), strict=False)
    return [
        i
        for i, (a, b) in enumerate(pairs)
        if a.dtype.is_floating_point and a.numel() and same(a, b)
    ]


def _vary(reference: Reference, trial: TrialInputs, first: Ran, without: Collection[str]) -> None:
    """Which other layouts and batch sizes the reference accepts and answers in the same kind."""
    fewer = _find_batch(reference, trial, first, without)
    big = reference.elements > variations.BIG
    # Layouts are tried where they will be asked: of big workloads on few rows.
    arguments, plain = fewer if big and fewer else (trial["arguments"], first)
    for layout in variations.LAYOUTS[-1:] if big and not fewer else variations.LAYOUTS:
        inputs = f"{layout} inputs"
        if inputs in without:
            continue
        relaid = map_tensors(lambda t, how=layout: reference.relaid(t, how), arguments)
        other = _accept_arguments(reference, trial, relaid, inputs)
        if (
            other is not None
            and _same_kind(other.output, plain.output)
            and _same_rows(other, plain)
        ):
            reference.layouts.append(layout)


def _find_batch(
    reference: Reference, trial: TrialInputs, first: Ran, without: Collection[str]
) -> tuple[Any, Ran] | None:
    """Find what shares a batch dimension; returns the smallest batch to ask for and what came of
    it."""
    for which in variations.batches(trial["arguments"]):
        sizes = variations.sizes(trial["arguments"], which)
        asked = sorted({*sizes[:1], *sizes[-1:]})
        tried = (_batch(reference, trial, first, which, size, without) for size in asked)
        found = list(itertools.takewhile(bool, tried))  # none after a size that is not accepted
        if asked and len(found) == len(asked):
            reference.batch = which, sizes
            return found[0]
    return None


def _batch(
    reference: Reference,
    trial: TrialInputs,
    first: Ran,
    which: tuple[int, ...],
    size: int,
    without: Collection[str],
) -> tuple[Any, Ran] | None:
    """Another batch and what came of it; None: it is not accepted.

    A program of torch refuses tensors that do not fit each other. A kernel reads on behind one of
    them, so an answer counts only when it is the same whatever stands there."""
    inputs, draw = f"a batch of {size} in {len(which)} of them", reference.generator(1)
    if inputs in without:
        return None
    now = tensor_leaves(trial["arguments"])[which[0]].shape[0]
    rows = torch.randint(now, (size,), generator=draw, device=draw.device)
    (tried, own), (other, _) = (
        variations.overfull(trial["arguments"], which, rows, draw) for _ in range(2)
    )
    cut = {**trial, "rows": own}
    ran = _accept_arguments(reference, cut, tried, inputs)
    if ran is None or not _same_kind(ran.output, first.output):
        return None
    again = _accept_arguments(reference, cut, other, inputs)
    same = again is not None and _same_rows(again, ran)
    return (variations.first_rows(tried, own), ran) if same else None


def _accept_arguments(
    reference: Reference, trial: TrialInputs, arguments: Any, inputs: str
) -> Ran | None:
    label = inputs + crashes.ASKED
    try:
        ran = reference.run({**trial, "arguments": arguments, "label": label}, noise_seed=1)
        reference.device.synchronize()  # what a kernel did wrong is raised now
    except Exception as error:  # whatever it raises, it does not accept them
        if reference.device.is_lost():
            crashes.end(error, label)
        return None
    return ran


def _same_rows(one: Ran, other: Ran) -> bool:
    """Alike also beside how much the values of each output differ among themselves: sums over long
    rows are nearly equal, so a kernel that ignores strides, and reads other numbers, would seem to
    give the same."""
    if not alike(one.output, other.output):
        return False
    for x, y in zip(tensor_leaves(one.output), tensor_leaves(other.output), strict=True):
        left, right = numerics.real(x).double().nan_to_num(), numerics.real(y).double().nan_to_num()
        spread = deviations.rms(right - right.mean()) if right.numel() else 0.0
        rounding = 8 * torch.finfo(y.dtype).eps if y.dtype.is_floating_point else 0.0
        if (
            spread > rounding * deviations.rms(right)
            and deviations.rms(left - right) > MAX_OF_SPREAD * spread
        ):
            return False
    return True


def _same_kind(one: Any, other: Any) -> bool:
    kinds = [[(t.dtype, t.dim()) for t in tensor_leaves(value)] for value in (one, other)]
    return kinds[0] == kinds[1]


def alike(a: Any, b: Any) -> bool:
    """Whether both are equal up to the order of atomic additions."""
    for x, y in zip(tensor_leaves(a), tensor_leaves(b), strict=True):
        if x.shape != y.shape:
            return False
        left, right = numerics.real(x).double().nan_to_num(), numerics.real(y).double().nan_to_num()
        if deviations.relative_error(left, right) > 1e-3:
            return False
    return True


def same(a: Any, b: Any) -> bool:
    """Whether both are equal bit for bit in value; NaN equals NaN."""
    for x, y in zip(tensor_leaves(a), tensor_leaves(b), strict=True):
        one, other = with_arithmetic(x), with_arithmetic(y)
        if x.shape != y.shape or not torch.equal(one.nan_to_num(), other.nan_to_num()):
            return False
    return True
