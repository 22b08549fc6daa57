"""All rules by id. A new rule is a file here, a page in docs/ and a case file in tests/cases/."""

from __future__ import annotations

from pathlib import Path

from kernel_lsp.analysis.rules.base import Rule, ScriptRule
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
from kernel_lsp.analysis.rules.kl206_undefined_lanes_reduced import KL206
from kernel_lsp.analysis.rules.kl207_wrong_neutral_element import KL207
from kernel_lsp.analysis.rules.kl208_softmax_without_max import KL208
from kernel_lsp.analysis.rules.kl209_variance_by_difference import KL209
from kernel_lsp.analysis.rules.kl210_autotuned_accumulation import KL210
from kernel_lsp.analysis.rules.kl211_autotuned_in_place import KL211
from kernel_lsp.analysis.rules.kl212_autotune_key_incomplete import KL212
from kernel_lsp.analysis.rules.kl213_autotune_name_unknown import KL213
from kernel_lsp.analysis.rules.kl214_duplicate_autotune_config import KL214
from kernel_lsp.analysis.rules.kl215_grid_ignores_tuned_block import KL215
from kernel_lsp.analysis.rules.kl216_grid_rounds_down import KL216
from kernel_lsp.analysis.rules.kl217_constexpr_per_shape import KL217
from kernel_lsp.analysis.rules.kl218_program_race import KL218
from kernel_lsp.analysis.rules.kl219_atomic_without_relaxed import KL219
from kernel_lsp.analysis.rules.kl220_invariant_load import KL220
from kernel_lsp.analysis.rules.kl221_stages_without_loop import KL221
from kernel_lsp.analysis.rules.kl222_idle_warps import KL222
from kernel_lsp.analysis.rules.kl223_late_widening import KL223
from kernel_lsp.analysis.rules.kl224_upcast_dot import KL224
from kernel_lsp.analysis.rules.kl225_exp_beside_dot import KL225
from kernel_lsp.analysis.rules.kl226_debug_print import KL226
from kernel_lsp.analysis.rules.kl227_global_not_constexpr import KL227
from kernel_lsp.analysis.rules.kl228_host_sync_at_launch import KL228
from kernel_lsp.analysis.rules.kl229_tensor_created_at_launch import KL229
from kernel_lsp.analysis.rules.kl230_other_without_mask import KL230
from kernel_lsp.analysis.rules.kl231_row_cut_off import KL231
from kernel_lsp.analysis.rules.kl232_masked_division_reduced import KL232
from kernel_lsp.analysis.rules.kl233_redundant_where import KL233
from kernel_lsp.analysis.rules.kl234_missing_barrier import KL234
from kernel_lsp.analysis.rules.kl235_contiguity_hint_alone import KL235
from kernel_lsp.analysis.rules.kl236_overflowing_exp import KL236
from kernel_lsp.analysis.rules.kl237_strided_lanes import KL237
from kernel_lsp.analysis.rules.kl238_tuned_argument_passed import KL238
from kernel_lsp.analysis.rules.kl239_static_range_over_argument import KL239
from kernel_lsp.analysis.rules.kl240_grid_axis_limit import KL240
from kernel_lsp.analysis.rules.kl241_strides_ignored import KL241
from kernel_lsp.analysis.rules.kl301_host_sync_every_step import KL301
from kernel_lsp.analysis.rules.kl302_gradients_zeroed_in_place import KL302
from kernel_lsp.analysis.rules.kl303_optimizer_not_fused import KL303
from kernel_lsp.analysis.rules.kl304_host_tensor_moved import KL304
from kernel_lsp.analysis.rules.kl305_loader_without_workers import KL305
from kernel_lsp.analysis.rules.kl306_loader_not_pinned import KL306
from kernel_lsp.analysis.rules.kl307_blocking_copy import KL307
from kernel_lsp.analysis.rules.kl308_autocast_around_backward import KL308
from kernel_lsp.analysis.rules.kl309_tf32_left_off import KL309
from kernel_lsp.analysis.rules.kl310_compile_inside_loop import KL310
from kernel_lsp.analysis.rules.kl311_shape_changes_every_round import KL311
from kernel_lsp.analysis.rules.kl312_cache_emptied_every_step import KL312
from kernel_lsp.analysis.rules.kl313_synchronize_every_step import KL313
from kernel_lsp.analysis.rules.kl314_scaler_with_bfloat16 import KL314
from kernel_lsp.analysis.rules.kl315_evaluation_records_graph import KL315
from kernel_lsp.analysis.rules.kl316_loss_kept_with_graph import KL316
from kernel_lsp.analysis.rules.kl317_gradients_one_by_one import KL317
from kernel_lsp.analysis.rules.kl318_cache_grown_by_cat import KL318
from kernel_lsp.analysis.rules.kl319_decoding_without_cache import KL319
from kernel_lsp.analysis.rules.kl320_attention_written_out import KL320
from kernel_lsp.analysis.rules.kl321_anomaly_detection_on import KL321
from kernel_lsp.analysis.rules.kl322_data_parallel import KL322
from kernel_lsp.analysis.rules.kl401_launch_on_default_stream import KL401
from kernel_lsp.analysis.rules.kl402_launch_unchecked import KL402
from kernel_lsp.analysis.rules.kl403_native_strides_ignored import KL403
from kernel_lsp.analysis.rules.kl404_native_device_wait import KL404
from kernel_lsp.analysis.rules.kl405_native_device_unset import KL405
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
    KL206,
    KL207,
    KL208,
    KL209,
    KL210,
    KL211,
    KL212,
    KL213,
    KL214,
    KL215,
    KL216,
    KL217,
    KL218,
    KL219,
    KL220,
    KL221,
    KL222,
    KL223,
    KL224,
    KL225,
    KL226,
    KL227,
    KL228,
    KL229,
    KL230,
    KL231,
    KL232,
    KL233,
    KL234,
    KL235,
    KL236,
    KL237,
    KL238,
    KL239,
    KL240,
    KL241,
    KL320,
)

# About programs; what they find belongs to no target.
SCRIPT_RULES: tuple[ScriptRule, ...] = (
    KL301,
    KL302,
    KL303,
    KL304,
    KL305,
    KL306,
    KL307,
    KL308,
    KL309,
    KL310,
    KL311,
    KL312,
    KL313,
    KL314,
    KL315,
    KL316,
    KL317,
    KL318,
    KL319,
    KL321,
    KL322,
    KL401,
    KL402,
    KL403,
    KL404,
    KL405,
)

_PAGES = Path(__file__).with_name("docs")


def page(finding: Finding) -> Path:
    """The documentation of the rule that made the finding."""
    return _PAGES / f"{finding.rule}-{finding.name}.md"


__all__ = ["RULES", "SCRIPT_RULES", "Rule", "ScriptRule", "page"]
