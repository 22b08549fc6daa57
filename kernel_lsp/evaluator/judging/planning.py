"""The trials of one session: which values, layout, batch size and way of updating parameters, in
secret.

Everything is drawn from the session's seed. What a trial varies is a small JSON object (a
*descriptor*) that goes into the evidence as it is. Does not draw any tensor: see `drawing.draw`.
"""

from __future__ import annotations

import itertools
import random
from typing import Any

from kernel_lsp.evaluator.circumstances import AUTOCAST, OTHER_MODE
from kernel_lsp.evaluator.judging import inputs, numerics, variations
from kernel_lsp.evaluator.judging.oracle import Reference

Descriptor = dict[str, Any]
SMOOTH = ("as_given", "shifted", "negated", "heavy_tailed", "as_given_again", *inputs.IN_RANGE)
"""Families for gradients of every workload; scaled values saturate."""
COMPARED = (*SMOOTH, inputs.TIED)
FAR = ("shifted", "heavy_tailed")
"""Families whose values lie where those of the workload seldom do."""
MAX_SIZES = 2
"""Of one group of dimensions, in one session, where a call is not small."""
SMALL = 2**17
"""Elements of arguments and parameters together up to which every size is tried: a trial then
takes 10 to 20 ms of a core, and a tail that is wrong at one size alone was missed by two of
five."""
COTANGENTS = ("as_given", "transposed", "expanded")
"""How the weights of gradients lie: a sum that follows passes on a tensor with strides of 0, a
transposition one that is not contiguous, and a kernel that takes either for rows is wrong."""
FURTHER = 4
"""Trials with gradients of small calls in 16 bits, beside the others: a factor of 1.02 in a gradient
of eight elements is seen in eight trials, in four it may be rounding (drift.py)."""
HUGE = 2**26
"""Elements of all arguments together above which all families but the first and the last have few
rows, where the reference takes them: a trial at full size takes seconds, and what is wrong for
some values only is so in a million of them too."""
FEW = ("as_given", "as_given_again")
"""Families for gradients of big workloads: forward and backward twice, once of it in float64."""


def plan(reference: Reference, seed: int) -> list[Descriptor]:
    """The descriptors of all trials: at least eight value distributions, then another layout and
    another batch size where accepted.

    number: from 1. family: of the values. layout: see variations.py. batch: rows, None as given.
    edit: the first trial again with one row of all parameters, then of all inputs, changed, which a
    memo or a fold that is keyed on a sample overlooks. update, switch: how the parameters change
    and whether train() and eval() are called before. repeat: the call is made twice. grad:
    gradients are recorded. group, size: dimensions of another size. single: in float32 instead of
    16 bits. lenient: the candidate may raise. gradients: compared too. cotangents: how their
    weights lie in memory. twice: the graph of that call is used a second time. second: gradients of
    gradients too. circumstance: see circumstances.py. held: parameters have gradients before the
    call (relations.py)."""
    pick = random.Random(seed ^ 0x91A7)
    bound, big = reference.range_bound, reference.elements > variations.BIG
    families = list(inputs.IN_RANGE if bound else inputs.FAMILIES)
    made = [plain(family) for family in families]
    if reference.elements > HUGE and reference.batch:
        for trial in made[1:-1]:
            trial["batch"] = reference.batch[1][0]
    extra = _plan_variations(reference, pick, bound, big) + _plan_gradients(
        reference, pick, made, big
    )
    extra += _edges(reference, big) + _sizes(reference, pick) + _single(reference, pick, big)
    extra += _circumstances(reference, big)
    made[-1:-1] = extra  # the last has the parameters as constructed
    made[1:1] = [{**plain(families[0]), "edit": edit} for edit in ("parameters", "inputs")]
    ways = variations.updates(reference.own_state, len(made), pick)
    again = pick.choice(_repeatable(made))
    for number, (trial, way) in enumerate(zip(made, ways, strict=True)):
        trial.update(number=number + 1, update=way, repeat=number == again)
        if trial["edit"] in ("inputs", "batch") and not reference.changed:
            trial["update"] = "none"
        trial["switch"] = reference.is_module and pick.random() < 0.5
        _plan_recording(trial, reference, big)
    _plan_held(made)
    _plan_backward([trial for trial in made if trial["gradients"]], big)
    return made


def _plan_recording(trial: Descriptor, reference: Reference, big: bool) -> None:
    """Whether gradients are recorded, and compared too."""
    compared = reference.grad and trial["family"] in (FEW if big else COMPARED)
    trial["gradients"] = (compared and not trial["lenient"]) or trial["grad"]
    trial["grad"] = trial["grad"] or (reference.grad and not trial["circumstance"])


def _plan_held(trials: list[Descriptor]) -> None:
    """Parameters have gradients before the first call, and before the first that records any."""
    recording = [trial for trial in trials if trial["grad"]]
    for trial in (*trials[:1], *recording[:1]):
        trial["held"] = True


def _plan_backward(differentiated: list[Descriptor], big: bool) -> None:
    """How gradients are asked for, in the trials that compare them."""
    for trial, layout in zip(differentiated, itertools.cycle(COTANGENTS), strict=False):
        trial["cotangents"] = "as_given" if big else layout
    usual = [trial for trial in differentiated if not trial["circumstance"]]
    for trial in usual[-1:]:
        trial["twice"] = True
    for trial in usual[:1]:
        trial["second"] = not big


def _repeatable(trials: list[Descriptor]) -> list[int]:
    """Places of trials that may be repeated: not one of the edited, nor the one before another
    batch. Repeating sets parameters again, and what then keeps them would be new to a memo."""
    of_next = [trial["edit"] for trial in trials[1:]] + [None]
    return [
        place
        for place, (trial, edit) in enumerate(zip(trials, of_next, strict=True))
        if trial["edit"] is None and not trial["lenient"] and edit != "batch"
    ]


def plain(family: str) -> Descriptor:
    """The descriptor of a trial in which nothing varies but the values."""
    return {
        "family": family, "layout": "as_given", "batch": None, "edit": None, "grad": False,
        "twice": False, "cotangents": "as_given",
        "group": None, "size": None, "single": False, "lenient": False, "second": False,
        "circumstance": "", "held": False,
    }  # fmt: skip


def _plan_gradients(
    reference: Reference, pick: random.Random, made: list[Descriptor], big: bool
) -> list[Descriptor]:
    """Trials in which every floating input requires a gradient, where nobody said that calls are
    inference: a program may take another way then, so values and gradients are both compared. Of a
    big workload one of the trials in ``made`` becomes such a one, and what is added has few
    rows."""
    if not reference.may_record_gradients:
        return []
    other = (
        "as_given_again"
        if reference.range_bound
        else pick.choice(("shifted", "negated", "heavy_tailed"))
    )
    second = {**plain(other), "grad": True}
    if not big:
        ties = [] if reference.range_bound else [{**plain(inputs.TIED), "grad": True}]
        # Two batches in a row under the same parameters: what keeps a part of the graph fails.
        steps = [] if reference.changed else [{**plain("as_given"), "grad": True, "edit": "batch"}]
        coarse = any(map(numerics.is_narrow, reference.output_dtypes))
        further = FURTHER if coarse and _is_small(reference) else 0
        more = [{**plain("as_given"), "grad": True} for _ in range(further)]
        return [{**plain("as_given"), "grad": True}, *steps, *ties, *more, second]
    next(trial for trial in made if trial["family"] in ("negated", "as_given_once_more"))[
        "grad"
    ] = True
    return [{**second, "batch": reference.batch[1][0]}] if reference.batch else []


def _edges(reference: Reference, big: bool) -> list[Descriptor]:
    """Values at the edges, of those families that the reference takes."""
    batch = reference.batch[1][0] if big and reference.batch else None
    asked = reference.edges if not big or batch else reference.edges[:1]
    return [{**plain(family), "batch": batch, "lenient": True} for family in asked]


def _sizes(reference: Reference, pick: random.Random) -> list[Descriptor]:
    """Sizes at the edges: of the batch, and of another dimension where the reference takes one.
    Statistics of nothing that are kept in buffers are torch's own affair."""
    found = []
    for group, sizes in reference.sizes:
        asked = [size for size in sizes if size or not reference.changed]
        most = len(asked) if _is_small(reference) else min(len(asked), MAX_SIZES)
        found += [(group, size) for size in pick.sample(asked, most)]
    return [
        {**plain("as_given"), "group": group, "size": size, "lenient": True}
        for group, size in found
    ]


def _is_small(reference: Reference) -> bool:
    parameters = sum(tensor.numel() for tensor in reference.own_state.values())
    return reference.elements + parameters <= SMALL


def _single(reference: Reference, pick: random.Random, big: bool) -> list[Descriptor]:
    """In float32, where a program in 16 bits can run in it: what is wrong for some values alone may
    be less than 16 bits show."""
    if not reference.subject.has_single:
        return []
    batch = reference.batch[1][0] if big and reference.batch else None
    families = ["as_given"] if reference.range_bound else ["as_given", pick.choice(FAR)]
    return [
        {**plain(family), "batch": batch, "single": True, "lenient": True} for family in families
    ]


def _circumstances(reference: Reference, big: bool) -> list[Descriptor]:
    """One trial in each circumstance that the reference takes, with gradients where they may be
    asked for; in the other mode one without and one with them, since a program may take another
    way then, and one with a batch of one, which inference often has."""
    batch = reference.batch[1][0] if big and reference.batch else None
    recorded = reference.grad or reference.may_record_gradients
    asked = [(name, recorded and name == AUTOCAST) for name in reference.circumstances]
    if recorded and OTHER_MODE in reference.circumstances and not big:
        asked.append((OTHER_MODE, True))
    found = [
        {**plain("as_given"), "batch": batch, "circumstance": name, "grad": grad, "lenient": True}
        for name, grad in asked
    ]
    single = [group for group, sizes in reference.sizes[:1] if 1 in sizes]
    if single and OTHER_MODE in reference.circumstances and not big:
        one = {"group": single[0], "size": 1, "circumstance": OTHER_MODE, "lenient": True}
        found.append({**plain("as_given"), **one})
    return found


def _plan_variations(
    reference: Reference, pick: random.Random, bound: bool, big: bool
) -> list[Descriptor]:
    """The trials of other layouts and batch sizes; one trial for both when the workload is big.

    Every layout with strides is tried: a kernel that takes the last stride for 1 is right for rows
    with gaps, and one of these drawn at random let it pass half of the time."""
    values = "as_given" if bound else pick.choice(("as_given", "heavy_tailed"))
    strided = [layout for layout in reference.layouts if layout != variations.LAYOUTS[-1]]
    layouts = strided or list(reference.layouts[:1])
    sizes = list(reference.batch[1]) if reference.batch else []
    pick.shuffle(sizes)
    if big and layouts and sizes:
        return [{**plain(values), "layout": layout, "batch": sizes[0]} for layout in layouts]
    if big and layouts:  # each is a whole run
        layouts = [pick.choice(layouts)]
    found = [{**plain(values), "layout": layout} for layout in layouts]
    asked = sizes if _is_small(reference) else sizes[:1]
    return found + [{**plain("as_given"), "batch": size} for size in asked]
