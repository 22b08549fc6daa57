"""Source of the kernels of cross entropy of maps, as templates (cross_entropy_maps.py fills
them)."""

from __future__ import annotations

KERNEL = '''\
@triton.jit
def _{name}_kernel(
    logits_ptr, target_ptr, {weight_pointer}{result}_ptr, {kept_pointer}n_classes, n_positions,
    BLOCK_SIZE: tl.constexpr,
):
    """Each program handles BLOCK_SIZE positions of one image and walks over the classes."""
    program = tl.program_id(0).to(tl.int64)  # int64: offsets can pass 2**31
    n_blocks = tl.cdiv(n_positions, BLOCK_SIZE)
    offs = program % n_blocks * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    mask = offs < n_positions  # the last block of an image is not full
    image = program // n_blocks
    first = logits_ptr + image * n_classes * n_positions + offs
    lane_max = tl.full([BLOCK_SIZE], float("-inf"), tl.float32)
    lane_sum = tl.full([BLOCK_SIZE], 0.0, tl.float32)
{before}    where = first
    for {label} in range(n_classes):
        logits = tl.load(where, mask=mask, other=0.0).to(tl.float32)
        new_max = tl.maximum(lane_max, logits)
        # Lanes that saw only -inf: exp(-inf - -inf) would be NaN where it must weigh nothing.
        pivot = tl.where(new_max == float("-inf"), 0.0, new_max)
        lane_sum = lane_sum * tl.exp(lane_max - pivot) + tl.exp(logits - pivot)
        lane_max = new_max
{step}        where += n_positions
    target = tl.load(target_ptr + image * n_positions + offs, mask=mask, other={ignore})
    kept = target != {ignore}
    # Targets outside of the classes read nothing and give NaN, where eager stops with an assertion.
    valid = kept & (target >= 0) & (target < n_classes)
    picked = tl.load(first + target * n_positions, mask=valid, other=float("nan")).to(tl.float32)
    loss = tl.log(lane_sum) + (lane_max - picked)  # in this order: a common shift of the logits cancels
{keep}{weighted}{smoothed}    loss = tl.where(kept, loss, 0.0)
{store}'''

STORE = {
    "none": "    tl.store(loss_ptr + image * n_positions + offs, loss, mask=mask)\n",
    "mean": """\
    tl.store(partial_ptr + program, tl.sum(loss, axis=0))
    tl.store(partial_ptr + tl.num_programs(0) + program, tl.sum(tl.where(kept, {weight}, 0.0), axis=0))
""",
    "sum": "    tl.store(partial_ptr + program, tl.sum(loss, axis=0))\n",
}
WEIGHTED = """\
    weight = tl.load(weight_ptr + target, mask=valid, other=1.0).to(tl.float32)
    loss *= weight
"""
BEFORE = """\
    anchor = tl.load(first, mask=mask, other=0.0).to(tl.float32)
    anchor = tl.where(tl.abs(anchor) < float("inf"), anchor, 0.0)  # a common shift costs no digits
    lane_total = tl.full([BLOCK_SIZE], 0.0, tl.float32)
"""
SMOOTHING = {
    False: {
        "before": BEFORE,
        "step": "        lane_total += logits - anchor\n",
        "smoothed": """\
    every = tl.log(lane_sum) + (lane_max - anchor) - lane_total / n_classes  # mean over classes
    loss = {rest} * loss + {smoothing} * every
""",
    },
    True: {
        "before": BEFORE + "    all_weights = 0.0\n",
        "step": """\
        class_weight = tl.load(weight_ptr + label).to(tl.float32)
        lane_total += class_weight * (logits - anchor)
        all_weights += class_weight
""",
        "smoothed": """\
    every = all_weights * (tl.log(lane_sum) + (lane_max - anchor)) - lane_total
    loss = {rest} * loss + {smoothing} * (every / n_classes)
""",
    },
}
"""What smoothed labels add to the kernel, by whether classes have weights."""

TOTAL = '''\
@triton.jit
def _{name}_total_kernel(partial_ptr, out_ptr, {count_pointer}n_programs, BLOCK_SIZE: tl.constexpr):
    """One program adds what the others left, in a fixed order."""
    lane_sum = tl.full([BLOCK_SIZE], 0.0, tl.float32)
{before}    for start in range(0, n_programs, BLOCK_SIZE):
        offs = start + tl.arange(0, BLOCK_SIZE)
        mask = offs < n_programs  # the last block is not full
        lane_sum += tl.load(partial_ptr + offs, mask=mask, other=0.0)
{step}    tl.store(out_ptr, tl.sum(lane_sum, axis=0){divided})
{store}'''
COUNTED = {
    "before": "    lane_count = tl.full([BLOCK_SIZE], 0.0, tl.float32)\n",
    "step": "        lane_count += tl.load(partial_ptr + n_programs + offs, mask=mask, "
    "other=0.0)\n",
    "divided": " / tl.sum(lane_count, axis=0)",
}
"""What a mean adds."""

KEEP = """\
    log_sum = log_sum_ptr + image * 2 * n_positions + offs
    tl.store(log_sum, lane_max, mask=mask)  # apart: their sum would lose digits
    tl.store(log_sum + n_positions, tl.log(lane_sum), mask=mask)
"""
"""What a backward needs of each position."""

BACKWARD = '''\
@triton.jit
def _{name}_backward_kernel(
    logits_ptr, target_ptr, {weight_pointer}log_sum_ptr, {scale_pointers}, grad_logits_ptr, n_classes,
    n_positions, BLOCK_SIZE: tl.constexpr,
):
    """Each program handles BLOCK_SIZE positions: probability, less one at the target, times the gradient."""
    program = tl.program_id(0).to(tl.int64)  # int64: offsets can pass 2**31
    n_blocks = tl.cdiv(n_positions, BLOCK_SIZE)
    offs = program % n_blocks * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    mask = offs < n_positions  # the last block of an image is not full
    image = program // n_blocks
    target = tl.load(target_ptr + image * n_positions + offs, mask=mask, other={ignore})
    log_sum = log_sum_ptr + image * 2 * n_positions + offs
    lane_max, lane_sum = tl.load(log_sum, mask=mask), tl.load(log_sum + n_positions, mask=mask)
    scale = {scale}
{weighted}    where = image * n_classes * n_positions + offs
    for label in range(n_classes):
        logits = tl.load(logits_ptr + where, mask=mask).to(tl.float32)
        probability = tl.exp((logits - lane_max) - lane_sum)
        grad = (probability - tl.where(target == label, {rest}, 0.0){smoothed}) * scale
        tl.store(grad_logits_ptr + where, tl.where(target == {ignore}, 0.0, grad), mask=mask)
        where += n_positions


class _{title}(torch.autograd.Function):
    """Cross entropy; two numbers a position are kept, and the backward makes the probabilities again."""

    @staticmethod
    def forward(ctx, {names}):
        out, *ctx.kept = {name}_forward({names})
        ctx.save_for_backward({names})
        return out

    @staticmethod
    def backward(ctx, grad_out):
        if torch.is_grad_enabled():  # create_graph=True: a kernel has no derivative of its own
            return differentiate_again(ctx, {name}_eager, grad_out)
        {names} = (item.contiguous() for item in ctx.saved_tensors)
        grad_out, n_classes, n_positions = grad_out.contiguous(), logits.shape[1], logits.shape[2:].numel()
        grad_logits = torch.empty_like(logits)
        n_programs = logits.shape[0] * ({blocks})
        if n_programs > 0:  # a grid of zero programs cannot be launched
            _{name}_backward_kernel[(n_programs,)](
                {names}, ctx.kept[0], {scale_values}, grad_logits, n_classes, n_positions,
                BLOCK_SIZE={block}, num_warps={warps},
            )
        return grad_logits, {nothing}


def {name}_eager({names}):
    """The same in PyTorch, for gradients of gradients."""
    return torch.nn.functional.cross_entropy(logits, target{settings})


def {name}({names}):
    return _{title}.apply({names})
'''
SCALED = """\
    valid = (target >= 0) & (target < n_classes)
    scale *= tl.load(weight_ptr + target, mask=valid, other=float("nan")).to(tl.float32)
"""
