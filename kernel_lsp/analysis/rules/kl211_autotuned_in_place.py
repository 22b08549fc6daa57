"""KL211: an autotuned kernel that overwrites its input, so that measurements change it."""

from __future__ import annotations

from collections.abc import Iterator

from kernel_lsp.analysis.launches import shared_tensors
from kernel_lsp.analysis.rules.base import Hit, Rule, RuleSite, hit
from kernel_lsp.records import TargetKind


def _check(site: RuleSite) -> Iterator[Hit]:
    tuning = site.tuning
    if tuning is None or not tuning.measures or tuning.may_restore:
        return
    kernel = site.kernels[0]
    # Every launch of the file passes it so: of several, one may be right.
    same = shared_tensors(site.launches) if len(site.launches) == 1 else {}
    read: set[str] = set()
    written: set[str] = set()
    # In the order of evaluation: a load inside of what is stored ends before the store does.
    for access in sorted(kernel.accesses, key=lambda a: (a.call.end_lineno, a.call.end_col_offset)):
        base = kernel.base(access.pointer)
        if base is None:
            continue
        if access.is_load:
            read |= {base} - written  # what the kernel stored itself is no input
        elif access.name == "store" and base not in written and access.value is not None:
            written.add(base)
            inputs = {base, *same.get(base, ())} & read
            if inputs & kernel.atoms(access.value):
                yield hit(
                    access.call,
                    "autotuning runs this kernel many times, and each run works on what the last "
                    "left in "
                    f"{base}: "
                    f'pass restore_value=["{base}"] to triton.autotune',
                    parameter=base,
                )


KL211 = Rule(
    id="KL211",
    name="autotuned-in-place",
    summary="an autotuned kernel that overwrites its input without restore_value",
    severity="warning",
    kinds=frozenset({TargetKind.TRITON_KERNEL}),
    check=_check,
)
