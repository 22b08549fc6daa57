"""flash-attention: attention in the spellings of people, near misses in these, and the library."""

import pytest
from codegen_helpers import for_values, matches, rewritten

from kernel_lsp.records import Step

pytestmark = pytest.mark.torch
pytest.importorskip("torch")

# The interpreter knows no bf16x6.
SMALL = {"BLOCK_QUERIES": 16, "BLOCK_KEYS": 16, "precision": "tf32x3"}
# heads inside
INNER = "torch.randn(2, 17, 3, 16), torch.randn(2, 20, 3, 16), torch.randn(2, 20, 3, 24)"
OUTER = "torch.randn(2, 3, 20, 16), torch.randn(2, 3, 20, 16), torch.randn(2, 3, 20, 16)"
CROSS = "torch.randn(2, 3, 17, 32), torch.randn(2, 3, 20, 32), torch.randn(2, 3, 20, 32)"
FLAT = "torch.randn(6, 17, 80), torch.randn(6, 20, 80), torch.randn(6, 20, 80)"
GROUPED = "torch.randn(2, 6, 17, 16), torch.randn(2, 2, 20, 16), torch.randn(2, 2, 20, 16)"
# keys without heads
SHARED = "torch.randn(2, 17, 3, 16), torch.randn(2, 20, 16), torch.randn(2, 20, 16)"
ROWS = "(torch.arange(17) % 5 == 0)[:, None].expand(17, 20)"  # some queries see no key
HELPER = """
def repeat_kv(x, n):
    b, h, l, d = x.shape
    return x[:, :, None, :, :].expand(b, h, n, l, d).reshape(b, h * n, l, d)

"""


def module(body: str, inputs: str, *, arguments: str = "q, k, v", init: str = "") -> str:
    setup = (
        f"    def __init__(self):\n        super().__init__()\n        {init}\n\n" if init else ""
    )
    lines = "\n".join(f"        {line}" for line in body.splitlines())
    return (
        f"import torch\nimport torch.nn as nn\nimport torch.nn.functional as F\n\n{HELPER}\n"
        f"class Model(nn.Module):\n{setup}    def forward(self, {arguments}):\n{lines}\n\n\n"
        f"def get_inputs():\n    return [{inputs}]\n"
    )


def half(inputs: str) -> str:
    return inputs.replace("16)", "16, dtype=torch.float16)")


EINSUM = "s = torch.einsum('bqhd,bkhd->bhqk', q, k) / 4\n"
SUMMED = "return torch.einsum('bhqk,bkhd->bqhd', s.softmax(-1), v)"

SPELLED = {
    "heads inside": (EINSUM + SUMMED, INNER),
    "heads outside": (
        "s = torch.einsum('bhqd,bhkd->bhqk', q, k) / 4\n"
        "return torch.einsum('bhqk,bhkd->bhqd', s.softmax(-1), v)", OUTER),
    "an ellipsis": (
        "s = torch.einsum('...qd,...kd->...qk', q, k) / 4\n"
        "return torch.einsum('...qk,...kd->...qd', s.softmax(-1), v)", CROSS),
    "factors swapped": (
        "s = torch.einsum('bkhd,bqhd->bhqk', k, q) / 4\n"
        "return torch.einsum('bkhd,bhqk->bqhd', v, s.softmax(-1))", INNER),
    "heads in front": (
        "s = torch.einsum('bqhd,bkhd->hbqk', q, k) / 4\n"
        "return torch.einsum('hbqk,bkhd->bqhd', s.softmax(-1), v)", INNER),
    "queries before heads": (
        "s = torch.einsum('bqhd,bkhd->bqhk', q, k) / 4\n"
        "return torch.einsum('bqhk,bkhd->bqhd', s.softmax(-1), v)", INNER),
    "only the first an einsum": (
        "s = torch.einsum('bhqd,bhkd->bhqk', q, k) / 4\nreturn s.softmax(-1) @ v", CROSS),
    "only the second an einsum": (
        "s = q @ k.transpose(-1, -2) / 4\n"
        "return torch.einsum('bhqk,bhkd->bqhd', s.softmax(-1), v).flatten(2)",
        CROSS),
    "keys without heads": (
        "s = torch.einsum('bqhd,bkd->bhqk', q, k) / 4\n"
        "return torch.einsum('bhqk,bkd->bqhd', s.softmax(-1), v)", SHARED),
    "heads and queries flattened": (
        "b, l, h, d = q.shape\n"
        "s = torch.bmm(q.reshape(b, l * h, d), k.transpose(1, 2)).view(b, l, h, -1) / 4\n"
        "return torch.bmm(s.softmax(-1).view(b, l * h, -1), v).view(b, l, h * d)", SHARED),
    "groups by einsum": (
        "q = q.unflatten(1, (2, 3))\ns = torch.einsum('bngqd,bnkd->bngqk', q, k) / 4\n"
        "return torch.einsum('bngqk,bnkd->bngqd', s.softmax(-1), v).flatten(1, 2)", GROUPED),
    "groups by broadcasting": (
        "b, h, l, d = q.shape\ns = q.view(b, 2, 3, l, d) @ k[:, :, None].transpose(-2, -1) / 4\n"
        "return (s.softmax(-1) @ v[:, :, None]).reshape(b, h, l, d)", GROUPED),
    "groups inside queries": (
        "b, h, l, d = q.shape\n"
        "s = (q.reshape(b, 2, 3 * l, d) @ k.transpose(-2, -1)).view(b, 2, 3, l, 20) / 4\n"
        "return (s.softmax(-1).view(b, 2, 3 * l, 20) @ v).view(b, h, l, d)", GROUPED),
    "flattened heads": (
        "b, h, l, d = q.shape\nq, k, v = (t.flatten(0, 1) for t in (q, k, v))\n"
        "return torch.bmm((torch.bmm(q, k.mT) / 4).softmax(-1), v).view(b, h, l, d)", CROSS),
    "baddbmm that reads nothing": (
        "e = torch.empty(6, 17, 20, dtype=q.dtype, device=q.device)\n"
        "s = torch.baddbmm(e, q, k.transpose(1, 2), beta=0, alpha=0.25)\nreturn "
        "torch.bmm(s.softmax(-1), v)",
        FLAT),
    "keys before queries": (
        "s = k @ q.transpose(-2, -1) / 4\nreturn s.softmax(dim=-2).transpose(-2, -1) @ v", CROSS),
    "values in front": (
        "s = torch.bmm(q, k.transpose(1, 2)) * 0.3\nw = s.softmax(2).permute(0, 2, 1)\n"
        "return torch.bmm(v.transpose(1, 2), w)", FLAT),
    "matrices": (
        "return torch.softmax(q @ k.t() / 4, -1) @ v",
        "torch.randn(17, 16), torch.randn(20, 16), torch.randn(20, 16)"),
    "softmax in float32": (
        EINSUM + "w = s.float().softmax(-1).to(q.dtype)\nreturn "
                 "torch.einsum('bhqk,bkhd->bqhd', w, v)",
        half(INNER).replace("24)", "24, dtype=torch.float16)")),
    "all scores in float32": (
        "s = q.float() @ repeat_kv(k, 3).float().transpose(2, 3) * 0.3\n"
        "return s.softmax(-1).to(v.dtype) @ repeat_kv(v, 3)", half(GROUPED)),
    "dropout of nothing": (
        EINSUM + "w = F.dropout(s.softmax(-1), 0.0, True)\n"
        "return torch.einsum('bhqk,bkhd->bqhd', w, v)", INNER),
    "one query, one head, one batch": (
        EINSUM + SUMMED, "torch.randn(1, 1, 1, 16), torch.randn(1, 20, 1, 16), torch.randn(1, "
                         "20, 1, 16)"),
    "triangle of -inf": (
        "s = torch.einsum('bhqd,bhkd->bhqk', q, k) + torch.full((20, 20), float('-inf')).triu(1)\n"
        "return torch.einsum('bhqk,bhkd->bhqd', s.softmax(-1), v)", OUTER),
    "positions compared": (
        "i = torch.arange(20, device=q.device)\ns = q @ k.transpose(-2, -1) / 4\n"
        "return s.masked_fill(i[None, :] > i[:, None], float('-inf')).softmax(-1) @ v", OUTER),
    "positions compared the other way": (
        "i = torch.arange(20, device=q.device)\ns = q @ k.transpose(-2, -1) / 4\n"
        "return torch.where(i.unsqueeze(1) >= i, s, float('-inf')).softmax(-1) @ v", OUTER),
    "a triangle that is compared": (
        "m = torch.tril(torch.ones(20, 20)).view(1, 1, 20, 20)\n"
        "return (q @ k.mT).masked_fill(m == 0, float('-inf')).softmax(-1) @ v", OUTER),
    "zeros filled along a triangle": (
        "m = torch.zeros(20, 20).masked_fill(torch.ones(20, 20).bool().triu(1), float('-inf'))\n"
        "return (q @ k.mT * 0.3 + m).softmax(-1) @ v", OUTER),
    "ones added beside a mask": (
        "h = torch.ones(20, 20).triu(1)\ns = (q @ k.mT).masked_fill(h.bool(), float('-inf'))\n"
        "return (s + torch.ones(20, 20).tril()).softmax(-1) @ v", OUTER),
    "a triangle that comes to +inf": (
        "s = (q @ k.mT + torch.full((20, 20), float('-inf')).triu(1)) * -0.3\n"
        "return s.softmax(-1) @ v", OUTER),
}  # fmt: skip

MASKED = {
    "alibi over flattened heads": (
        "s = torch.baddbmm(m, q, k.transpose(1, 2), beta=0.5, alpha=0.25).view(2, 3, 17, 20)\n"
        "return torch.bmm(s.softmax(-1).view(6, 17, 20), v)", f"{FLAT}, torch.randn(6, 1, 20)"),
    "a mask of heads over flattened ones": (
        "s = torch.bmm(q, k.transpose(1, 2)).view(2, 3, 17, 20).masked_fill(m, -1e4)\n"
        "return torch.bmm(s.view(6, 17, 20).softmax(-1), v)", f"{FLAT}, torch.rand(2, 1, 17, "
                                                              f"20) > 0.5"),
    "scores in another order": (
        "s = torch.einsum('bqhd,bkhd->bqhk', q, k) + m\n"
        "return torch.einsum('bqhk,bkhd->bqhd', s.softmax(-1), v)", f"{INNER}, torch.randn(2, "
                                                                    f"17, 1, 20)"),
    "keys before queries": (
        "s = (k @ q.transpose(-2, -1)).masked_fill(m, float('-inf'))\n"
        "return s.softmax(dim=-2).transpose(-2, -1) @ v", f"{CROSS}, torch.rand(20, 17) > 0.7"),
    "what is not masked": (
        EINSUM + "s = s.masked_fill(~m, float('-inf'))\n" + SUMMED,
        f"{INNER}, torch.rand(2, 1, 17, 20) > 0.3"),
    "windows": (
        "s = (q @ k.mT).view(2, 3, 2, 17, 20) + m.unsqueeze(1)\n"
        "return s.view(6, 2, 17, 20).softmax(-1) @ v",
        "torch.randn(6, 2, 17, 16), torch.randn(6, 2, 20, 16), torch.randn(6, 2, 20, 16),"
        " torch.randn(3, 17, 20)"),
    "relative positions by a product": (
        "s = torch.einsum('bhqd,bhkd->bhqk', q, k) + torch.einsum('bhqd,qkd->bhqk', q, m)\n"
        "return torch.einsum('bhqk,bhkd->bhqd', s.softmax(-1), v)", f"{CROSS}, torch.randn(17, "
                                                                    f"20, 32)"),
    "no key at all is NaN": (EINSUM + "s = s.masked_fill(m, float('-inf'))\n" + SUMMED, f"{INNER}, {ROWS}"),
    "no key at all, added": (
        "s = torch.baddbmm(m, q, k.transpose(1, 2))\nreturn torch.bmm(s.softmax(-1), v)",
        f"{FLAT}, torch.zeros(17, 20).masked_fill({ROWS}, -float('inf')).expand(6, 17, 20)"),
    "no key at all, made 0": (
        EINSUM + "w = s.masked_fill(m, float('-inf')).softmax(-1).nan_to_num(0.0)\n"
        "return torch.einsum('bhqk,bkhd->bqhd', w, v)", f"{INNER}, {ROWS}"),
    "the library: what may be seen": (
        "return F.scaled_dot_product_attention(q, k, v, attn_mask=m)", f"{CROSS}, ~{ROWS}"),
    "the library: what is added": (
        "return F.scaled_dot_product_attention(q, k, v, attn_mask=m, scale=0.5)",
        f"{CROSS}, torch.randn(17, 20).masked_fill({ROWS}, -float('inf'))"),
    "the library: groups": (
        "return F.scaled_dot_product_attention(q, k, v, attn_mask=m, enable_gqa=True)",
        f"{GROUPED}, torch.randn(2, 1, 17, 20)"),
}  # fmt: skip

NEAR_MISSES = {
    "softmax over queries": EINSUM + "return torch.einsum('bhqk,bkhd->bqhd', s.softmax(-2), v)",
    "softmax over heads": EINSUM + "return torch.einsum('bhqk,bkhd->bqhd', s.softmax(1), v)",
    "weights returned": EINSUM
    + "w = s.softmax(-1)\nreturn torch.einsum('bhqk,bkhd->bqhd', w, v), w",
    "scores read": EINSUM + "return torch.einsum('bhqk,bkhd->bqhd', s.softmax(-1), v), s.amax()",
    "a scale that reads the scores": EINSUM + "s = s / s.norm()\n" + SUMMED,
    "heads summed": EINSUM + "return torch.einsum('bhqk,bkhd->bqd', s.softmax(-1), v)",
    "heads mixed": EINSUM + "s = torch.einsum('bhqk,hg->bgqk', s, q[0, :3, :, 0])\n" + SUMMED,
    "a mask after softmax": EINSUM + "w = s.softmax(-1) * (v[..., 0] > 0).mT[:, :, None]\n"
    "return torch.einsum('bhqk,bkhd->bqhd', w, v)",
    "NaN made 1": EINSUM
    + "w = s.softmax(-1).nan_to_num(1.0)\nreturn torch.einsum('bhqk,bkhd->bqhd', w, v)",
    "dropout": EINSUM
    + "w = F.dropout(s.softmax(-1), 0.1, True)\nreturn torch.einsum('bhqk,bkhd->bqhd', w, v)",
    "queries summed": EINSUM + "return torch.einsum('bhqk,bqhd->bkhd', s.softmax(-1), q)",
    "a label twice": "s = torch.einsum('bqhd,bkhd->bhqk', q, k)\n"
    "return torch.einsum('bhqq,bqhd->bqhd', s[..., :17].softmax(-1), q)",
    "softmax over parts of the keys": EINSUM
    + "s = s.view(2, 3, 17, 4, 5).softmax(-1).view(2, 3, 17, 20)\n"
    "return torch.einsum('bhqk,bkhd->bqhd', s, v)",
    "sigmoid": EINSUM + "return torch.einsum('bhqk,bkhd->bqhd', s.sigmoid(), v)",
    "weights in float64": EINSUM + "w = s.softmax(-1, dtype=torch.float64)\n"
    "return torch.einsum('bhqk,bkhd->bqhd', w, v.double())",
    "scores rounded": EINSUM
    + "w = s.half().softmax(-1).float()\nreturn torch.einsum('bhqk,bkhd->bqhd', w, v)",
    "weights rounded": EINSUM + "w = s.softmax(-1).half().float()\n"
    "return torch.einsum('bhqk,bkhd->bqhd', w, v)",
    "features in two dimensions": "q, k, v = (t.unflatten(-1, (4, -1)) for t in (q, k, v))\n"
    "s = torch.einsum('bqhde,bkhde->bhqk', q, k)\n"
    "return torch.einsum('bhqk,bkhde->bqhde', s.softmax(-1), v)",
}


def judged(interpreter, source: str, after: str) -> None:
    """As close to float64 as eager is, up to rounding; NaN at the same places."""
    found = interpreter.ask(before=source, after=after)
    assert not found["fell_back"]
    assert all(found["same_kind"])
    assert all(
        ours <= 2 * eager + 3e-6 for ours, eager in zip(found["ours"], found["eager"], strict=True)
    )


@pytest.mark.parametrize("name", SPELLED)
def test_every_spelling_is_computed_tile_by_tile(interpreter, name):
    source = module(*SPELLED[name])
    judged(interpreter, source, for_values(source, "flash-attention", **SMALL))


@pytest.mark.parametrize("name", MASKED)
def test_masks_and_biases_follow_the_scores(interpreter, name):
    source = module(*MASKED[name], arguments="q, k, v, m")
    judged(interpreter, source, for_values(source, "flash-attention", **SMALL))


@pytest.mark.parametrize("name", NEAR_MISSES)
def test_what_only_looks_like_attention_is_left_alone(name):
    session, found = matches(module(NEAR_MISSES[name], INNER), "flash-attention")
    assert found == []
    assert session.notes == []


def test_keys_repeated_for_a_product_are_read_where_they_lie():
    body = (
        "k, v = repeat_kv(k, 3), repeat_kv(v, 3)\nq, k, v = (t.flatten(0, 1) for t in (q, k, v))\n"
    )
    body += "s = torch.bmm(q, k.mT).view(2, 6, 17, 20) + m\n"
    body += "return torch.bmm(s.flatten(0, 1).softmax(-1), v).unflatten(0, (2, 6))"
    source = module(body, f"{GROUPED}, torch.randn(2, 1, 17, 20)", arguments="q, k, v, m")
    after = rewritten(source, "flash-attention").split("def forward")[1]
    assert "flash_attention(q, k, v, m)" in after


def test_a_result_whose_heads_are_merged_is_written_that_way():
    body = (
        "b, h, l, d = q.shape\nq = q.view(b, 2, 3, l, d)\ns = torch.einsum('bngqd,bnkd->bngqk', "
        "q, k)\n"
    )
    body += "return torch.einsum('bngqk,bnkd->bqngd', s.softmax(-1), v).reshape(b, l, h * d)"
    after = rewritten(module(body, GROUPED), "flash-attention")
    assert "torch.empty((batch, n_queries, heads, members, v.shape[-1])" in after


def test_padding_after_a_triangle_skips_as_well(interpreter):
    body = (
        "h = torch.ones(20, 20, dtype=torch.bool).triu(1)\ns = (q @ k.mT).masked_fill(h, "
        "float('-inf'))\n"
    )
    body += "return s.masked_fill(m, float('-inf')).softmax(-1) @ v"
    source = module(body, f"{OUTER}, torch.arange(20) < torch.tensor([3, 0])[:, None, None, None]",
                    arguments="q, k, v, m")  # fmt: skip
    after = rewritten(source, "flash-attention", **SMALL)
    assert "longest first" in after
    judged(interpreter, source, after)
    lower = rewritten(source.replace("m, float('-inf')", "m, -1e9"), "flash-attention", **SMALL)
    assert "longest first" not in lower  # a query that saw nothing would weigh every key alike


SKIPPED = {
    "positions compared": True, "triangle of -inf": True, "a triangle that is compared": True,
    "zeros filled along a triangle": True, "ones added beside a mask": False,
    "a triangle that comes to +inf": False, "heads inside": False,
}  # fmt: skip


@pytest.mark.parametrize("name", SKIPPED)
def test_only_what_is_surely_hidden_is_skipped(name):
    assert ("longest first" in rewritten(module(*SPELLED[name]), "flash-attention")) == SKIPPED[
        name
    ]


@pytest.mark.parametrize("compared, distance", [
    ("i[None, :] > i[:, None]", 1), ("i[:, None] < i", 1), ("i[None, :] >= i[:, None] + 1", None),
    ("i >= i[:, None]", None), ("i[None, :] > torch.arange(4, "
                                "24)[:, None]", 5), ("i[:, None] > i", None),
    ("i[None, :] * 1.0 > i[:, None]", None), ("i[None, :] > i[None, :]", None),
    ("torch.arange(0, 40, 2)[None, :] > i[:, None]", None),
])  # fmt: skip
def test_a_comparison_of_positions_is_a_triangle_where_it_is_one(interpreter, compared, distance):
    body = f"i = torch.arange(20)\ns = (q @ k.mT).masked_fill({compared}, float('-inf'))\n"
    source = module(body + "return s.softmax(-1) @ v", OUTER)
    after = rewritten(source, "flash-attention", **SMALL)
    ends = (
        f"(tile + 1) * BLOCK_QUERIES{f' + {distance - 1}' if distance != 1 else ''})"
        if distance
        else "\0"
    )
    assert ("longest first" in after) == (distance is not None)
    assert distance is None or ends in after
    judged(interpreter, source, after)


# --- the library ---------------------------------------------------------------------------

REPEATED = "k, v = repeat_kv(k, 3), v.repeat_interleave(3, dim=1)\n"
CALL = "return F.scaled_dot_product_attention(q, k, v"
SEEN = "m = torch.ones(20, 20, dtype=torch.bool, device=q.device).tril()\n"

CALLS = {
    "groups": (f"{REPEATED}{CALL})", half(GROUPED), "enable_gqa=True"),
    "groups, causal": (f"{REPEATED}{CALL}, is_causal=True, "
                       f"scale=0.3)", half(GROUPED), "enable_gqa=True"),
    "groups by hand": (
        f"{REPEATED}return (q @ k.mT / 4).softmax(-1) @ v", half(GROUPED), "enable_gqa=True"),
    "a mask that is causal": (f"{SEEN}{CALL}, attn_mask=m)", half(OUTER), "is_causal=True"),
    "a sum that is causal": (
        "s = torch.einsum('bhqd,bhkd->bhqk', q, k) / 4 + torch.full((20, 20), "
        "float('-inf')).triu(1)\n"
        "return torch.einsum('bhqk,bhkd->bhqd', s.softmax(-1), v)", OUTER, "is_causal=True"),
    "einsum": (EINSUM + SUMMED, INNER, "scale=0.25"),
}  # fmt: skip
NO_CALLS = {
    "another order of heads": (
        f"{CALL.replace('k, v', 'k.repeat(1, 3, 1, 1), v.repeat(1, 3, 1, 1)')})", half(GROUPED)),
    "keys alone repeated": (f"{CALL.replace('k, v', 'repeat_kv(k, 3), v')})", half(GROUPED).replace(
        "torch.randn(2, 2, 20, 16, dtype=torch.float16)", "torch.randn(2, 6, 20, 16, "
                                                          "dtype=torch.float16)")
        .replace("torch.randn(2, 6, 20", "torch.randn(2, 2, 20", 1)),
    "float32 has no groups": (f"{REPEATED}{CALL})", GROUPED),
    "a wider band": (f"{SEEN.replace('tril()', 'tril(1)')}{CALL}, attn_mask=m)", half(OUTER)),
    "a mask from outside": (f"{CALL}, attn_mask=q[0, 0, :, :1] > 0)", half(OUTER)),
    "dropout": (f"{REPEATED}{CALL}, dropout_p=0.1)", half(GROUPED)),
    "NaN by hand": (
        "s = (q @ k.mT).masked_fill(q[0, 0, :, :1] > 0, float('-inf'))\nreturn "
        "s.softmax(-1) @ v", OUTER),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_the_library_is_called_for_what_it_computes(interpreter, name):
    body, inputs, written = CALLS[name]
    source = module(body, inputs)
    session, found = matches(source, "flash-attention")
    plain = [match for match in found if match.plain]
    assert len(plain) == 1
    after = session.propose([Step(skill="flash-attention", site=plain[0].label)]).candidate.program
    fast = after.rsplit("_forward_eager(", 1)[1]
    assert written in fast
    assert "repeat" not in fast
    judged(interpreter, source, after)


@pytest.mark.parametrize("name", NO_CALLS)
def test_the_library_is_not_called_for_anything_else(name):
    found = matches(module(*NO_CALLS[name]), "flash-attention")[1]
    assert [match for match in found if match.plain] == []


# --- what becomes of it --------------------------------------------------------------------


def test_gradients_take_the_original_path(tmp_path):
    """The rewritten module is the program's own while gradients are recorded, in either mode."""
    import importlib.util

    import torch

    (tmp_path / "rewritten.py").write_text(
        rewritten(module(EINSUM + SUMMED, INNER), "flash-attention")
    )
    spec = importlib.util.spec_from_file_location("rewritten", tmp_path / "rewritten.py")
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    inputs = [tensor.requires_grad_() for tensor in made.get_inputs()]
    for mode in (True, False):
        ours, theirs = made.Model().train(mode)(*inputs), made.Model()._forward_eager(*inputs)
        found, wanted = (torch.autograd.grad(out.square().sum(), inputs) for out in (ours, theirs))
        assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))


@pytest.mark.parametrize("name", ["groups by einsum", "keys without heads", "positions compared"])
def test_it_compiles_in_sixteen_bits(compiler, name):
    body, inputs = SPELLED[name]
    source = module(body, inputs.replace("16)", "64, dtype=torch.bfloat16)"))
    kernels = compiler.ask(after=rewritten(source, "flash-attention"))
    assert {kernel["arch"] for kernel in kernels} == {80, 90}
    assert all(kernel["spill_bytes"] == 0 for kernel in kernels)
