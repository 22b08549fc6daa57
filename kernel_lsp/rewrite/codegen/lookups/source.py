"""Triton source of bags of embeddings, and of the gradient of a table that rows are looked up in.

A program of the forward sums one bag in float32, some of its rows at a time. The backward sorts the
indices; each program then adds up the runs of equal ones in a chunk, and stores those that lie
within it. Of a run that reaches over an edge it leaves a part, and the program in whose chunk such a
run begins adds up its parts. No atomics: the order of additions is that of the indices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kernel_lsp.rewrite.codegen.core import source
from kernel_lsp.rewrite.generated import GeneratedSource

CHUNK = 32
"""Sorted indices of a program of the backward. An index that comes 100,000 times has 3,100 parts,
which one program adds up. With 64 of them and four warps a scan has 46 instructions for an element,
so and with one warp 19 and no barrier (ahead of time for sm_90)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LookupJob:
    name: str
    dtype: str
    n_features: int
    is_bag: bool
    is_mean: bool = False
    length: int | None = None
    """Of every bag; None: offsets say where they begin."""
    padding: int | None = None
    """The index whose row gets no gradient."""
    is_trained: bool
    choice: Mapping[str, Any]

    @property
    def has_offsets(self) -> bool:
        """Whether bags begin where a tensor says."""
        return self.is_bag and self.length is None

    @property
    def summary(self) -> str:
        """One line for a person."""
        if not self.is_bag:
            return "Rows of a table, whose gradient is added up by sorted indices."
        return f"The {'mean' if self.is_mean else 'sum'} of each bag of rows of a table."


FORWARD = '''\
@triton.jit
def _{name}_kernel(
    weight_ptr, indices_ptr, {offsets_ptr}out_ptr, n_bags, n_items, n_table, n_features: tl.constexpr,
    BLOCK_ITEMS: tl.constexpr, BLOCK_SIZE: tl.constexpr,
):
    """Each program computes BLOCK_SIZE features of one bag."""
    bag = tl.program_id(0).to(tl.int64)  # int64: offsets can pass 2**31
    features = tl.program_id(1) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)[None, :]
{bounds}
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
    tl.store(out_ptr + bag * n_features + features, total{mean}, mask=features < n_features)


def {launcher}(weight, indices{offsets}):
    """{summary}

    weight, out: {dtype} (n_table, {n_features}), (n_bags, {n_features})
    indices: {shape}
    """
    weight, indices = weight.contiguous(), indices.contiguous()
    n_bags, n_items = {count}, indices.numel()
    out = torch.empty((n_bags, {n_features}), dtype=weight.dtype, device=weight.device)
    if n_bags > 0:  # a grid of zero programs cannot be launched
        _{name}_kernel[(n_bags, {blocks})](
            weight, indices, {offsets_argument}out, n_bags, n_items, weight.shape[0], {n_features},
            BLOCK_ITEMS={items}, BLOCK_SIZE={block}, num_warps={warps},
        )
    return out
'''
OFFSETS = """\
    begin = tl.load(offsets_ptr + bag)
    end = tl.load(offsets_ptr + bag + 1, mask=bag + 1 < n_bags, other=n_items)"""
LENGTH = """\
    begin = bag * {length}
    end = begin + {length}"""
LOOKUP = '''\
def {launcher}(weight, indices):
    """{summary}

    weight: {dtype} (n_table, {n_features})
    indices: int64
    """
    return torch.nn.functional.embedding(indices, weight)
'''
AGAIN = """\
        if torch.is_grad_enabled():  # create_graph=True: a kernel has no derivative of its own
            again = torch.ops.aten.embedding_dense_backward
            return again(grad, indices, ctx.n_table, {padding}, False), None
"""
BACKWARD = '''\
@triton.jit
def _add_runs(left, left_begins, right, right_begins):
    """The sum of a run up to here; what begins a run forgets what was before."""
    return tl.where(right_begins > 0, right, left + right), left_begins | right_begins


@triton.jit
def _{name}_runs_kernel(
    grad_ptr, keys_ptr, rows_ptr, {sizes_ptr}grad_weight_ptr, parts_ptr, n_items, n_chunks, n_table,
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
{scale}    begins = tl.broadcast_to((key != before).to(tl.int32), [CHUNK, BLOCK_SIZE])
    sums, _ = tl.associative_scan((grad, begins), 0, _add_runs)
    ends = (key != behind) | (places == chunk * CHUNK + CHUNK - 1)  # where a run has its sum
    was = tl.load(keys_ptr + chunk * CHUNK - 1, mask=chunk > 0, other=-1)  # the first has none
    will_be = tl.load(keys_ptr + (chunk + 1) * CHUNK, mask=(chunk + 1) * CHUNK < n_items, other=-1)
    whole = (key != was) & (key != will_be)  # no other chunk has a part of the run
    known = (key >= 0) & (key < n_table){unpadded}  # others would be written to foreign memory
    tl.store(grad_weight_ptr + key * n_features + features, sums, mask=mask & ends & whole & known)
    part = parts_ptr + tl.where(key == was, chunk, n_chunks + chunk) * n_features + features
    is_part = (key == was) | (key == will_be)  # the run reaches over an edge of the chunk
    tl.store(part, sums, mask=mask & ends & is_part)


@triton.jit
def _{name}_parts_kernel(
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
    known = (key >= 0) & (key < n_table){unpadded}  # others would be written to foreign memory
    if known & (key != was) & (key == will_be):
        total = tl.load(parts_ptr + (n_chunks + chunk) * n_features + features, mask=mask, other=0.0)
        while key == will_be:
            chunk += 1
            total += tl.load(parts_ptr + chunk * n_features + features, mask=mask, other=0.0)
            end = (chunk + 1) * CHUNK
            will_be = tl.load(keys_ptr + end, mask=end < n_items, other=-1)
        tl.store(grad_weight_ptr + key * n_features + features, total, mask=mask)


def {name}_backward(grad, indices, {offsets_first}n_table):
    """The gradient of the table, of which {name} has read n_table rows.

    grad: {dtype} (n_rows, {n_features})
    grad_weight: {dtype} (n_table, {n_features})
    """
    grad = grad.contiguous()
    keys, order = torch.sort(indices.reshape(-1).to(torch.int32), stable=True)
    n_items, n_chunks = keys.numel(), (keys.numel() + {last_of_chunk}) // {chunk}
    grad_weight = torch.zeros((n_table, {n_features}), dtype=grad.dtype, device=grad.device)
    parts = torch.empty((2, n_chunks, {n_features}), dtype=torch.float32, device=grad.device)
    if n_items > 0:  # a grid of zero programs cannot be launched
        rows = {rows}
        grid = (n_chunks, {backward_blocks})
        _{name}_runs_kernel[grid](
            grad, keys, rows, {sizes_argument}grad_weight, parts, n_items, n_chunks, n_table,
            {n_features}, CHUNK={chunk}, BLOCK_SIZE={backward_block}, num_warps={backward_warps},
        )
        _{name}_parts_kernel[grid](
            keys, grad_weight, parts, n_items, n_chunks, n_table, {n_features}, CHUNK={chunk},
            BLOCK_SIZE={backward_block}, num_warps=1,
        )
    return grad_weight


class _{title}(torch.autograd.Function):
    """{summary}

    The indices alone are kept for the backward.
    """

    @staticmethod
    def forward(ctx, weight, indices{offsets}):
        ctx.save_for_backward(indices{offsets})
        ctx.n_table = weight.shape[0]
        return {name}_forward(weight, indices{offsets})

    @staticmethod{once}
    def backward(ctx, grad):
        (indices{offsets_or_comma}) = ctx.saved_tensors
{again}        return {name}_backward(grad, indices, {offsets_first}ctx.n_table), None{no_offsets}


def {name}(weight, indices{offsets}):
    return _{title}.apply(weight, indices{offsets})
'''


def emit(job: LookupJob) -> GeneratedSource:
    """Source of the kernels of a job with their launcher."""
    texts = [_forward(job), *([_backward(job)] if job.is_trained else [])]
    return source.module(job.name, texts, job.summary, ())


def _given(job: LookupJob) -> dict[str, Any]:
    """What both templates name."""
    return {
        "name": job.name,
        "title": source.title(job.name),
        "launcher": f"{job.name}_forward" if job.is_trained else job.name,
        "summary": job.summary,
        "dtype": job.dtype,
        "n_features": job.n_features,
        "offsets": ", offsets" if job.has_offsets else "",
    }


def _forward(job: LookupJob) -> str:
    if not job.is_bag:
        return LOOKUP.format(**_given(job))
    block = job.choice["BLOCK_SIZE"]
    return FORWARD.format(
        **_given(job),
        offsets_ptr="offsets_ptr, " if job.has_offsets else "",
        offsets_argument="offsets, " if job.has_offsets else "",
        bounds=OFFSETS if job.has_offsets else LENGTH.format(length=job.length),
        mean=" / tl.maximum(end - begin, 1)" if job.is_mean else "",
        shape="int64 (n_items,); offsets: int64 (n_bags,)"
        if job.has_offsets
        else f"int64 (n_bags, {job.length})",
        count="offsets.shape[0]" if job.has_offsets else "indices.shape[0]",
        blocks=-(-job.n_features // block),
        items=job.choice["BLOCK_ITEMS"],
        block=block,
        warps=job.choice["num_warps"],
    )


def _backward(job: LookupJob) -> str:
    block = min(job.choice["BACKWARD_SIZE"], source.next_power_of_two(job.n_features))
    offsets = {
        "offsets_first": "offsets, ",
        "offsets_or_comma": ", offsets",
        "no_offsets": ", None",
    }
    if not job.has_offsets:
        offsets = {"offsets_first": "", "offsets_or_comma": ",", "no_offsets": ""}
    return BACKWARD.format(
        **_given(job),
        **offsets,
        **_scaled(job),
        unpadded="" if job.padding is None else f" & (key != {job.padding})",
        rows=_rows(job),
        again=""
        if job.is_bag
        else AGAIN.format(padding=-1 if job.padding is None else job.padding),
        once="\n    @torch.autograd.function.once_differentiable" if job.is_bag else "",
        chunk=CHUNK,
        last_of_chunk=CHUNK - 1,
        backward_block=block,
        backward_blocks=-(-job.n_features // block),
        backward_warps=job.choice["backward_num_warps"],
    )


def _scaled(job: LookupJob) -> dict[str, str]:
    """What a mean divides the gradient by."""
    given = {"sizes_ptr": "", "sizes_argument": "", "scale": ""}
    if job.is_mean and job.has_offsets:
        given["sizes_ptr"] = "sizes_ptr, "
        given["sizes_argument"] = (
            "torch.diff(offsets, append=offsets.new_tensor([indices.numel()])), "
        )
        given["scale"] = "    grad = grad / tl.load(sizes_ptr + row, mask=inside, other=1)\n"
    elif job.is_mean:
        given["scale"] = f"    grad = grad / {job.length}\n"
    return given


def _rows(job: LookupJob) -> str:
    """Source of the row of the gradient for each index, in the order in which they are sorted."""
    if job.has_offsets:
        return "torch.searchsorted(offsets, order, right=True) - 1"
    return f"order // {job.length}" if job.is_bag else "order"
