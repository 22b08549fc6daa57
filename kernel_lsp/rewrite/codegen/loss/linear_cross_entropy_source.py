"""Source of a linear layer with its cross entropy, as templates (linear_cross_entropy.py fills
them)."""

from __future__ import annotations

from kernel_lsp.rewrite.codegen.loss.cross_entropy_source import LOSS, PICKED, ROW_SUM

KERNEL = f'''\
@triton.jit
def _{{name}}_kernel(
    logits_ptr, target_ptr, scale_ptr, loss_ptr, n_cols, row_stride,
    WITH_GRAD: tl.constexpr, BLOCK_SIZE: tl.constexpr,
):
    """Each program handles one row: its loss, and the gradient in the place of its logits."""
    row = tl.program_id(0).to(tl.int64)  # int64: row * row_stride can pass 2**31
    logits_ptr += row * row_stride
{PICKED}{ROW_SUM}    log_sum = tl.log(row_sum)
{LOSS}{{smoothed}}    tl.store(loss_ptr + row, tl.where(kept, loss, 0.0))
    if WITH_GRAD:
        scale = tl.load(scale_ptr).to(tl.float32)
        for start in range(0, row_stride, BLOCK_SIZE):
            cols = start + tl.arange(0, BLOCK_SIZE)
            mask = cols < row_stride
            logits = tl.load(logits_ptr + cols, mask=mask, other=0.0).to(tl.float32)
            grad = tl.exp((logits - row_max) - log_sum) - tl.where(cols == target, {{rest}}, 0.0){{less}}
            grad = tl.where(kept & (cols < n_cols), grad * scale, 0.0)
            tl.store(logits_ptr + cols, grad, mask=mask)
'''
ROW = {
    "row_logits": "logits_ptr",
    "row_stride": "row_stride",
    "log_sum": "log_sum",
    "load": """\
        mask = cols < n_cols  # behind them the row is filled up
        logits = tl.load(logits_ptr + cols, mask=cols < row_stride, other=0.0).to(tl.float32)
        logits = tl.where(mask, logits, float("-inf"))
""",
}
"""Where this kernel finds its row."""
LESS = " - {smoothing} / n_cols"
"""What smoothed labels take from the gradient of every class."""

OPERANDS = '''\
def {name}_filled(x, weight, target{bias}):
    """The operands, rows and classes filled up so that tensor cores read them in full width."""
    x, weight, target = x.contiguous(), weight.contiguous(), target.contiguous()
{filled}    fill = -x.shape[0] % {rows}  # rows of no class, which weigh nothing
    if fill:
        x = torch.nn.functional.pad(x, (0, 0, 0, fill))
        target = torch.nn.functional.pad(target, (0, fill), value={ignore})
    return x, weight, target{bias}


def {name}_rows(logits, target, loss, scale):
    """Write each row's loss: logits [rows, {row_stride}], target and loss [rows]; their gradient goes in
    the place of the logits where there is a scale for it."""
    if logits.shape[0] > 0:  # a grid of zero programs cannot be launched
        _{name}_kernel[(logits.shape[0],)](
            logits, target, loss if scale is None else scale, loss, {classes}, {row_stride},
            WITH_GRAD=scale is not None, BLOCK_SIZE={block}, num_warps={warps},
        )
'''
FILLED = """\
    weight = torch.nn.functional.pad(weight, (0, 0, 0, {fill}))
"""
FILLED_BIAS = """\
    bias = torch.nn.functional.pad(bias, (0, {fill}))
"""

EARLY = '''\
def {name}_parts(x, weight, target{bias}, needed):
    """The loss, and its gradient for each operand that ``needed`` names (None for the others)."""
    n_rows = x.shape[0]
    x, weight, target{bias} = {name}_filled(x, weight, target{bias})
    loss = torch.empty(x.shape[0], dtype=torch.float32, device=x.device)
    {measure}
    grad_x = torch.empty_like(x) if needed[0] else None
    grad_weight = {weight_start}
{bias_start}    size = max(1, {size})  # rows whose logits are there at a time
    for start in range(0, max(1, x.shape[0]), size):
        rows = slice(start, start + size)
        part = x[rows]
        logits = {product_of_part}
        {name}_rows(logits, target[rows], loss[rows], 1.0 / count if any(needed) else None)
        if needed[0]:
            torch.mm(logits, weight, out=grad_x[rows])
        if needed[1]:
            grad_weight {add}= torch.mm(logits.t(), part)
{bias_step}    if needed[0]:
        grad_x = grad_x[:n_rows]
    if needed[1]:
        grad_weight = grad_weight{cut}.to(weight.dtype)
{bias_end}    return (loss.sum() / count).to(torch.{dtype}), (grad_x, grad_weight{bias_grad})


class _{title}(torch.autograd.Function):
    """A linear layer and its cross entropy; the forward makes the gradients while the logits are there."""

    @staticmethod
    def forward(ctx, x, weight, target{bias}):
        out, ctx.kept = {name}_parts(x, weight, target{bias}, ctx.needs_input_grad)
        ctx.save_for_backward(x, weight, target{bias})
        return out

    @staticmethod
    def backward(ctx, grad_out):
        if torch.is_grad_enabled():  # create_graph=True: a kernel has no derivative of its own
            return differentiate_again(ctx, {name}_eager, grad_out)
        kept, ctx.kept = ctx.kept, None
        if kept is None:  # a second backward of one graph: the first has scaled them in place
            kept = {name}_parts(*ctx.saved_tensors, ctx.needs_input_grad)[1]
        grad_x, grad_weight{bias_grad} = (grad if grad is None else grad.mul_(grad_out) for grad in kept)
        return grad_x, grad_weight, None{bias_grad}
'''
"""Gradients in the forward pass, before the gradient of the loss is known."""

LATE = '''\
class _{title}(torch.autograd.Function):
    """A linear layer and its cross entropy; the backward puts the gradients in the place of the logits."""

    @staticmethod
    def forward(ctx, x, weight, target{bias}):
        ctx.save_for_backward(x, weight, target{bias})
        x, weight, target{bias} = {name}_filled(x, weight, target{bias})
        loss = torch.empty(x.shape[0], dtype=torch.float32, device=x.device)
        {measure}
        logits = {product}
        {name}_rows(logits, target, loss, None)
        if any(ctx.needs_input_grad):
            ctx.kept = logits
        return (loss.sum() / count).to(torch.{dtype})

    @staticmethod
    def backward(ctx, grad_out):
        if torch.is_grad_enabled():  # create_graph=True: a kernel has no derivative of its own
            return differentiate_again(ctx, {name}_eager, grad_out)
        n_rows, needed = ctx.saved_tensors[0].shape[0], ctx.needs_input_grad
        x, weight, target{bias} = {name}_filled(*ctx.saved_tensors)
        logits, ctx.kept = ctx.kept, None
        if logits is None:  # a second backward of one graph: the first has overwritten them
            logits = {product}
        {measure}
        loss = torch.empty(x.shape[0], dtype=torch.float32, device=x.device)
        {name}_rows(logits, target, loss, grad_out / count)
        grad_x = torch.mm(logits, weight)[:n_rows] if needed[0] else None
        grad_weight = torch.mm(logits.t(), x){cut} if needed[1] else None
{late_bias}        return grad_x, grad_weight, None{bias_grad}
'''
"""Gradients in the backward pass, scaled as the loss is: what float16 needs."""
LATE_BIAS = """\
        grad_bias = logits.sum(0, dtype=torch.float32){cut}.to(bias.dtype) if needed[3] else None
"""

EAGER = '''\
def {name}_eager(x, weight, target{bias}):
    """The same in PyTorch, for gradients of gradients."""
    logits = torch.nn.functional.linear(x, weight{bias})
    return torch.nn.functional.cross_entropy(logits{wide}, target{settings})


def {name}(x, weight, target{bias}):
    return _{title}.apply(x, weight, target{bias})
'''
MEAN = "count = (target != {ignore}).sum().to(torch.float32)"
SUM = "count = torch.ones((), dtype=torch.float32, device=x.device)  # a sum is divided by nothing"
BIAS_START = """\
    grad_bias = 0.0 if needed[3] else None
"""
BIAS_STEP = """\
        if needed[3]:
            grad_bias = grad_bias + logits.sum(0, dtype=torch.float32)
"""
BIAS_END = """\
    if needed[3]:
        grad_bias = grad_bias{cut}.to(bias.dtype)
"""
