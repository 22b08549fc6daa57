"""All rules by id. A new rule is a file here, a page in docs/ and a case file in tests/cases/."""

from __future__ import annotations

from pathlib import Path

from kernel_lsp.analysis.rules.base import Rule
from kernel_lsp.analysis.rules.kl101_unfused_pointwise_chain import KL101
from kernel_lsp.analysis.rules.kl102_singleton_reduction import KL102
from kernel_lsp.analysis.rules.kl103_tensor_created_per_call import KL103
from kernel_lsp.analysis.rules.kl104_host_sync_in_forward import KL104
from kernel_lsp.analysis.rules.kl105_diag_matmul import KL105
from kernel_lsp.analysis.rules.kl106_conv_without_channels_last import KL106
from kernel_lsp.analysis.rules.kl107_needless_contiguous import KL107
from kernel_lsp.analysis.rules.kl108_linear_then_reduction import KL108
from kernel_lsp.analysis.rules.kl201_unmasked_tail import KL201
from kernel_lsp.analysis.rules.kl202_arange_not_power_of_two import KL202
from kernel_lsp.analysis.rules.kl203_int32_offset_overflow import KL203
from kernel_lsp.analysis.rules.kl204_low_precision_accumulation import KL204
from kernel_lsp.analysis.rules.kl205_block_size_not_constexpr import KL205
from kernel_lsp.records import Finding

RULES: tuple[Rule, ...] = (
    KL101,
    KL102,
    KL103,
    KL104,
    KL105,
    KL106,
    KL107,
    KL108,
    KL201,
    KL202,
    KL203,
    KL204,
    KL205,
)

_PAGES = Path(__file__).with_name("docs")


def page(finding: Finding) -> Path:
    """The documentation of the rule that made the finding."""
    return _PAGES / f"{finding.rule}-{finding.name}.md"


__all__ = ["RULES", "Rule", "page"]
