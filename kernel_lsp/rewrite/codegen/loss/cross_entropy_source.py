"""Source of the kernels of cross entropy over rows of logits, as templates (cross_entropy.py fills
them)."""

from __future__ import annotations

PICKED = """\
    target = tl.load(target_ptr + row)
    kept = target != {ignore}
    # Targets outside of the classes read nothing and give NaN, where eager stops with an assertion.
    valid = kept & (target >= 0) & (target < n_cols)
    picked = tl.load({row_logits} + target, mask=valid, other=float("nan")).to(tl.float32)
"""
"""The logit at the target. ``row_logits``: where the row's logits begin."""
ROW_SUM = """\
{before}    lane_max = tl.full([BLOCK_SIZE], float("-inf"), tl.float32)
    lane_sum = tl.full([BLOCK_SIZE], 0.0, tl.float32)
    for start in range(0, {row_stride}, BLOCK_SIZE):
        cols = start + tl.arange(0, BLOCK_SIZE)
{load}        new_max = tl.maximum(lane_max, logits)
        # Lanes that saw only -inf: exp(-inf - -inf) would be NaN where it must weigh nothing.
        pivot = tl.where(new_max == float("-inf"), 0.0, new_max)
        lane_sum = lane_sum * tl.exp(lane_max - pivot) + tl.exp(logits - pivot)
        lane_max = new_max
{step}    row_max = tl.max(lane_max, axis=0)
    row_pivot = tl.where(row_max == float("-inf"), 0.0, row_max)
    row_sum = tl.sum(lane_sum * tl.exp(lane_max - row_pivot), axis=0)
"""
"""The largest logit of a row and the sum of the exponentials over it, read once. ``load`` reads
``logits`` and says in ``mask`` which of them are of a class."""

LOSS = """\
    loss = {log_sum} + (row_max - picked)  # in this order: a common shift of the logits cancels exactly
"""

KERNEL = f'''\
@triton.jit
def _{{name}}_kernel(logits_ptr, target_ptr, {{weight_pointer}}loss_ptr, n_cols, BLOCK_SIZE: tl.constexpr):
    """Each program handles one row: the logits are read once and the probabilities never written."""
    row = tl.program_id(0).to(tl.int64)  # int64: row * n_cols can pass 2**31
{ROW_SUM}{PICKED}{LOSS}{{weighted}}{{smoothed}}    tl.store(loss_ptr + row, tl.where(kept, loss, 0.0))
'''
ROW = {
    "row_logits": "logits_ptr + row * n_cols",
    "row_stride": "n_cols",
    "log_sum": "tl.log(row_sum)",
    "load": """\
        mask = cols < n_cols  # the last block is not full
        logits = tl.load(logits_ptr + row * n_cols + cols, mask=mask, other=float("-inf")).to(tl.float32)
""",
}
"""Where this kernel finds its row."""

SMOOTHING = {
    "before": """\
    lane_total = tl.full([BLOCK_SIZE], 0.0, tl.float32)
    anchor = tl.load({row_logits}).to(tl.float32)
    anchor = tl.where(tl.abs(anchor) < float("inf"), anchor, 0.0)  # a common shift costs no digits
""",
    "step": """\
        lane_total += tl.where(mask, logits - anchor, 0.0)
""",
    "smoothed": """\
    every = {log_sum} + (row_max - anchor) - tl.sum(lane_total, axis=0) / n_cols  # mean over classes
    loss = {rest} * loss + {smoothing} * every
""",
}
"""What smoothed labels add to the kernel."""
WEIGHTED_SMOOTHING = {
    "before": SMOOTHING["before"]
    + """\
    lane_weight = tl.full([BLOCK_SIZE], 0.0, tl.float32)
""",
    "step": """\
        weights = tl.load(weight_ptr + cols, mask=mask, other=0.0).to(tl.float32)
        lane_total += tl.where(mask, (logits - anchor) * weights, 0.0)
        lane_weight += weights
""",
    "smoothed": """\
    every = tl.sum(lane_weight, axis=0) * ({log_sum} + (row_max - anchor)) - tl.sum(lane_total, axis=0)
    loss = {rest} * loss + {smoothing} * (every / n_cols)
""",
}
"""The same where classes have weights."""
WEIGHTED = """\
    loss *= tl.load(weight_ptr + target, mask=valid, other=1.0).to(tl.float32)
"""
COUNTED = {
    False: """\
        lane_count += tl.where(target != {ignore}, 1.0, 0.0)
""",
    True: """\
        valid = (target != {ignore}) & (target >= 0) & (target < n_cols)
        lane_count += tl.load(weight_ptr + target, mask=valid, other=0.0).to(tl.float32)
""",
}
"""What the mean divides by, by whether classes have weights. A target outside of them reads
nothing."""

TOTAL = '''\
@triton.jit
def _{name}_total_kernel(
    loss_ptr, target_ptr, {weight_pointers}out_ptr, n_rows, BLOCK_SIZE: tl.constexpr,
):
    """One program adds the rows in a fixed order."""
    lane_sum = tl.full([BLOCK_SIZE], 0.0, tl.float32)
    lane_count = tl.full([BLOCK_SIZE], 0.0, tl.float32)
    for start in range(0, n_rows, BLOCK_SIZE):
        rows = start + tl.arange(0, BLOCK_SIZE)
        mask = rows < n_rows  # the last block is not full
        lane_sum += tl.load(loss_ptr + rows, mask=mask, other=0.0)
        target = tl.load(target_ptr + rows, mask=mask, other={ignore})
{counted}    total = tl.sum(lane_sum, axis=0){divided}
    tl.store(out_ptr, total)
'''

LAUNCHER = '''\
def {name}(logits, target{weight}):
    """Cross entropy in {launches}; the probabilities are never written."""
    logits, target = logits.contiguous(), target.contiguous()
{contiguous}    n_rows, n_cols = logits.shape
    loss = torch.empty(n_rows, dtype=torch.{row_dtype}, device=logits.device)
    if n_rows > 0:  # a grid of zero programs cannot be launched
        _{name}_kernel[(n_rows,)](logits, target{weight}, loss, n_cols, BLOCK_SIZE={block}, num_warps={warps})
'''


BACKWARD = '''\
@triton.jit
def _{name}_backward_kernel(
    logits_ptr, target_ptr, {weight_pointer}log_sum_ptr, {scale_arguments}, grad_logits_ptr, n_cols,
    BLOCK_SIZE: tl.constexpr,
):
    """Each program handles a block of one row: probability, less one at the target, times the gradient."""
    row = tl.program_id(0).to(tl.int64)  # int64: row * n_cols can pass 2**31
    cols = tl.program_id(1) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    mask = cols < n_cols  # the last block is not full
    logits = tl.load(logits_ptr + row * n_cols + cols, mask=mask).to(tl.float32)
    target = tl.load(target_ptr + row)
    row_max, log_sum = tl.load(log_sum_ptr + row), tl.load(log_sum_ptr + tl.num_programs(0) + row)
    probability = tl.exp((logits - row_max) - log_sum)
    scale = {scale}
{weighted}    grad = (probability - tl.where(cols == target, {rest}, 0.0){smoothed}) * scale
    tl.store(grad_logits_ptr + row * n_cols + cols, tl.where(target == {ignore}, 0.0, grad), mask=mask)


class _{title}(torch.autograd.Function):
    """Cross entropy; two numbers a row are kept for the backward, which makes the probabilities again."""

    @staticmethod
    def forward(ctx, logits, target{weight}):
        out, log_sum{count_name} = {name}_forward(logits, target{weight})
        ctx.save_for_backward(logits, target{weight})
        ctx.kept = log_sum{count_name}
        return out

    @staticmethod
    def backward(ctx, grad_out):
        if torch.is_grad_enabled():  # create_graph=True: a kernel has no derivative of its own
            return differentiate_again(ctx, {name}_eager, grad_out)
        (logits, target{weight}), log_sum{count_name} = ctx.saved_tensors, {kept}
        logits, target, grad_out = logits.contiguous(), target.contiguous(), grad_out.contiguous()
{contiguous}        n_rows, n_cols = logits.shape
        grad_logits = torch.empty_like(logits)
        if n_rows > 0:  # a grid of zero programs cannot be launched
            _{name}_backward_kernel[(n_rows, (n_cols + 4095) // 4096)](
                logits, target{weight}, log_sum, {scale_values}, grad_logits, n_cols,
                BLOCK_SIZE=4096, num_warps=8,
            )
        return grad_logits, {nothing}


def {name}_eager(logits, target{weight}):
    """The same in PyTorch, for gradients of gradients."""
    return torch.nn.functional.cross_entropy(logits{wide}, target{settings})


def {name}(logits, target{weight}):
    return _{title}.apply(logits, target{weight})
'''
SCALED = """\
    valid = (target >= 0) & (target < n_cols)
    scale *= tl.load(weight_ptr + target, mask=valid, other=float("nan")).to(tl.float32)
"""
