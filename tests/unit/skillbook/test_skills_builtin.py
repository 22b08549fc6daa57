"""The skills that kernel-lsp ships: each is well formed, and is recalled by the words of code it
fits."""

from pathlib import Path

import pytest

from kernel_lsp.skillbook import Skillbook, built_in_folder, lint, load

SKILLS = built_in_folder()
NAMES = {
    "avgpool-into-conv",
    "batch-norm-train",
    "bias-into-tail",
    "cancel-shift",
    "cells-as-layer",
    "channels-last-conv",
    "channels-last-network",
    "compile-target",
    "cuda-graph",
    "depthwise-conv",
    "diagonal-matmul",
    "diagonal-of-product",
    "fold-affine",
    "fold-batchnorm-eval",
    "fused-conv",
    "fused-linear-loss",
    "fused-loss",
    "fused-matmul",
    "fused-norm",
    "fused-pointwise",
    "fused-recurrence",
    "fused-reduction",
    "fused-row-softmax",
    "hoist-invariant-tensors",
    "hoist-recurrent-input",
    "merge-pools",
    "merge-sibling-products",
    "patches-as-channels",
    "reassociate-linear-reduction",
    "reduce-before-conv",
    "reduce-first",
    "remove-dead-work",
    "singleton-reduction",
    "summed-lookups",
    "total-by-rows",
    "triangular-matmul",
    "value-range-collapse",
}


@pytest.fixture(scope="module")
def book() -> Skillbook:
    return load([SKILLS])


@pytest.mark.parametrize(
    "folder", sorted(p for p in SKILLS.iterdir() if p.is_dir()), ids=lambda p: p.name
)
def test_a_built_in_skill_is_well_formed(folder: Path) -> None:
    assert lint(folder) == ()


def test_all_expected_skills_are_there_and_rewrite_by_themselves(book: Skillbook) -> None:
    assert {skill.name for skill in book.skills if skill.executable} >= NAMES
    assert book.problems == ()


# Words as the engine takes them from a graph (see rewrite.engine.words), or as a person types them.
QUERIES = {
    "softmax dim exp sum": "fused-row-softmax",
    "linear log softmax eval": "fused-row-softmax",
    "layer norm add layernorm eval": "fused-norm",
    "group norm groupnorm": "fused-norm",
    "rms norm mul rsqrt mean pow": "fused-norm",
    "conv2d sigmoid mul add relu clamp": "fused-pointwise",
    "gelu add bias elementwise chain": "fused-pointwise",
    "mse loss mean sub pow": "fused-loss",
    "cross entropy nll loss": "fused-loss",
    "linear cross_entropy vocabulary logits language model head": "fused-linear-loss",
    "logsumexp amax reduction rows": "fused-reduction",
    "linear gelu relu bias activation": "fused-matmul",
    "bmm matmul": "fused-matmul",
    "tril triu matmul": "triangular-matmul",
    "linear sum dim matmul": "reassociate-linear-reduction",
    "mean of a matmul, matrix-vector": "reassociate-linear-reduction",
    "sum singleton dimension of size 1": "singleton-reduction",
    "hardtanh clamp relu always positive range": "value-range-collapse",
    "torch.diag(a) @ b": "diagonal-matmul",
    "diag matmul": "diagonal-matmul",
    "trace of a matmul": "diagonal-of-product",
    "kl_div of log_softmax and softmax": "total-by-rows",
    "arange ones mask created in forward on each call": "hoist-invariant-tensors",
    "conv2d batchnorm2d eval": "fold-batchnorm-eval",
    "batch norm relu add batchnorm2d training": "batch-norm-train",
    "avg_pool2d conv2d AvgPool2d": "avgpool-into-conv",
    "conv2d memory format channels_last": "channels-last-conv",
    "conv2d max_pool2d softmax channels bias convolution": "fused-conv",
    "conv3d activation tail in one kernel": "fused-conv",
    "depthwise conv2d groups relu6": "depthwise-conv",
    "dropout eval identity unused result": "remove-dead-work",
    "many small kernels, launch overhead, cuda graph": "cuda-graph",
    "torch.compile inductor max-autotune": "compile-target",
    "loop over time steps unbind mul add stack": "fused-recurrence",
    "rnn loop unbind linear tanh cat": "hoist-recurrent-input",
    "lstm_cell lstmcell stack loop": "cells-as-layer",
    "nn.GRUCell called step by step": "cells-as-layer",
    "residual cnn batchnorm2d conv2d relu nhwc": "channels-last-network",
    "flip cumsum flip": "fused-scan",
    "rotary embedding rotate_half cat neg chunk": "fused-rotary",
    "torch.roll slice pad shift difference": "fused-moves",
    "max pool2d relu maxpool2d": "fused-pool",
    "interpolate bilinear align_corners resize": "direct-upsample",
    "max over a dimension with values and indices": "max-and-place",
    "embedding bag of a table mean": "summed-lookups",
    "int8 weight-only quantized linear dequantize": "dequantized-linear",
    "transpose matmul div masked fill softmax matmul": "flash-attention",
    "conv_transpose2d mean convtranspose2d": "reduce-before-conv",
    "global average of a conv3d": "reduce-before-conv",
    "conv2d tanh max_pool2d maxpool2d": "reduce-first",
    "max_pool3d max_pool3d maxpool3d": "merge-pools",
    "query key value linear layers of one input": "merge-sibling-products",
    "conv_transpose2d scale bias": "fold-affine",
    "conv_transpose3d bias add fused tail": "bias-into-tail",
    "conv2d flatten transpose patch": "patches-as-channels",
    "conv2d bias instance_norm instancenorm2d": "cancel-shift",
}


@pytest.mark.parametrize("query", QUERIES)
def test_a_description_is_found_by_the_words_of_its_code(book: Skillbook, query: str) -> None:
    matches = book.select(query)
    assert QUERIES[query] in [match.skill for match in matches[:3]], [
        (m.skill, m.words) for m in matches[:5]
    ]
