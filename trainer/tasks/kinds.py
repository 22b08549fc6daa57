"""Which kind each operator of PyTorch is of: the words that a family's name is made of."""

from __future__ import annotations

from collections.abc import Iterator

_TABLE = """
matmul: addbmm addmm baddbmm bilinear bmm cdist chain_matmul dot einsum inner lazylinear linear
    matmul mm mv outer tensordot
conv: conv1d conv2d conv3d
conv_transpose: conv_transpose1d conv_transpose2d conv_transpose3d convtranspose1d convtranspose2d
    convtranspose3d
attention: multiheadattention scaled_dot_product_attention
recurrent: gru grucell lstm lstmcell rnn rnncell
norm: batch_norm batchnorm1d batchnorm2d batchnorm3d group_norm groupnorm instance_norm
    instancenorm1d instancenorm2d instancenorm3d layer_norm layernorm local_response_norm
    localresponsenorm normalize rms_norm rmsnorm
softmax: gumbel_softmax log_softmax logsoftmax softmax softmax2d softmin
reduce: all amax amin aminmax any count_nonzero logsumexp max mean median min nanmean nansum norm
    prod std std_mean sum trace var var_mean vector_norm
order: argmax argmin argsort bucketize kthvalue searchsorted sort topk unique
scan: cummax cummin cumprod cumsum logcumsumexp
pool: adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool1d
    adaptive_max_pool2d adaptive_max_pool3d adaptiveavgpool1d adaptiveavgpool2d adaptiveavgpool3d
    adaptivemaxpool1d adaptivemaxpool2d adaptivemaxpool3d avg_pool1d avg_pool2d avg_pool3d avgpool1d
    avgpool2d avgpool3d lppool1d lppool2d max_pool1d max_pool2d max_pool3d maxpool1d maxpool2d
    maxpool3d
index: embedding embedding_bag embeddingbag gather index_add index_add_ index_select masked_select
    nonzero one_hot scatter scatter_ scatter_add scatter_add_ take take_along_dim
concat: cat concat concatenate constantpad1d constantpad2d flip fliplr flipud hstack pad
    reflectionpad2d repeat repeat_interleave roll stack tile vstack zeropad2d
resample: fold grid_sample interpolate pixel_shuffle pixel_unshuffle pixelshuffle pixelunshuffle
    unfold upsample
random: alpha_dropout alphadropout bernoulli dropout dropout1d dropout2d dropout3d rand_like
    randn_like
loss: bceloss bcewithlogitsloss binary_cross_entropy binary_cross_entropy_with_logits
    cosine_embedding_loss cosine_similarity cosineembeddingloss cosinesimilarity cross_entropy
    crossentropyloss gaussian_nll_loss hinge_embedding_loss hingeembeddingloss huber_loss huberloss
    kl_div kldivloss l1_loss l1loss margin_ranking_loss mse_loss mseloss nll_loss nllloss
    poisson_nll_loss smooth_l1_loss smoothl1loss soft_margin_loss triplet_margin_loss
    tripletmarginloss
triangle: diag diag_embed diagonal tril tril_ triu triu_
pointwise: abs acos add add_ addcdiv addcmul asin atan atan2 ceil celu clamp clamp_ clamp_max
    clamp_min clip compare complex copysign cos cosh div div_ elu eq erf erfc erfinv exp exp2 exp_
    expm1 floor floor_divide fmod frac ge gelu glu gt hardshrink hardsigmoid hardswish hardtanh
    hypot isfinite isnan le leaky_relu leakyrelu lerp log log10 log1p log2 logical_and logical_not
    logical_or logsigmoid lt masked_fill masked_fill_ maximum minimum mish mul mul_ nan_to_num ne
    neg polar pow prelu reciprocal relu relu6 relu_ remainder round rsqrt selu sigmoid sigmoid_ sign
    silu sin sinh softplus softshrink softsign sqrt square sub sub_ swish tan tanh tanh_ tanhshrink
    threshold true_divide trunc where xlogy
"""


def _kinds() -> Iterator[tuple[str, str]]:
    """(operator, kind) of every name in the table."""
    kind = ""
    for word in _TABLE.split():
        if word.endswith(":"):
            kind = word[:-1]
        else:
            yield word, kind


KINDS = dict(_kinds())
_LAYOUT = """
append arange as_tensor bfloat16 bool broadcast_tensors broadcast_to children chunk clone contiguous
copy_ cpu cuda detach dict dim double empty empty_like enumerate eval expand expand_as extend eye
fill_ finfo flatten float format full full_like half identity iinfo imag int is_contiguous
isinstance item items join keys len linspace list long manual_seed meshgrid min_value modules
movedim mt narrow new_full new_ones new_tensor new_zeros no_grad numel ones ones_like parameters
permute print range ravel real repr requires_grad_ reshape reshape_as reversed select
set_default_dtype size split sqrt_int squeeze str super swapaxes swapdims t tensor to train
transpose tuple type type_as unbind unflatten unsqueeze values view view_as view_as_complex
view_as_real zero_ zeros zeros_like zip
"""
LAYOUT = frozenset(_LAYOUT.split())
"""Moves or makes values and computes nothing; left out."""


def kind_of(op: str) -> str:
    """The kind of an operation, by which tasks are told apart."""
    return "loop" if op == "loop" else KINDS.get(op, f"other:{op}")
