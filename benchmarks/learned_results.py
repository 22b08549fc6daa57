"""What learned_skills.py writes and shows: one entry per draft, with its verifications.

Not covered: how drafts come about (drafting.py).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kernel_lsp import wire
from kernel_lsp.files import replace_file
from trainer import lessons, ruling


@dataclass(kw_only=True)
class Results:
    """The file: one entry per draft, in the order of their promise."""

    path: Path
    about: dict[str, Any] = field(default_factory=dict)
    drafts: dict[str, dict[str, Any]] = field(default_factory=dict)
    firsts: dict[str, ruling.Places] = field(default_factory=dict)
    """Recorded task -> what the rule suggests first there now."""

    def load(self) -> None:
        if self.path.exists():
            known = json.loads(self.path.read_text())
            self.about, self.drafts = known["about"], known["drafts"]
            told = known.get("firsts", {}).items()
            self.firsts = {name: tuple((skill, site) for skill, site in steps) for name, steps in told}

    def expect(self, name: str, one: lessons.Taught) -> None:
        self.drafts.setdefault(name, {}).update(
            kind=kind_of(one),
            recipe=wire.to_json(one.draft.recipe),
            requires=wire.to_json(one.draft.requires),
            expected=math.exp(one.expected),
            low=math.exp(one.low),
            taught_by=[task.name for task in one.tasks],
        )

    def write(self) -> None:
        told = {"about": self.about, "drafts": self.drafts, "firsts": self.firsts}
        replace_file(self.path, (json.dumps(told) + "\n").encode())

    def lines(self) -> Iterator[str]:
        """The table, then what the bars ask for."""
        yield f"{'skill':58s} {'admission':>30s} {'fresh tasks':>30s}"
        for name, one in self.drafts.items():
            yield f"{name[:58]:58s} {_told(one.get('verified')):>30s} {_told(one.get('fresh')):>30s}"
        judged = [one for one in self.drafts.values() if "verified" in one]
        admitted = [one for one in judged if one["verified"]["accepted"]]
        again = [one["fresh"] for one in admitted if one.get("fresh", {}).get("uplift")]
        positive = sum(one["uplift"]["mean"] > 0 for one in again)
        bounded = sum(one["uplift"]["low"] > 0 for one in again)
        yield (
            f"{len(self.drafts)} drafts, {len(judged)} verified, {len(admitted)} admitted; on fresh tasks "
            f"{positive} of {len(again)} positive, {bounded} with a bound above zero"
        )


def _told(found: dict[str, Any] | None) -> str:
    if found is None:
        return "-"
    if not (uplift := found.get("uplift")):
        return str(found["reason"])[:30]
    low, mid, high = (math.exp(uplift[name]) for name in ("low", "mean", "high"))
    return f"{'' if found['accepted'] else 'no: '}{mid:.3f} ({low:.3f}-{high:.3f}) n={uplift['tasks']}"


def kind_of(one: lessons.Taught) -> str:
    """Of the sites, in words."""
    steps = " ".join(f"{step.skill}@{'+'.join(step.covers)}" for step in one.draft.recipe)
    asked = one.draft.requires
    return f"{steps} instead of {' '.join(asked.planned)}" if asked and asked.planned else steps
