"""KL210: an autotuned kernel that adds to its output: every measurement adds once more."""

from __future__ import annotations

from collections.abc import Iterator

from kernel_lsp.analysis.rules.base import Hit, Rule, RuleSite, hit
from kernel_lsp.records import TargetKind


def _check(site: RuleSite) -> Iterator[Hit]:
    tuning = site.tuning
    if tuning is None or not tuning.measures or tuning.may_restore:
        return
    kernel = site.kernels[0]
    stored = {kernel.base(a.pointer) for a in kernel.accesses if a.name in ("store", "atomic_xchg")}
    reported: set[str] = set()
    for access in kernel.accesses:
        base = kernel.base(access.pointer)
        # A kernel that also stores there may begin by clearing it, or end so, as with a counter.
        if access.name in ("atomic_add", "atomic_xor") and base and base not in stored | reported:
            reported.add(base)
            yield hit(
                access.call,
                f"autotuning runs this kernel many times, and each run adds to {base}: "
                f'pass reset_to_zero=["{base}"] to triton.autotune (restore_value if it starts '
                f"with values)",
                parameter=base,
            )


KL210 = Rule(
    id="KL210",
    name="autotuned-accumulation",
    summary="an autotuned kernel that adds to its output without reset_to_zero",
    severity="warning",
    kinds=frozenset({TargetKind.TRITON_KERNEL}),
    check=_check,
)
