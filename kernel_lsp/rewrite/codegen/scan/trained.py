"""Cumulative sums in training: the gradient is the cumulative sum of the incoming one from the
other end.

One kernel scans each way, where eager's backward flips, scans and flips. The gradient needs nothing
of the forward, so nothing is kept. Not covered: products; pointwise neighbors, which keep kernels
of their own; exclusive sums written with zeros in front."""

from __future__ import annotations

from dataclasses import replace

from kernel_lsp.rewrite.codegen.core import source
from kernel_lsp.rewrite.generated import GeneratedSource

FUNCTION = '''\
class _{title}(torch.autograd.Function):
    """{summary}

    The gradient is the same sum from the other end.
    """

    @staticmethod
    def forward(ctx, {x}):
        return {name}_forward({x})

    @staticmethod
    def backward(ctx, grad_out):
        if torch.is_grad_enabled():  # create_graph=True: a kernel has no derivative of its own
            return {eager}
        return {name}_backward(grad_out)


def {name}({x}):
    return _{title}.apply({x})
'''


def differentiable(
    forward: GeneratedSource, backward: GeneratedSource, x: str, dim: int, *, reverse: bool
) -> GeneratedSource:
    """``forward`` has the launcher under the rewrite's name, ``backward`` under that name with
    ``_backward``; ``reverse``: whether the forward sums from the end."""
    name = forward.name
    text = FUNCTION.format(
        title=source.title(name),
        summary=forward.summary,
        name=name,
        x=x,
        eager=f"torch.cumsum(grad_out, {dim})" if reverse else _from_the_end("grad_out", dim),
    )
    kernel = forward.definitions.replace(f"def {name}(", f"def {name}_forward(")
    return replace(
        forward,
        definitions="\n\n".join([kernel, backward.definitions, text]),
        numbers=forward.numbers + backward.numbers,
        supports_autograd=True,
    )


def _from_the_end(x: str, dim: int) -> str:
    return f"torch.flip(torch.cumsum(torch.flip({x}, ({dim},)), {dim}), ({dim},))"
