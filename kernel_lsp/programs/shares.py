"""Where a step's device time goes: of each target, of the optimizers, of the rest (from one
profiled step).

A target's share holds what its calls compute forward and what follows from them in the backward
pass, with all that they call. Ranges come from recorder/profiling.py."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from kernel_lsp.workloads.recorder.profiling import IN_OPTIMIZER

ShareName = tuple[str, str]
"""Module and qualified name of a class."""
MIN_ROOT = 0.02
"""Share from which a module that the program calls itself is one of its roots."""
AT_BEST = 0.7
"""Of the time of a vendor's products on tensor cores, that which remains in the best case: they run
at 0.7 of the device's peak or more, but for small ones."""
ALIKE = 0.8
"""Of the largest block's share, from which another one holds about as much."""
MIN_BUSY = 0.95
"""Share of the step in which a device computes that does not wait for the host."""


@dataclass(frozen=True, kw_only=True)
class ShareRow:
    """Time that belongs to the same targets around each other."""

    ranges: tuple[ShareName, ...]
    """The outermost first; empty: no target's."""
    kind: str
    """forward, backward, optimizer or other."""
    us: float
    products_us: float = 0.0
    """Of it in a vendor's kernels on tensor cores."""

    @property
    def gainable_us(self) -> float:
        """What rewrites could save at the very best."""
        return self.us - AT_BEST * self.products_us


@dataclass(frozen=True, kw_only=True)
class Shares:
    """One step's time."""

    device: str
    """cuda: of its kernels. cpu: of operators."""
    total_us: float
    rows: tuple[ShareRow, ...]
    calls: dict[tuple[ShareName, ...], int]
    step_ms: float | None = None
    """Of an unprofiled step."""

    @staticmethod
    def of(profile: dict[str, Any], step_ms: float | None) -> Shares:
        """The shares of a profiled step, from what recorder/profiling.py wrote."""
        return Shares(
            device=str(profile["device"]),
            total_us=float(profile["total_us"]),
            rows=tuple(
                ShareRow(
                    ranges=_names(row["ranges"]),
                    kind=str(row["kind"]),
                    us=float(row["us"]),
                    products_us=float(row.get("products_us", 0.0)),
                )
                for row in profile["rows"]
            ),
            calls={_names(row["ranges"]): int(row["calls"]) for row in profile["calls"]},
            step_ms=step_ms,
        )

    @property
    def busy(self) -> float | None:
        """Share of the step in which the device computes; None where there is none of its own."""
        if self.device != "cuda" or not self.step_ms:
            return None
        return min(1.0, self.total_us / 1000 / self.step_ms)

    def of_target(self, name: ShareName) -> float:
        """The target's share of the step, with all that it calls."""
        return self._share(row.us for row in self.rows if name in row.ranges)

    def gainable(self, name: ShareName) -> float:
        """The share of the step that rewrites of this target could save at the very best."""
        return self._share(row.gainable_us for row in self.rows if name in row.ranges)

    def of_kind(self, kind: str) -> float:
        """The share of the step, 0 to 1, of one kind: forward, backward, optimizer or other."""
        return self._share(row.us for row in self.rows if row.kind == kind)

    @property
    def of_nobody(self) -> float:
        """What neither a target nor an optimizer holds, its backward pass included."""
        free = (row.us for row in self.rows if not row.ranges and row.kind != IN_OPTIMIZER)
        return self._share(free)

    def would_notice_optimizers(self, share: float) -> bool:
        """Whether they take this share of the device's time; or of the host's, for all that is
        known where the device waits for it."""
        busy = self.busy
        return self.of_kind(IN_OPTIMIZER) >= share or (busy is not None and busy < MIN_BUSY)

    def within(self, names: Collection[ShareName]) -> float:
        """What any of these targets holds."""
        return self._share(row.us for row in self.rows if not set(names).isdisjoint(row.ranges))

    def alone(self, name: ShareName, others: Collection[ShareName]) -> float:
        """What could be saved of it without those of ``others`` that are called several times
        within it: repeated blocks, which are rewritten by themselves."""
        mine = self._calls(name)
        repeated = {one for one in others if self._calls(one) > mine}
        return self._share(
            row.gainable_us
            for row in self.rows
            if name in row.ranges and repeated.isdisjoint(row.ranges[row.ranges.index(name) + 1 :])
        )

    def roots(self) -> list[ShareName]:
        """What the program calls itself and takes time, the most expensive first."""
        tops = {row.ranges[0] for row in self.rows if row.ranges}
        found = [(self.of_target(name), name) for name in tops if (name,) in self.calls]
        return [name for share, name in sorted(found, reverse=True) if share >= MIN_ROOT]

    def repeated(self, root: ShareName, modules: Collection[ShareName]) -> ShareName | None:
        """The module within the root that is called several times a step and holds the most time;
        of those that hold about as much the one that is called most often: a layer, and not the
        model that is called with two batches."""
        mine = self._calls(root)
        inside = {name for row in self.rows if root in row.ranges for name in row.ranges} - {root}
        blocks = [name for name in inside.intersection(modules) if self._calls(name) >= 2 * mine]
        most = max(map(self.of_target, blocks), default=0.0)
        large = [name for name in blocks if self.of_target(name) >= ALIKE * most]
        return max(large, key=lambda name: (self._calls(name), self.of_target(name)), default=None)

    def is_within(self, name: ShareName, outer: ShareName) -> bool:
        """Whether all of its calls are made by the other's."""
        mine = [ranges for ranges in self.calls if ranges[-1] == name]
        return name != outer and bool(mine) and all(outer in ranges for ranges in mine)

    def _calls(self, name: ShareName) -> int:
        return sum(calls for ranges, calls in self.calls.items() if ranges[-1] == name)

    def _share(self, parts: Any) -> float:
        return sum(parts) / self.total_us if self.total_us else 0.0


def _names(ranges: list[list[str]]) -> tuple[ShareName, ...]:
    return tuple((module, qualname) for module, qualname in ranges)


__all__ = ["IN_OPTIMIZER", "ShareName", "ShareRow", "Shares"]
