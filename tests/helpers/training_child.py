"""Child of the training tests; a program, not a test.

    TRITON_INTERPRET=1 python training_child.py      forward and backward of two programs on the CPU

One JSON request a line on stdin, one JSON reply a line on stdout; see codegen_child.py.
"""

import copy
import json
import math
import sys
import warnings

import interpreter_speed
import numpy as np
import torch
from codegen_child import error, leaves, load


def run(request):
    """Errors of outputs and gradients of the rewritten program and of eager against float64."""
    before, after = load(request["before"]), load(request["after"])
    torch.manual_seed(request.get("seed", 0))
    with torch.device(request.get("device", "cpu")):
        eager, fused, inputs = before.Model(), after.Model(), before.get_inputs()
    with torch.no_grad():
        for parameter in eager.parameters():
            parameter.normal_()
    fused.load_state_dict(eager.state_dict())
    exact, fell_back, original = copy.deepcopy(eager).double(), [], fused._forward_eager
    exact.is_wide = True
    fused._forward_eager = lambda *args: (fell_back.append(True), original(*args))[1]
    twice = request.get("twice", False)
    ours, theirs, truth = (gradients(m, inputs, twice) for m in (fused, eager, exact))
    buffers = [list(m.buffers()) for m in (fused, eager, exact)]
    columns = list(zip(ours + buffers[0], theirs + buffers[1], truth + buffers[2], strict=True))
    return {
        "ours": [error(a, c) for a, _, c in columns],
        "eager": [error(b, c) for _, b, c in columns],
        "same_kind": [
            a.shape == b.shape and a.dtype == b.dtype and torch.equal(a.isnan(), b.isnan())
            for a, b, _ in columns
        ],
        "fell_back": bool(fell_back),
    }


def gradients(model, inputs, twice):
    """Outputs, then gradients of inputs and parameters; ``twice``: of the sum of their squares as
    well."""
    given = [prepared(item, model) for item in inputs]
    outputs = leaves(model(*given))
    torch.manual_seed(3)
    weights = [torch.randn(o.shape).to(o) for o in outputs]
    asked = [item for item in given if item.requires_grad] + list(model.parameters())
    found = torch.autograd.grad(outputs, asked, weights, create_graph=twice, allow_unused=True)
    found = [g for g in found if g is not None]
    if twice:
        again = torch.autograd.grad(sum(g.square().sum() for g in found), asked, allow_unused=True)
        found += [g for g in again if g is not None]
    return [*(o.detach() for o in outputs), *found]


def prepared(item, model):
    wide = getattr(model, "is_wide", False)
    made = item.detach().double() if wide and item.is_floating_point() else item.detach().clone()
    return made.requires_grad_(item.requires_grad)


def compose(request):
    """Whether the rewritten program agrees with eager where something else changes how it runs,
    and whether its fast path was taken there."""
    before, after = load(request["before"]), load(request["after"])
    eager, fused, inputs = before.Model(), after.Model(), before.get_inputs()
    fused.load_state_dict(eager.state_dict())
    fell_back, original = [], fused._forward_eager
    fused._forward_eager = lambda *args: (fell_back.append(True), original(*args))[1]
    want, got = (MODES[request["mode"]](model, inputs) for model in (eager, fused))
    alike = [
        a.dtype == b.dtype and torch.allclose(a, b, atol=1e-5)
        for a, b in zip(got, want, strict=True)
    ]
    return {"alike": all(alike), "fell_back": bool(fell_back)}


def drawn(request):
    """As `run`, for programs with a dropout: eager's masks are those that torch's CUDA kernel draws
    by the state in the request, the rewritten program's kernels are given that state."""
    before, after = load(request["before"]), load(request["after"])
    state = tuple(request["state"])
    after.can_draw = lambda vector, *tensors: True
    after.next_draws = lambda x: state
    eager, fused, inputs = before.Model(), after.Model(), before.get_inputs()
    fused.load_state_dict(eager.state_dict())
    exact, dropout = copy.deepcopy(eager).double(), torch.nn.functional.dropout
    exact.is_wide = True
    ours = gradients(fused, inputs, False)
    torch.nn.functional.dropout = lambda x, p=0.5, training=True: (
        x * torch_mask(x.shape, 1.0 - p, request["vector"], *state).to(x) / (1.0 - p)
    )
    try:
        theirs, truth = (gradients(model, inputs, False) for model in (eager, exact))
    finally:
        torch.nn.functional.dropout = dropout
    return {
        "ours": [error(a, b) for a, b in zip(ours, truth, strict=True)],
        "eager": [error(a, b) for a, b in zip(theirs, truth, strict=True)],
        "same_kind": [a.dtype == b.dtype for a, b in zip(ours, theirs, strict=True)],
    }


def torch_mask(shape, share, vector, seed, turn, threads):
    """What so many threads keep, each of which draws four numbers at a time for its next
    ``vector`` elements; Philox in numpy."""
    count = math.prod(shape)
    kept = np.zeros(count, dtype=bool)
    for step, start in enumerate(range(0, count, threads * vector)):
        for four in range(vector // 4):
            numbers = philox(seed, turn + step * (vector // 4) + four, np.arange(threads))
            where = start + np.arange(threads)[:, None] * vector + four * 4 + np.arange(4)
            inside = where < count
            uniform = numbers * np.float32(2.0**-32) + np.float32(2.0**-33)
            kept[where[inside]] = (uniform < np.float32(share))[inside]
    return torch.from_numpy(kept.reshape(shape))


def philox(seed, count, streams):
    """Philox 4x32-10 of counter (count, stream), as float32: one row of four for each stream."""
    low, key = 0xFFFFFFFF, [seed & 0xFFFFFFFF, seed >> 32]
    words = [np.full(len(streams), part, dtype=np.uint64) for part in (count & low, count >> 32)]
    words += [streams.astype(np.uint64), np.zeros(len(streams), dtype=np.uint64)]
    for _ in range(10):
        first, second = words[0] * np.uint64(0xD2511F53), words[2] * np.uint64(0xCD9E8D57)
        words = [
            (second >> np.uint64(32)) ^ words[1] ^ np.uint64(key[0]),
            second & np.uint64(low),
            (first >> np.uint64(32)) ^ words[3] ^ np.uint64(key[1]),
            first & np.uint64(low),
        ]
        key = [(key[0] + 0x9E3779B9) & low, (key[1] + 0xBB67AE85) & low]
    return np.stack(words, axis=1).astype(np.float32)


def _autocast(model, inputs):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return leaves(model(*inputs))


def _inference(model, inputs):
    with torch.inference_mode():
        return leaves(model(*inputs))


def _vmap(model, inputs):
    return leaves(
        torch.func.vmap(model)(*[torch.stack([item, item * 2]).detach() for item in inputs])
    )


def _functional_grad(model, inputs):
    return [torch.func.grad(lambda item: model(item, *inputs[1:]).sum())(inputs[0].detach())]


def _checkpoint(model, inputs):
    from torch.utils.checkpoint import checkpoint

    out = checkpoint(model, *inputs, use_reentrant=False)
    return list(torch.autograd.grad(out.square().sum(), [*inputs, *model.parameters()]))


def _replica(model, inputs):
    """As DataParallel makes them: parameters are plain attributes with a history."""
    copy_ = model._replicate_for_data_parallel()
    for name, parameter in model.named_parameters(recurse=False):
        setattr(copy_, name, parameter * 1)
    return list(torch.autograd.grad(copy_(*inputs).square().sum(), [*inputs, *model.parameters()]))


def _half(model, inputs):
    return leaves(model.bfloat16()(*[item.bfloat16() for item in inputs]))


def _frozen(model, inputs):
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    return list(torch.autograd.grad(model(*inputs).square().sum(), inputs))


def _accumulated(model, inputs):
    """Two backward passes into .grad, the way a training loop collects small batches."""
    for _ in range(2):
        model(*inputs).square().sum().backward()
    found = [item.grad.clone() for item in [*inputs, *model.parameters()]]
    for item in inputs:
        item.grad = None
    return found


MODES = {
    "autocast": _autocast,
    "inference mode": _inference,
    "vmap": _vmap,
    "functional grad": _functional_grad,
    "checkpoint": _checkpoint,
    "replica": _replica,
    "bfloat16 model": _half,
    "frozen": _frozen,
    "accumulated": _accumulated,
}


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    interpreter_speed.apply()
    for line in sys.stdin:
        try:
            request = json.loads(line)
            answer = compose if "mode" in request else drawn if "state" in request else run
            reply = {"result": answer(request)}
        except Exception as problem:  # any failure belongs to the test that asked
            reply = {"error": f"{type(problem).__name__}: {problem}"}
        print(json.dumps(reply), flush=True)
