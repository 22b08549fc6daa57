"""Targets, the ways in which each is called, and how often: what a recording counts and keeps of
calls."""

from __future__ import annotations

import sys
from typing import Any

from .values import ArgumentValues, may_compute

MADE_IN = "torch.nn.utils.parametrize"
OWN_PACKAGES = frozenset({"torch", "triton", "builtins"})
MAX_WAYS = 64
"""Ways of calling one target that are told apart in one process."""


def written_class(kind: type) -> type:
    """The class of which somebody has written the text: torch puts one of its own making around it
    for parametrizations (weight_norm, LoRA)."""
    while kind.__module__ == MADE_IN and kind.__base__ is not None:
        kind = kind.__base__
    return kind


def target_class(kind: type) -> type:
    """The class whose text a call of this one belongs to: the one that defines its ``forward``.
    One that inherits torch's own is a target itself: no text of torch's is rewritten."""
    named = written_class(kind)
    owner = next((base for base in named.__mro__ if "forward" in vars(base)), named)
    return named if owner.__module__.partition(".")[0] in OWN_PACKAGES else owner


def is_hidden(kind: type) -> bool:
    """Whether its name is another class's by now: a file defined both, and its text says the
    last."""
    found: Any = sys.modules.get(kind.__module__)
    for part in kind.__qualname__.split("."):
        found = getattr(found, part, None)
    is_another = isinstance(found, type) and found is not kind
    return is_another and (found.__module__, found.__qualname__) == (
        kind.__module__,
        kind.__qualname__,
    )


class Look:
    """What one call says about itself; targets of each kind have their own."""

    key: Any
    """Equal for calls that are alike."""
    on_cuda: bool
    tensors: dict[str, Any]
    """Arguments that are tensors, by name."""
    intact = True
    """They hold what the program gave: trials of configurations have not written into them."""

    def about(self) -> dict[str, Any]:
        """The call in plain values, asked for once per key."""
        raise NotImplementedError

    def after(self, way: CallWay, result: Any) -> None:
        """What is known only when the call is over."""

    def look_again(self, way: CallWay) -> None:
        """Called before each call that is looked at, with its way."""


class CallWay:
    """One way of calling a target."""

    __slots__ = (
        "about",
        "alignment",
        "cold",
        "glance",
        "samples",
        "seconds",
        "timed",
        "values",
        "warm",
        "warm_seconds",
    )

    def __init__(self, about: dict[str, Any], glance: Glance) -> None:
        self.about, self.glance = about, glance
        self.values: dict[str, ArgumentValues] = {}
        self.alignment: dict[str, int] = {}
        self.cold: list[Any] = []
        """Weak references to instances whose calls may have filled caches since a call was kept
        that did; empty: a call is kept that fills none."""
        self.samples = self.timed = self.warm = 0
        self.seconds = self.warm_seconds = 0.0

    def took(self, seconds: float, *, warming: bool) -> None:
        """Adds one timed call, among the first ones where ``warming``."""
        if warming:
            self.warm, self.warm_seconds = self.warm + 1, self.warm_seconds + seconds
        else:
            self.timed, self.seconds = self.timed + 1, self.seconds + seconds

    def to_record(self, calls: float) -> dict[str, Any]:
        """The way in plain values. ``calls``: how many were like this."""
        timed, seconds = (
            (self.timed, self.seconds) if self.timed else (self.warm, self.warm_seconds)
        )
        arguments = [self._argument(spec) for spec in self.about["arguments"]]
        return {
            **self.about,
            "arguments": arguments,
            "calls": calls,
            "timed": timed,
            "seconds": seconds,
        }

    def _argument(self, spec: dict[str, Any]) -> dict[str, Any]:
        found = dict(spec)
        if (known := self.values.get(spec.get("name", ""))) and (values := known.to_record()):
            found["values"] = values
        if alignment := self.alignment.get(spec.get("name", "")):
            found["alignment"] = alignment
        return found

    def look_into(self, seen: Look, torch: Any) -> None:
        """Addresses each time; values the first time and then ever more seldom."""
        for name, tensor in seen.tensors.items():
            if address := tensor.data_ptr():
                self.alignment[name] = min(self.alignment.get(name, 256), address & -address)
        if seen.intact and self.samples & (self.samples - 1) == 0 and may_compute(torch):
            for name, tensor in seen.tensors.items():
                self.values.setdefault(name, ArgumentValues()).look(tensor, torch)


class Glance:
    """Calls of one target that look alike at no cost: same mode, same shape of the first
    argument."""

    __slots__ = ("calls", "due", "samples")

    def __init__(self) -> None:
        self.calls = self.samples = 0
        self.due = 1
        """Number of the next call that is looked at."""


class CallSite:
    """One target: a module class or a Triton kernel of the workspace."""

    __slots__ = ("glances", "kind", "owner", "samples", "target", "ways")

    def __init__(self, kind: str, target: str, owner: Any) -> None:
        self.kind, self.target = kind, target
        self.owner = owner
        """Kept alive, because it is looked up by its identity."""
        self.forget()

    def forget(self) -> None:
        """Drops all that was counted."""
        self.samples = 0
        self.glances: dict[Any, Glance] = {}
        self.ways: dict[Any, CallWay] = {}

    @property
    def calls(self) -> int:
        """How often the target was called."""
        return sum(glance.calls for glance in list(self.glances.values()))

    def glance(self, key: Any) -> Glance:
        """A new one; those beyond the first `MAX_WAYS` are one."""
        key = key if len(self.glances) < MAX_WAYS else None
        return self.glances.setdefault(key, Glance())

    def way(self, look: Look, glance: Glance) -> CallWay | None:
        """The way of this call, new where it was not seen yet; None: there are too many already."""
        found = self.ways.get(look.key)
        if found is None and len(self.ways) < MAX_WAYS:
            found = self.ways[look.key] = CallWay(look.about(), glance)
        return found

    def to_record(self) -> dict[str, Any]:
        """Calls that are alike at first glance are shared out as the sampled ones of them were."""
        # Other threads go on meanwhile.
        seen = [(way, way.samples) for way in list(self.ways.values())]
        samples: dict[int, int] = {}
        for way, number in seen:
            samples[id(way.glance)] = samples.get(id(way.glance), 0) + number
        ways = [
            way.to_record(way.glance.calls * number / samples[id(way.glance)])
            for way, number in seen
            if number
        ]
        return {"kind": self.kind, "target": self.target, "calls": self.calls, "ways": ways}
