"""KL213: names in an autotune decorator that the kernel does not have."""

from __future__ import annotations

from collections.abc import Iterator

from kernel_lsp.analysis.launches import Tuning
from kernel_lsp.analysis.rules.base import Hit, Rule, RuleSite, hit
from kernel_lsp.analysis.source import words
from kernel_lsp.records import TargetKind

_OPTIONS = frozenset({"num_warps", "num_stages", "num_ctas"})
# What launches may say to a compiler besides (CUDAOptions and HIPOptions of Triton 3.4 to 3.6,
# Intel's).
_OF_COMPILERS = words(
    """
    waves_per_eu matrix_instr_nonkdim kpack schedule_hint instruction_sched_variant allow_flush_denorm
    llvm_fn_attrs wgp_cu_mode maxnreg enable_fp_fusion launch_cooperative_grid launch_pdl ptx_options
    ptx_version min_shared_mem sanitize_overflow debug extern_libs default_dot_input_precision cluster_dims
    num_consumer_groups num_buffers_warp_spec grf_mode warp_size threads_per_warp generate_native_code
    """
)


def _check(site: RuleSite) -> Iterator[Hit]:
    tuning = site.tuning
    kernel = site.kernels[0]
    if tuning is None or kernel.function.args.kwarg or kernel.function.args.vararg:
        return
    for argument in ("key", "reset_to_zero", "restore_value"):
        for name, place in (tuning.names(argument) or {}).items():
            if name not in kernel.parameters:
                yield hit(
                    place,
                    f"{name} is no parameter of the kernel: Triton refuses it, and older versions "
                    f"left it "
                    f"out of the {argument} without a word",
                )
    # A pruning hook may replace the configurations by others.
    if "prune_configs_by" not in tuning.arguments:
        yield from _unknown_values(tuning, set(kernel.parameters))
    pointers = {kernel.base(a.pointer) for a in kernel.accesses}
    for name, place in (tuning.names("key") or {}).items():
        if name in pointers:
            yield hit(
                place, f"{name} is a tensor, and tensors are keys by identity: each is tuned anew"
            )


def _unknown_values(tuning: Tuning, known: set[str]) -> Iterator[Hit]:
    for config in tuning.configs or ():
        unknown = sorted(config.values.keys() - known - _OF_COMPILERS)
        if unknown and unknown[0] in _OPTIONS:
            yield hit(
                config.node,
                f"{unknown[0]} among the kernel's arguments is overwritten by its default: "
                f"pass it to "
                "triton.Config "
                f"itself, {unknown[0]}=...",
            )
            return
        if unknown:
            yield hit(config.node, f"{unknown[0]} is no parameter of the kernel: the launch fails")
            return


KL213 = Rule(
    id="KL213",
    name="autotune-name-unknown",
    summary="a name in an autotune decorator that is no size of the kernel",
    severity="warning",
    kinds=frozenset({TargetKind.TRITON_KERNEL}),
    check=_check,
)
