"""The trials of one session: which values, layout, batch size and way of updating parameters, in secret.

Everything is drawn from the session's seed. What a trial varies is a small JSON object (a *descriptor*)
that goes into the evidence as it is. Does not draw any tensor: see `drawing.draw`.
"""

from __future__ import annotations

import random
from typing import Any

from kernel_lsp.evaluator.judging import inputs, variations
from kernel_lsp.evaluator.judging.oracle import Reference

Descriptor = dict[str, Any]
SMOOTH = ("as_given", "shifted", "negated", "heavy_tailed", "as_given_again", *inputs.IN_RANGE)
"""Families for gradients. Ties and zeros have many subgradients; scaled values saturate."""
FEW = ("as_given", "as_given_again")
"""Families for gradients of big workloads: forward and backward twice, once of it in float64."""


def plan(reference: Reference, seed: int) -> list[Descriptor]:
    """At least eight value distributions, then another layout and another batch size where accepted.

    number: from 1. family: of the values. layout: see variations.py. batch: rows, None as given.
    edit: the first trial again with one row of all parameters, then of all inputs, changed, which a memo or
    a fold that is keyed on a sample overlooks. update, switch: how the parameters change and whether
    train() and eval() are called before. repeat: the call is made twice. gradients: compared too.
    """
    pick = random.Random(seed ^ 0x91A7)
    bound, big = reference.range_bound, reference.elements > variations.BIG
    families = list(inputs.IN_RANGE if bound else inputs.FAMILIES)
    made = [plain(family) for family in families]
    made[-1:-1] = _varied(reference, pick, bound, big)  # the last has the parameters as constructed
    made[1:1] = [{**plain(families[0]), "edit": edit} for edit in ("parameters", "inputs")]
    ways = variations.updates(reference.own_state, len(made), pick)
    # Not one of the edited: repeating sets parameters again, and what then keeps them would be new to a memo.
    again = pick.choice([number for number, trial in enumerate(made) if trial["edit"] is None])
    for number, (trial, way) in enumerate(zip(made, ways, strict=True)):
        trial.update(number=number + 1, update=way, repeat=number == again)
        if trial["edit"] == "inputs" and not reference.changed:
            trial["update"] = "none"
        trial["switch"] = reference.is_module and pick.random() < 0.5
        trial["gradients"] = reference.grad and trial["family"] in (FEW if big else SMOOTH)
    return made


def plain(family: str) -> Descriptor:
    """Where nothing varies but the values."""
    return {"family": family, "layout": "as_given", "batch": None, "edit": None}


def _varied(reference: Reference, pick: random.Random, bound: bool, big: bool) -> list[Descriptor]:
    """The trials of another layout and another batch size; one trial for both when the workload is big."""
    values = "as_given" if bound else pick.choice(("as_given", "heavy_tailed"))
    strided = [layout for layout in reference.layouts if layout != variations.LAYOUTS[-1]]
    layout = pick.choice(strided or reference.layouts) if reference.layouts else None
    size = pick.choice(reference.batch[1]) if reference.batch else None
    if big and layout and size:
        return [{**plain(values), "layout": layout, "batch": size}]
    found = [{**plain(values), "layout": layout}] if layout else []
    return found + ([{**plain("as_given"), "batch": size}] if size else [])
