"""Attention with a bias for distance and a causal mask, written by hand."""

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def _flash_attention_kernel(
    q_ptr, k_ptr, v_ptr, distance_ptr, out_ptr, stride_q_batch, stride_q_head, stride_q_query,
    stride_q_inner, stride_k_batch, stride_k_head, stride_k_key, stride_k_inner, stride_v_batch,
    stride_v_head, stride_v_key, stride_v_inner, stride_out_batch, stride_out_head, stride_out_query,
    stride_out_inner, stride_distance_head, stride_distance_query, stride_distance_key, heads, n_queries,
    n_keys, BLOCK_QUERIES: tl.constexpr, BLOCK_KEYS: tl.constexpr, BLOCK_INNER: tl.constexpr,
    BLOCK_COLUMNS: tl.constexpr,
):
    """Each program handles BLOCK_QUERIES queries of one head."""
    tiles = tl.cdiv(n_queries, BLOCK_QUERIES)
    tile = tiles - 1 - tl.program_id(0) % tiles  # longest first
    head = ((tl.program_id(0) // tiles) % heads).to(tl.int64)  # int64: offsets can pass 2**31
    batch = (tl.program_id(0) // (tiles * heads)).to(tl.int64)
    queries = tile * BLOCK_QUERIES + tl.arange(0, BLOCK_QUERIES)
    present = queries < n_queries  # the last tile is not full
    query = queries.to(tl.int64)[:, None]
    inner = tl.arange(0, BLOCK_INNER)
    columns = tl.arange(0, BLOCK_COLUMNS)
    q_here = q_ptr + batch * stride_q_batch + head * stride_q_head + query * stride_q_query + inner[None, :] * stride_q_inner
    q = tl.load(q_here, mask=present[:, None], other=0.0)
    k_base = k_ptr + batch * stride_k_batch + head * stride_k_head + inner[None, :] * stride_k_inner
    v_base = v_ptr + batch * stride_v_batch + head * stride_v_head + columns[None, :] * stride_v_inner
    end = tl.minimum(n_keys, (tile + 1) * BLOCK_QUERIES)  # no query of this tile sees a later key
    row_max = tl.full([BLOCK_QUERIES], float("-inf"), tl.float32)
    row_sum = tl.full([BLOCK_QUERIES], 0.0, tl.float32)
    acc = tl.zeros([BLOCK_QUERIES, BLOCK_COLUMNS], tl.float32)
    for start in range(0, end, BLOCK_KEYS):
        keys = start + tl.arange(0, BLOCK_KEYS)
        first = tl.cast(start, tl.int64)  # int64: offsets can pass 2**31
        near = tl.arange(0, BLOCK_KEYS)[:, None]
        k_here = k_base + first * stride_k_key + near * stride_k_key
        k = tl.load(k_here, mask=(keys < n_keys)[:, None], other=0.0)
        products = tl.dot(q, tl.trans(k), input_precision="bf16x6")
        hidden = keys[None, :] >= queries[:, None] + 1
        scaled = products * 0.125
        here_2 = present[:, None] & (keys < n_keys)[None, :]  # neither tile needs to be full
        distance_here = distance_ptr + head * stride_distance_head + query * stride_distance_query
        distance = tl.load(distance_here + keys.to(tl.int64)[None, :] * stride_distance_key, mask=here_2, other=0)
        scores = scaled + distance
        masked_fill = tl.where(hidden, float("-inf"), scores)
        kept = tl.where((keys < n_keys)[None, :], masked_fill, float("-inf"))  # the last tile is not full
        new_max = tl.maximum(row_max, tl.max(kept, axis=1))
        # Queries that saw only -inf: -inf - -inf would be NaN where it must weigh nothing.
        pivot = tl.where(new_max == float("-inf"), 0.0, new_max)
        weights = tl.exp(kept - pivot[:, None])
        decay = tl.exp(row_max - pivot)  # of what was summed so far
        row_sum = row_sum * decay + tl.sum(weights, axis=1)
        acc = acc * decay[:, None]
        row_max = new_max
        v_here = v_base + first * stride_v_key + near * stride_v_key
        v = tl.load(v_here, mask=(keys < n_keys)[:, None], other=0.0)
        acc += tl.dot(weights, v, input_precision="bf16x6")
    acc = acc / row_sum[:, None]  # a query that sees no key is 0 / 0, as in torch
    out_here = out_ptr + batch * stride_out_batch + head * stride_out_head + query * stride_out_query
    tl.store(out_here + columns[None, :] * stride_out_inner, acc, mask=present[:, None])


def flash_attention(q, k, v, distance):
    """Attention (mul, add, masked_fill, softmax) tile by tile: the scores never reach memory.

    q: float32 (batch, heads, n_queries, head_size)
    k: float32 (batch, heads, n_keys, head_size)
    v: float32 (batch, heads, n_keys, value_size)
    distance: float32 (1, heads, n_queries, n_keys)
    out: float32 (batch, heads, n_queries, value_size)
    """
    batch, heads, n_queries, _ = q.shape
    n_keys = k.shape[-2]
    out = torch.empty((batch, n_queries, heads, v.shape[-1]), dtype=q.dtype, device=q.device)
    out = out.transpose(1, 2)  # heads are merged next: then without a copy
    grid = ((n_queries + 127) // 128 * batch * heads,)
    if out.numel() > 0:  # a grid of zero programs cannot be launched
        _flash_attention_kernel[grid](
            q, k, v, distance, out, q.stride(0), q.stride(1), q.stride(2), q.stride(3), k.stride(0),
            k.stride(1), k.stride(2), k.stride(3), v.stride(0), v.stride(1), v.stride(2), v.stride(3),
            out.stride(0), out.stride(1), out.stride(2), out.stride(3), distance.stride(0),
            distance.stride(1), distance.stride(2), heads, n_queries, n_keys, BLOCK_QUERIES=128,
            BLOCK_KEYS=64, BLOCK_INNER=64, BLOCK_COLUMNS=64, num_warps=8,
        )
    return out


# kernel-lsp: workload x=f32[8,512,512]
class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(512, 1536)
        self.distance = nn.Parameter(torch.zeros(8, 512, 512))

    def _forward_eager(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, 8, 64).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-2, -1) * 64**-0.5 + self.distance
        hidden = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
        weights = torch.softmax(scores.masked_fill(hidden, float("-inf")), dim=-1)
        return (weights @ v).transpose(1, 2).reshape(batch, length, width)

    def forward(self, x):
        # Verified on cuda for x: float32 (8, 512, 512).
        # Anything that the reasoning below does not cover takes the original path.
        if not (
            x.is_cuda
            and x.dtype == torch.float32
            and x.shape == (8, 512, 512)
            and not torch.is_autocast_enabled("cuda")
            and (distance := self.distance).dtype == torch.float32
            and distance.shape == (8, 512, 512)
            and (qkv_weight := self.qkv.weight).dtype == torch.float32
            and qkv_weight.shape == (1536, 512)
            and x.is_contiguous()
            and not torch._C._are_functorch_transforms_active()
            and x.get_device() == torch.cuda.current_device()
            and not (torch.is_grad_enabled() and (x.requires_grad or distance.requires_grad
                or any(p.requires_grad for p in self.parameters())))
        ):
            return self._forward_eager(x)
        unbind = torch.unbind(self.qkv(x).view(8, 512, 3, 8, 64).permute(2, 0, 3, 1, 4))
        attended = flash_attention(unbind[0], unbind[1], unbind[2], distance)
        return attended.transpose(1, 2).reshape(8, 512, 512)
