"""Depthwise convolutions in training: the gradient of the input by the forward's own kernel, those
of weight and bias by the library.

With stride 1 and the zeros that keep the size, the input's gradient is the same convolution of the
incoming gradient with the filter turned around, so one kernel serves both. Everything else is
`aten.convolution_backward`. Not covered: operations behind the convolution, several output channels
of one input channel, transposed convolutions."""

from __future__ import annotations

from dataclasses import replace

from kernel_lsp.rewrite.codegen.backward.kernels import AGAIN
from kernel_lsp.rewrite.codegen.convolution.facts import Conv
from kernel_lsp.rewrite.codegen.convolution.launcher import ConvolutionJob
from kernel_lsp.rewrite.codegen.core import source
from kernel_lsp.rewrite.generated import GeneratedSource
from kernel_lsp.rewrite.graph import Graph

FORWARD_SHARE = 1 / 3
"""Of forward, gradient of the input and gradient of the weight, where the three take equally long;
assumed, not measured."""

FUNCTION = '''\
def {name}_eager({arguments}):
    """The same in PyTorch, for gradients of gradients."""
    return torch.nn.functional.conv{rank}d(
        {x}, {weight}, {bias}, stride={stride}, padding={padding}, dilation={dilation}, groups={groups}
    )


{again}

class _{title}(torch.autograd.Function):
    """{summary}"""

    @staticmethod
    def forward(ctx, {arguments}):
        ctx.save_for_backward({arguments})
        return {name}_forward({arguments})

    @staticmethod
    def backward(ctx, grad_out):
        if torch.is_grad_enabled():  # create_graph=True: a kernel has no derivative of its own
            return differentiate_again(ctx, {name}_eager, grad_out)
        {arguments} = ctx.saved_tensors
        wanted = list(ctx.needs_input_grad){no_bias}
        grad_x = None
{turned}        rest, grad_weight, grad_bias = torch.ops.aten.convolution_backward(
            grad_out, {x}, {weight}, {bias_size}, {stride}, {padding}, {dilation}, False, {zeros},
            {groups}, wanted,
        )
        return rest if grad_x is None else grad_x, grad_weight{grad_bias}


def {name}({arguments}):
    return _{title}.apply({arguments})
'''
TURNED = """\
        if wanted[0]:  # the same convolution with the filter turned around
            grad_x = {name}_forward(grad_out, {weight}.flip({axes}){zero_bias})
            wanted[0] = False
"""


def is_trainable(graph: Graph, conv: Conv) -> bool:
    """The library takes one number of zeros for both sides of a dimension."""
    plain = conv.depthwise and conv.symmetric and not conv.transposed
    return plain and not graph.origin.hides_gradients


def _keeps_size(conv: Conv) -> bool:
    """The filter turned around, with the same zeros, undoes where each tap reads."""
    one = all(n == 1 for n in conv.stride)
    return one and conv.size == conv.out and conv.in_channels == conv.out_channels


def trained_share(conv: Conv) -> float:
    """The share of a training step's three kernels that are ours."""
    return (2 if _keeps_size(conv) else 1) * FORWARD_SHARE


def differentiable(job: ConvolutionJob, forward: GeneratedSource) -> GeneratedSource:
    """``forward`` has the launcher under the job's name."""
    conv, name = job.conv, job.name
    x, weight, *bias = (job.names[n] for n in (conv.x, conv.weight, conv.bias) if n is not None)
    axes = tuple(range(2, 2 + conv.rank))
    turned = TURNED.format(
        name=name,
        weight=weight,
        axes=axes,
        zero_bias=f", torch.zeros_like({bias[0]})" if bias else "",
    )
    text = FUNCTION.format(
        name=name,
        title=source.title(name),
        arguments=", ".join([x, weight, *bias]),
        x=x,
        weight=weight,
        bias=bias[0] if bias else None,
        bias_size=[conv.out_channels] if bias else None,
        no_bias="" if bias else " + [False]",
        grad_bias=", grad_bias" if bias else "",
        turned=turned if _keeps_size(conv) else "",
        rank=conv.rank,
        stride=list(conv.stride),
        padding=list(conv.before),
        dilation=list(conv.dilation),
        zeros=[0] * conv.rank,
        groups=conv.groups,
        again=AGAIN,
        summary=job.summary,
    )
    kernel = forward.definitions.replace(f"def {name}(", f"def {name}_forward(")
    return replace(forward, definitions=f"{kernel}\n\n{text}", supports_autograd=True)
