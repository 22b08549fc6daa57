"""Rewritten programs on a device: torch.compile, CUDA graphs, autocast, inference mode,
torch.func, SGD."""

import copy

import pytest

torch = pytest.importorskip("torch")

from codegen_child import load  # noqa: E402
from training_helpers import rewritten  # noqa: E402

pytestmark = [
    pytest.mark.torch,
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    # torch 2.11's tracer instantiates autograd functions itself, its compiler advises TF32 and
    # imports what is deprecated: warnings about its own doing, and an error in the midst of tracing
    # breaks the graph.
    pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*script_method.* is deprecated:DeprecationWarning"),
]

PROGRAM = """
import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.b = nn.Parameter(torch.randn(1000))
        self.n = nn.{layer}(1000)

    def forward(self, x, y):
        return {expression}


def get_inputs():
    return [torch.randn(500, 1000{flag}), torch.randn(500, 1000{flag})]
"""
CASES = {
    "pointwise": ("fused-pointwise", "F.gelu(x + self.b) * 0.5 + y", "Identity"),
    "norm": ("fused-norm", "self.n(x + y)", "LayerNorm"),
    "batch norm": ("batch-norm-train", "torch.relu(self.n(x) + y)", "BatchNorm1d"),
}


@pytest.fixture(params=CASES)
def pair(request):
    """The program, its rewrite that must take the fast path, and inputs, on the device."""
    skill, expression, layer = CASES[request.param]
    source = PROGRAM.format(expression=expression, layer=layer, flag=", requires_grad=True")
    for_cuda = rewritten(source, skill).replace('.device.type == "cpu"', ".is_cuda")
    before, after = load(source), load(for_cuda.replace('enabled("cpu")', 'enabled("cuda")'))
    eager, fused = before.Model().cuda(), after.Model().cuda()
    fused.load_state_dict(eager.state_dict())
    inputs = [item.detach().cuda().requires_grad_() for item in before.get_inputs()]
    return eager, fused, inputs


def gradients(model, inputs, call=None):
    out = (model if call is None else call)(*inputs)  # a compiled module has no truth value
    asked = [*inputs, *(p for p in model.parameters())]
    found = torch.autograd.grad(out, asked, torch.ones_like(out) * 0.5, allow_unused=True)
    return [out.detach(), *(g for g in found if g is not None)]


def agree(got, want):
    for mine, theirs in zip(got, want, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=2e-4, atol=2e-4)


def test_forward_and_backward_compile_without_a_break(pair):
    eager, fused, inputs = pair
    compiled = torch.compile(fused, fullgraph=True)
    agree(gradients(fused, inputs, compiled), gradients(eager, inputs))
    agree([b.float() for b in fused.buffers()], [b.float() for b in eager.buffers()])


def test_forward_and_backward_can_be_recorded_in_a_graph(pair):
    eager, fused, inputs = pair
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        gradients(fused, inputs)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        recorded = gradients(fused, inputs)
    with torch.no_grad():
        for item in inputs:
            item.mul_(1.5)
    graph.replay()
    agree(recorded, gradients(eager, inputs))


def test_under_autocast_the_dtype_is_eager_s(pair):
    eager, fused, inputs = pair
    with torch.autocast("cuda", dtype=torch.bfloat16):
        mine, theirs = fused(*inputs), eager(*inputs)
    assert mine.dtype == theirs.dtype
    torch.testing.assert_close(mine, theirs)


def test_inference_mode_takes_the_fast_path(pair):
    eager, fused, inputs = pair
    fused._forward_eager = None
    with torch.inference_mode():
        agree([fused(*inputs)], [eager(*inputs)])


def test_transforms_of_torch_func_get_the_original(pair):
    eager, fused, inputs = pair
    if list(eager.buffers()):
        pytest.skip("running statistics cannot change inside of a transform, in eager either")
    slopes = [
        torch.func.grad(lambda item, m=model: m(item, inputs[1].detach()).square().sum())(
            inputs[0].detach()
        )
        for model in (fused, eager)
    ]
    agree(slopes[:1], slopes[1:])


def test_a_training_loop_ends_where_eager_s_does(pair):
    eager, fused, inputs = pair
    models = [copy.deepcopy(model) for model in (fused, eager)]
    for model in models:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(5):
            optimizer.zero_grad()
            model(*inputs).square().mean().backward()
            optimizer.step()
    agree(*([v.float() for v in model.state_dict().values()] for model in models))
