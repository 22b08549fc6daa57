"""Every word of the compact form, version 1. The order is the contract: a word's place is its
token.

A checkpoint holds this list; one with another list is not served. New operators, skills and
parameters need no new word (words.name spells them), so a change here is a new version and a new
training. Standard library."""

from __future__ import annotations

from collections.abc import Iterable

VERSION = "compact/1"
PAD, END = "<pad>", "<end>"
LARGEST, DIVISIBLE, EXACT, EXPONENTS, SHARES, GAIN_STEPS = 40, 6, 16, 24, 16, 48
"""Of sizes (2^40), of marks of divisibility, of whole numbers, of exponents, of benefits, of
gains."""
MAX_OPERATIONS, MAX_SITES, MAX_SKILLS, MAX_SPACES, MAX_CHOICES = 160, 96, 32, 32, 32
"""That have a number of their own in one dialog."""
DEVICES = {"cuda": "on-cuda", "cpu": "on-cpu"}
LAYOUTS = {
    "contiguous": "",
    "channels_last": "@cl",
    "permuted": "@perm",
    "expanded": "@exp",
    "strided": "@str",
}
LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789_"


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


_STRUCTURE = _words("""
start on-cuda on-cpu sm triton no-triton training evaluating grad reads writes unknown operations cut given
param const = , out @cl @perm @exp @str yes no minus inf nan each skills spaces sites plain wraps more
select_skills apply_skill stop . then gone again got right wrong failed refused
""")
_DTYPES = _words("""
float32 float16 bfloat16 float64 int64 int32 int16 int8 uint8 bool complex64 complex128 float8_e4m3fn
float8_e5m2
""")
_OPERATORS = _words("""
abs acos acosh adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool1d
adaptive_max_pool2d adaptive_max_pool3d add addbmm addcdiv addcmul addmm addmv affine_grid_generator alias
all amax amin aminmax any arange argmax argmin argsort asin asinh atan atan2 atanh avg_pool1d avg_pool2d
avg_pool3d baddbmm batch_norm bernoulli bernoulli_ bilinear binary_cross_entropy
binary_cross_entropy_with_logits bitwise_and bitwise_not bitwise_or bitwise_xor bmm broadcast_tensors
broadcast_to bucketize cat cdist ceil celu chunk clamp clamp_max clamp_min clone col2im concat
constant_pad_nd contiguous conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d
convolution copy copy_ cos cosh cosine_similarity cross cross_entropy_loss cummax cummin cumprod cumsum
deg2rad detach detach_ diag diag_embed diagonal diff digamma dist div div_ dot dropout einsum elu embedding
embedding_bag empty empty_like eq erf erfc erfinv exp exp2 expand expand_as expm1 eye feature_dropout
fft_fft fft_ifft fft_irfft fft_rfft fill fill_ flatten flip floor floor_divide fmod frac full full_like
gather ge gelu getitem glu grid_sampler group_norm gru gt hardshrink hardsigmoid hardswish hardtanh
hinge_embedding_loss huber_loss hypot im2col index index_add index_copy index_fill index_put index_put_
index_select instance_norm inverse isfinite isinf isnan kernel kl_div kthvalue l1_loss layer_norm le
leaky_relu lerp lgamma lift_fresh_copy linalg_norm linalg_vector_norm linear linspace log log10 log1p log2
log_sigmoid log_softmax logaddexp logical_and logical_not logical_or logical_xor logit logsumexp lstm lt mT
margin_ranking_loss masked_fill masked_fill_ masked_scatter masked_select matmul max max_pool1d max_pool2d
max_pool2d_with_indices max_pool3d maximum mean median min minimum mish mm movedim mse_loss mul mul_
multinomial mv nan_to_num nansum narrow native_group_norm native_layer_norm ne neg new_empty new_full
new_ones new_tensor new_zeros nll_loss nll_loss_nd nonzero norm normal numpy_T one_hot ones ones_like other
outer pad pairwise_distance permute pixel_shuffle pixel_unshuffle poisson_nll_loss polar pow prelu prod
quantile rad2deg rand rand_like randint randn randn_like randperm reciprocal reflection_pad1d
reflection_pad2d relu relu6 relu_ remainder repeat repeat_interleave replication_pad1d replication_pad2d
reshape reshape_as rms_norm rnn_relu rnn_tanh roll rot90 round rrelu rsqrt rsub scaled_dot_product_attention
scalar_tensor scatter scatter_add scatter_reduce select select_scatter selu sgn sigmoid sign silu silu_ sin
sinc sinh slice slice_scatter smooth_l1_loss soft_margin_loss softmax softplus softshrink softsign sort
split split_with_sizes sqrt square squeeze stack std std_mean sub sub_ sum svd t take take_along_dim tan
tanh tanh_ tensor_split threshold tile to topk transpose tril triplet_margin_loss triu trunc type_as unbind
unflatten unfold uniform unique unsqueeze unsqueeze_ upsample_bicubic2d upsample_bilinear2d
upsample_linear1d upsample_nearest1d upsample_nearest2d upsample_nearest3d upsample_trilinear3d var var_mean
vdot view view_as vstack where xlogy zero_ zeros zeros_like
""")
_SKILL_WORDS = _words("""
advice affine algebra as attention autotune avgpool batch before bias blocked by cache cancel chain channels
collapse common compile conv copies cuda dead depthwise diagonal dtype eval expression first flash fold fuse
fused global graph half hoist in indices indirect inference input into invariant last layout learned length
loop loss low merge misaligned network norm optimizer order padded parallel patches per persistent phase
pointwise pool pools precision product pure range reassociate recurrence recurrent reduce reduction
reductions remove reorder reuse row rows scan shift shifts short singleton skip small split stream
subexpression tail target tensors tile tiles tiled to transposed triangular unroll value vector vectorize
warp wide with without work
""")
_PARAMETERS = _words("""
BLOCK BLOCK_SIZE BLOCK_M BLOCK_N BLOCK_K BLOCK_D BLOCK_ROWS BLOCK_COLS BLOCK_LINES BLOCK_PIXELS
BLOCK_CHANNELS BLOCK_QUERIES BLOCK_KEYS MAX_CHUNKS GROUP_M SPLIT_K SPLITS num_warps num_stages precision
nonfinite whole_windows way plan splits warps stages lanes programs chunk chunks parts order kind mode
unroll vector width layout form
""")
_VALUES = _words("""
pointers tiles taps gather library stack keep ignore ieee native tf32 tf32x3 bf16 bf16x3 bf16x6 fp16 none
auto default exact fast atomic two-stage reduce-overhead max-autotune tanh sigmoid nearest bilinear bicubic
area reflect replicate circular constant mean sum batchmean valid same floor trunc
""")


def _numbered(stem: str, numbers: Iterable[object]) -> list[str]:
    return [f"{stem}{number}" for number in numbers]


def _references(sign: str, count: int) -> list[str]:
    """Names of numbered things where they are introduced, and where they are meant."""
    return [f"{sign}{place}{end}" for end in (":", "") for place in range(count)]


def _build() -> tuple[str, ...]:
    numbered = [
        *_numbered("p", ("-", *range(LARGEST + 1))),
        *(f"d{power}.{quarter}" for power in range(1, LARGEST + 1) for quarter in range(4)),
        *_numbered("x", range(DIVISIBLE + 1)),
        *_numbered("i", range(-EXACT, EXACT + 1)),
        *_numbered("e", range(-EXPONENTS, EXPONENTS + 1)),
        *_numbered("b", ("-", *range(SHARES + 1))),
        *_numbered("g", ("-", *range(-GAIN_STEPS, GAIN_STEPS + 1))),
        *_numbered("o", range(MAX_CHOICES)),
        *_references("%", MAX_OPERATIONS),
        *_references("@", MAX_SITES),
        *_references("K", MAX_SKILLS),
        *_references("P", MAX_SPACES),
        *_numbered("~", ("", *LETTERS)),
    ]
    names = (*_DTYPES, *_OPERATORS, *_SKILL_WORDS, *_PARAMETERS, *_VALUES)
    return tuple(dict.fromkeys((PAD, END, *_STRUCTURE, *numbered, *names)))


NAMES = frozenset((*_DTYPES, *_OPERATORS, *_SKILL_WORDS, *_PARAMETERS, *_VALUES))
"""What `words.name` may use; none of them is a word of the structure."""
WORDS = _build()
TOKENS = {word: token for token, word in enumerate(WORDS)}
