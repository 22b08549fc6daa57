"""The sparse features of a recommendation model, a bag of them for each user."""

import torch.nn as nn
import torch.nn.functional as F
import torch
import triton
import triton.language as tl


@triton.jit
def _bag_of_rows_kernel(
    weight_ptr, indices_ptr, out_ptr, n_bags, n_items, n_table, n_features: tl.constexpr,
    BLOCK_ITEMS: tl.constexpr, BLOCK_SIZE: tl.constexpr,
):
    """Each program computes BLOCK_SIZE features of one bag."""
    bag = tl.program_id(0).to(tl.int64)  # int64: offsets can pass 2**31
    features = tl.program_id(1) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)[None, :]
    begin = bag * 20
    end = begin + 20
    total = tl.zeros([1, BLOCK_SIZE], tl.float32)
    for first in range(begin, end, BLOCK_ITEMS):
        items = first + tl.arange(0, BLOCK_ITEMS)[:, None]
        inside = items < end  # the last block of a bag is not full
        index = tl.load(indices_ptr + items, mask=inside, other=0).to(tl.int64)
        known = (index >= 0) & (index < n_table)  # others would read foreign memory
        where = weight_ptr + index * n_features + features
        rows = tl.load(where, mask=inside & known & (features < n_features), other=0.0).to(tl.float32)
        rows = tl.where(known, rows, float("nan"))
        total += tl.sum(rows, axis=0)[None, :]
    tl.store(out_ptr + bag * n_features + features, total / tl.maximum(end - begin, 1), mask=features < n_features)


def bag_of_rows_forward(weight, indices):
    """The mean of each bag of rows of a table.

    weight, out: float32 (n_table, 64), (n_bags, 64)
    indices: int64 (n_bags, 20)
    """
    weight, indices = weight.contiguous(), indices.contiguous()
    n_bags, n_items = indices.shape[0], indices.numel()
    out = torch.empty((n_bags, 64), dtype=weight.dtype, device=weight.device)
    if n_bags > 0:  # a grid of zero programs cannot be launched
        _bag_of_rows_kernel[(n_bags, 1)](
            weight, indices, out, n_bags, n_items, weight.shape[0], 64,
            BLOCK_ITEMS=16, BLOCK_SIZE=64, num_warps=2,
        )
    return out


@triton.jit
def _add_runs(left, left_begins, right, right_begins):
    """The sum of a run up to here; what begins a run forgets what was before."""
    return tl.where(right_begins > 0, right, left + right), left_begins | right_begins


@triton.jit
def _bag_of_rows_runs_kernel(
    grad_ptr, keys_ptr, rows_ptr, grad_weight_ptr, parts_ptr, n_items, n_chunks, n_table,
    n_features: tl.constexpr, CHUNK: tl.constexpr, BLOCK_SIZE: tl.constexpr,
):
    """Each program adds up the runs of equal indices in a chunk, for BLOCK_SIZE features."""
    chunk = tl.program_id(0).to(tl.int64)  # int64: offsets can pass 2**31
    features = tl.program_id(1) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)[None, :]
    places = chunk * CHUNK + tl.arange(0, CHUNK)[:, None]
    inside = places < n_items  # the last chunk is not full
    key = tl.load(keys_ptr + places, mask=inside, other=-1).to(tl.int64)
    before = tl.load(keys_ptr + places - 1, mask=inside & (places > 0), other=-1)  # the first has none
    behind = tl.load(keys_ptr + places + 1, mask=places + 1 < n_items, other=-1)
    row = tl.load(rows_ptr + places, mask=inside, other=0)
    mask = inside & (features < n_features)  # BLOCK_SIZE may not divide the features
    grad = tl.load(grad_ptr + row * n_features + features, mask=mask, other=0.0).to(tl.float32)
    grad = grad / 20
    begins = tl.broadcast_to((key != before).to(tl.int32), [CHUNK, BLOCK_SIZE])
    sums, _ = tl.associative_scan((grad, begins), 0, _add_runs)
    ends = (key != behind) | (places == chunk * CHUNK + CHUNK - 1)  # where a run has its sum
    was = tl.load(keys_ptr + chunk * CHUNK - 1, mask=chunk > 0, other=-1)  # the first has none
    will_be = tl.load(keys_ptr + (chunk + 1) * CHUNK, mask=(chunk + 1) * CHUNK < n_items, other=-1)
    whole = (key != was) & (key != will_be)  # no other chunk has a part of the run
    known = (key >= 0) & (key < n_table)  # others would be written to foreign memory
    tl.store(grad_weight_ptr + key * n_features + features, sums, mask=mask & ends & whole & known)
    part = parts_ptr + tl.where(key == was, chunk, n_chunks + chunk) * n_features + features
    is_part = (key == was) | (key == will_be)  # the run reaches over an edge of the chunk
    tl.store(part, sums, mask=mask & ends & is_part)


@triton.jit
def _bag_of_rows_parts_kernel(
    keys_ptr, grad_weight_ptr, parts_ptr, n_items, n_chunks, n_table, n_features: tl.constexpr,
    CHUNK: tl.constexpr, BLOCK_SIZE: tl.constexpr,
):
    """Each program adds up the parts of the run that begins in its chunk and reaches over its end."""
    chunk = tl.program_id(0).to(tl.int64)  # int64: offsets can pass 2**31
    features = tl.program_id(1) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    mask = features < n_features  # BLOCK_SIZE is rounded up to a power of two
    goes_on = (chunk + 1) * CHUNK < n_items  # another chunk is behind it
    key = tl.load(keys_ptr + (chunk + 1) * CHUNK - 1, mask=goes_on, other=-1).to(tl.int64)
    was = tl.load(keys_ptr + chunk * CHUNK - 1, mask=goes_on & (chunk > 0), other=-1)  # the first has none
    will_be = tl.load(keys_ptr + (chunk + 1) * CHUNK, mask=goes_on, other=-2)
    known = (key >= 0) & (key < n_table)  # others would be written to foreign memory
    if known & (key != was) & (key == will_be):
        total = tl.load(parts_ptr + (n_chunks + chunk) * n_features + features, mask=mask, other=0.0)
        while key == will_be:
            chunk += 1
            total += tl.load(parts_ptr + chunk * n_features + features, mask=mask, other=0.0)
            end = (chunk + 1) * CHUNK
            will_be = tl.load(keys_ptr + end, mask=end < n_items, other=-1)
        tl.store(grad_weight_ptr + key * n_features + features, total, mask=mask)


def bag_of_rows_backward(grad, indices, n_table):
    """The gradient of the table, of which bag_of_rows has read n_table rows.

    grad: float32 (n_rows, 64)
    grad_weight: float32 (n_table, 64)
    """
    grad = grad.contiguous()
    keys, order = torch.sort(indices.reshape(-1).to(torch.int32), stable=True)
    n_items, n_chunks = keys.numel(), (keys.numel() + 31) // 32
    grad_weight = torch.zeros((n_table, 64), dtype=grad.dtype, device=grad.device)
    parts = torch.empty((2, n_chunks, 64), dtype=torch.float32, device=grad.device)
    if n_items > 0:  # a grid of zero programs cannot be launched
        rows = order // 20
        grid = (n_chunks, 1)
        _bag_of_rows_runs_kernel[grid](
            grad, keys, rows, grad_weight, parts, n_items, n_chunks, n_table,
            64, CHUNK=32, BLOCK_SIZE=64, num_warps=1,
        )
        _bag_of_rows_parts_kernel[grid](
            keys, grad_weight, parts, n_items, n_chunks, n_table, 64, CHUNK=32,
            BLOCK_SIZE=64, num_warps=1,
        )
    return grad_weight


class _BagOfRows(torch.autograd.Function):
    """The mean of each bag of rows of a table.

    The indices alone are kept for the backward.
    """

    @staticmethod
    def forward(ctx, weight, indices):
        ctx.save_for_backward(indices)
        ctx.n_table = weight.shape[0]
        return bag_of_rows_forward(weight, indices)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):
        (indices,) = ctx.saved_tensors
        return bag_of_rows_backward(grad, indices, ctx.n_table), None


def bag_of_rows(weight, indices):
    return _BagOfRows.apply(weight, indices)


# kernel-lsp: workload train words=i64[16384,20]
class Bags(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(200000, 64)

    def _forward_eager(self, words):
        return F.embedding_bag(words, self.table.weight, mode="mean")

    def forward(self, words):
        # Verified on cuda for words: int64 (16384, 20).
        # Anything that the reasoning below does not cover takes the original path.
        if not (
            words.is_cuda
            and words.dtype == torch.int64
            and words.shape[1:] == (20,)
            and not torch.is_autocast_enabled("cuda")
            and (table_weight := self.table.weight).dtype == torch.float32
            and table_weight.shape == (200000, 64)
            and words.is_contiguous()
            and not torch._C._are_functorch_transforms_active()
            and words.get_device() == torch.cuda.current_device()
        ):
            return self._forward_eager(words)
        return bag_of_rows(table_weight, words)
