"""Measured launches of made-up kernels, for the tests of who learns from them."""

from collections.abc import Sequence
from dataclasses import replace

from kernel_lsp.records import Form, KernelView, Step
from trainer.policies.launches import KernelPlans, MeasuredLaunchPlan

MATRIX = Form(dtype="float32", shape=(4096, 4096))
VIEW = KernelView(
    operations=("load", "exp", "store"),
    tensors=(MATRIX, MATRIX),
    constants={"BLOCK": 1024},
    options={},
    programs=16384,
    loaded=1024,
    consecutive=1024,
    held=0,
    masked=2,
    evicting=0,
    ahead=1,
)


def warps(count: int) -> Step:
    return Step(
        skill="triton-launch-options",
        site="launch of double_kernel",
        parameters={"num_warps": count},
    )


def plan(count: int, speedup: float | None, *, rule: bool = False) -> MeasuredLaunchPlan:
    view = replace(VIEW, options={"num_warps": count})
    return MeasuredLaunchPlan(steps=(warps(count),), view=view, speedup=speedup, rule=rule)


def kernel(
    name: str, *plans: MeasuredLaunchPlan, first: int | None = 0, family: str = "a"
) -> KernelPlans:
    return KernelPlans(name=name, family=family, before=VIEW, first=first, plans=plans)


def measured(name: str, speedups: Sequence[float | None], family: str = "a") -> KernelPlans:
    """With 1, 2, 4 … warps; the first is the rule's."""
    plans = (plan(2**place, speedup, rule=place == 0) for place, speedup in enumerate(speedups))
    return kernel(name, *plans, family=family)
