"""Single operators: one line of PyTorch each, at sizes where eager takes 0.1 to 20 ms on an H200."""

from __future__ import annotations

from benchmarks.suite.task import SuiteTask

ROWS = "torch.randn(4096, 8192)"
IMAGES = "torch.randn(32, 64, 128, 128)"


def _activations() -> list[SuiteTask]:
    forms = {
        "relu": "torch.relu(x)",
        "leaky_relu": "F.leaky_relu(x, 0.02)",
        "gelu": "F.gelu(x)",
        "gelu_tanh": 'F.gelu(x, approximate="tanh")',
        "gelu_by_hand": "0.5 * x * (1.0 + torch.erf(x * 0.7071067811865476))",
        "silu": "F.silu(x)",
        "mish_by_hand": "x * torch.tanh(F.softplus(x))",
        "softplus": "F.softplus(x, beta=2.0)",
        "softsign": "x / (1 + torch.abs(x))",
        "hardtanh": "torch.clamp(x, -0.75, 1.5)",
        "hardswish_by_hand": "x * torch.clamp(x + 3, 0, 6) / 6",
        "elu": "F.elu(x, alpha=0.7)",
        "selu": "F.selu(x)",
        "logsigmoid": "F.logsigmoid(x)",
        "squared_relu": "torch.square(torch.relu(x))",
        "tanh_gate": "torch.tanh(x) * torch.sigmoid(x)",
    }
    return [
        SuiteTask(name=name, family="activation", doc=f"Pointwise: {name.replace('_', ' ')}.", forward=form,
             inputs={"x": ROWS})
        for name, form in forms.items()
    ]  # fmt: skip


def _normalizations() -> list[SuiteTask]:
    affine = (
        "self.weight = nn.Parameter(torch.ones(size))\nself.bias = nn.Parameter(torch.zeros(size))"
    )
    size = {"size": "8192"}
    return [
        SuiteTask(name="softmax_rows", family="softmax", doc="Softmax over contiguous rows.",
             forward="torch.softmax(x, dim=-1)", inputs={"x": ROWS}),
        SuiteTask(name="softmax_columns", family="softmax", doc="Softmax over the strided dimension.",
             forward="torch.softmax(x, dim=0)", inputs={"x": ROWS}),
        SuiteTask(name="softmax_by_hand", family="softmax", doc="A stable softmax written out.",
             forward="e = torch.exp(x - x.amax(dim=1, keepdim=True))\nreturn e / e.sum(dim=1, keepdim=True)",
             inputs={"x": ROWS}),
        SuiteTask(name="softmax_unstable", family="softmax",
             doc="Near miss: without the maximum it overflows where it overflows; a stable form is another function.",
             forward="e = torch.exp(x)\nreturn e / e.sum(dim=1, keepdim=True)", inputs={"x": ROWS}),
        SuiteTask(name="log_softmax", family="softmax", doc="Log-softmax over a vocabulary.",
             forward="F.log_softmax(x, dim=-1)", inputs={"x": "torch.randn(1024, 50000)"}),
        SuiteTask(name="softmax_temperature", family="softmax", doc="Softmax of scaled logits.",
             forward="torch.softmax(x / self.temperature, dim=-1)", setup="self.temperature = temperature",
             init={"temperature": "2.5"}, inputs={"x": "torch.randn(2048, 16000)"}),
        SuiteTask(name="layer_norm", family="norm", doc="LayerNorm over the last dimension.",
             forward="self.norm(x)", setup="self.norm = nn.LayerNorm(size)", init=size, inputs={"x": ROWS}),
        SuiteTask(name="layer_norm_by_hand", family="norm", doc="LayerNorm written as mean and variance.",
             forward="mean = x.mean(-1, keepdim=True)\nvariance = x.var(-1, unbiased=False, keepdim=True)\n"
             "return (x - mean) / torch.sqrt(variance + 1e-5) * self.weight + self.bias",
             setup=affine, init=size, inputs={"x": ROWS}),
        SuiteTask(name="layer_norm_unbiased", family="norm",
             doc="Near miss: the sample variance divides by n - 1, so this is not LayerNorm.",
             forward="mean = x.mean(-1, keepdim=True)\nvariance = x.var(-1, keepdim=True)\n"
             "return (x - mean) / torch.sqrt(variance + 1e-5) * self.weight + self.bias",
             setup=affine, init=size, inputs={"x": ROWS}),
        SuiteTask(name="rms_norm_by_hand", family="norm", doc="RMSNorm written out, as language models have it.",
             forward="scale = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)\nreturn x * scale * self.weight",
             setup="self.weight = nn.Parameter(torch.ones(size))", init=size, inputs={"x": ROWS}),
        SuiteTask(name="rms_norm_channels", family="norm", doc="RMS over the channels of images.",
             forward="x / torch.sqrt((x * x).mean(dim=1, keepdim=True) + 1e-5)", inputs={"x": IMAGES}),
        SuiteTask(name="l2_normalize", family="norm", doc="Unit rows by F.normalize.",
             forward="F.normalize(x, dim=1)", inputs={"x": ROWS}),
        SuiteTask(name="l1_scale", family="norm", doc="Rows divided by their mean absolute value.",
             forward="x / x.abs().mean(dim=1, keepdim=True)", inputs={"x": ROWS}),
        SuiteTask(name="frobenius", family="norm", doc="A whole tensor divided by its norm.",
             forward="x / torch.linalg.vector_norm(x)", inputs={"x": ROWS}),
        SuiteTask(name="batch_norm_eval", family="norm", doc="BatchNorm with running statistics (inference).",
             forward="F.batch_norm(x, self.mean, self.variance, self.weight, self.bias)",
             setup='self.register_buffer("mean", torch.zeros(size))\n'
             'self.register_buffer("variance", torch.ones(size))\n' + affine,
             init={"size": "64"}, inputs={"x": IMAGES}),
        SuiteTask(name="batch_norm_train", family="norm",
             doc="BatchNorm as constructed: batch statistics, and running ones that must be updated.",
             forward="self.norm(x)", setup="self.norm = nn.BatchNorm2d(size)", init={"size": "64"},
             inputs={"x": IMAGES}),
        SuiteTask(name="group_norm", family="norm", doc="GroupNorm over image channels.", forward="self.norm(x)",
             setup="self.norm = nn.GroupNorm(8, size)", init={"size": "64"}, inputs={"x": IMAGES}),
        SuiteTask(name="instance_norm", family="norm", doc="InstanceNorm without parameters.",
             forward="F.instance_norm(x)", inputs={"x": IMAGES}),
    ]  # fmt: skip


def _reductions() -> list[SuiteTask]:
    forms = {
        "sum_rows": ("torch.sum(x, dim=1)", "Row sums.", ROWS),
        "sum_columns": ("x.sum(dim=0)", "Column sums: the strided direction.", ROWS),
        "mean_middle": ("x.mean(dim=1, keepdim=True)", "Mean over the middle dimension.",
                        "torch.randn(64, 512, 1024)"),
        "max_values": ("torch.max(x, dim=1).values", "Maxima without their places.", ROWS),
        "argmax_rows": ("torch.argmax(x, dim=1)", "Places of the maxima.", ROWS),
        "min_middle": ("x.amin(dim=1)", "Minima over the middle dimension.", "torch.randn(64, 512, 1024)"),
        "product": ("torch.prod(x, dim=1)", "Products of rows near one.", "1 + 0.01 * torch.randn(4096, 4096)"),
        "variance": ("torch.var(x, dim=1)", "Sample variance of rows.", ROWS),
        "logsumexp_rows": ("torch.logsumexp(x, dim=1)", "Logsumexp of rows.", ROWS),
        "any_large": ("(x > 3.5).any(dim=1)", "Whether a row has a large entry.", ROWS),
        "count_positive": ("(x > 0).sum(dim=1)", "Number of positive entries of each row.", ROWS),
        "mean_of_squares": ("x.square().mean()", "One number of a whole tensor.", ROWS),
        "sum_of_singleton": ("x.sum(dim=1)", "A sum over a dimension of size one: a view.",
                             "torch.randn(4096, 1, 4096)"),
        "sum_of_pair": ("x.sum(dim=1)", "Near miss: the dimension has two entries, so it is no view.",
                        "torch.randn(4096, 2, 4096)"),
        "cumsum": ("torch.cumsum(x, dim=1)", "Inclusive running sums of rows.", "torch.randn(2048, 16384)"),
        "cumprod": ("torch.cumprod(x, dim=1)", "Running products near one.",
                    "1 + 0.001 * torch.randn(2048, 8192)"),
        "cumsum_reverse": ("x.flip(1).cumsum(1).flip(1)", "Running sums from the end.",
                           "torch.randn(2048, 8192)"),
        "cumsum_exclusive": ("torch.cumsum(x, dim=1) - x", "Exclusive running sums.",
                             "torch.randn(2048, 8192)"),
        "masked_cumsum": ("torch.cumsum(x * mask, dim=1)", "Running sums of what a mask lets through.",
                          "torch.randn(2048, 8192)"),
    }  # fmt: skip
    extra = {"masked_cumsum": {"mask": "torch.rand(2048, 8192) < 0.5"}}
    return [
        SuiteTask(name=name, family="scan" if "cum" in name else "reduction", doc=doc, forward=form,
             inputs={"x": shape, **extra.get(name, {})})
        for name, (form, doc, shape) in forms.items()
    ]  # fmt: skip


def _losses() -> list[SuiteTask]:
    pair = {"x": "torch.randn(8192, 4096)", "y": "torch.randn(8192, 4096)"}
    classes = {"x": "torch.randn(8192, 16384)", "y": "torch.randint(0, 16384, (8192,))"}
    forms = {
        "mse": ("torch.mean((x - y) ** 2)", "Mean squared error.", pair),
        "mae": ("(x - y).abs().mean()", "Mean absolute error.", pair),
        "huber": ("F.smooth_l1_loss(x, y, beta=0.5)", "Smooth L1 loss.", pair),
        "log_cosh": ("torch.log(torch.cosh(0.1 * (x - y))).mean()", "Log-cosh of small differences.", pair),
        "cross_entropy": ("F.cross_entropy(x, y)", "Cross entropy over many classes.", classes),
        "cross_entropy_smoothed": ("F.cross_entropy(x, y, label_smoothing=0.1)",
                                   "Cross entropy with smoothed labels.", classes),
        "nll_of_log_softmax": ("F.nll_loss(F.log_softmax(x, dim=1), y)", "Cross entropy in two steps.", classes),
        "kl_divergence": ('F.kl_div(F.log_softmax(x, dim=1), torch.softmax(y, dim=1), reduction="batchmean")',
                          "KL divergence of two sets of logits.", pair),
        "bce_with_logits": ("F.binary_cross_entropy_with_logits(x, (y > 0).float())",
                            "Binary cross entropy of logits.", pair),
        "hinge": ("torch.mean(torch.clamp(1 - x * torch.sign(y), min=0))", "Hinge loss.", pair),
        "cosine_loss": ("(1 - F.cosine_similarity(x, y, dim=1)).mean()", "Cosine distance of rows.", pair),
        "triplet": ("F.triplet_margin_loss(x, y, z, margin=0.3)", "Triplet margin loss.",
                    {**pair, "z": "torch.randn(8192, 4096)"}),
        "focal": ("p = torch.sigmoid(x)\nt = (y > 0).float()\n"
                  "q = p * t + (1 - p) * (1 - t)\nreturn (-((1 - q) ** 2) * torch.log(q + 1e-8)).mean()",
                  "A focal loss written out.", pair),
    }  # fmt: skip
    return [
        SuiteTask(name=name, family="loss", doc=doc, forward=form, inputs=inputs)
        for name, (form, doc, inputs) in forms.items()
    ]


def _pools() -> list[SuiteTask]:
    volume = "torch.randn(8, 32, 48, 64, 64)"
    forms = {
        "max_pool1d": ("F.max_pool1d(x, 4)", "Maxima of windows of signals.", "torch.randn(32, 128, 16384)"),
        "avg_pool1d": ("F.avg_pool1d(x, 8, stride=4, padding=2)", "Overlapping means of signals.",
                       "torch.randn(32, 128, 16384)"),
        "max_pool2d": ("F.max_pool2d(x, 3, stride=2, padding=1)", "Overlapping maxima of images.", IMAGES),
        "avg_pool2d": ("F.avg_pool2d(x, 2)", "Means of windows of images.", IMAGES),
        "avg_pool2d_no_pad_count": ("F.avg_pool2d(x, 3, stride=1, padding=1, count_include_pad=False)",
                                    "Near miss: border windows divide by fewer elements.", IMAGES),
        "max_pool3d": ("F.max_pool3d(x, 2)", "Maxima of windows of volumes.", volume),
        "avg_pool3d": ("F.avg_pool3d(x, 3, stride=2)", "Means of windows of volumes.", volume),
        "global_average": ("F.adaptive_avg_pool2d(x, 1)", "Global average pooling.", IMAGES),
        "global_maximum": ("F.adaptive_max_pool2d(x, 1)", "Global max pooling.", IMAGES),
        "double_max_pool": ("F.max_pool2d(F.max_pool2d(x, 2), 2)", "Two maxima that are one larger one.", IMAGES),
    }  # fmt: skip
    return [
        SuiteTask(name=name, family="pool", doc=doc, forward=form, inputs={"x": shape})
        for name, (form, doc, shape) in forms.items()
    ]


def _products() -> list[SuiteTask]:
    def two(a: str, b: str) -> dict[str, str]:
        return {"a": f"torch.randn({a})", "b": f"torch.randn({b})"}

    forms = {
        "square": ("a @ b", "A square product.", two("2048, 2048", "2048, 2048")),
        "tall": ("a @ b", "A tall matrix times a small one.", two("65536, 64", "64, 64")),
        "tiny_inner": ("a @ b", "An outer product in all but name: the output is the traffic.",
                       two("16384, 16", "16, 16384")),
        "skinny_inner": ("a @ b", "A long inner dimension and a small result.", two("128, 262144", "262144, 128")),
        "vector": ("a @ b", "A matrix times one vector.", two("32768, 8192", "8192, 1")),
        "batched": ("torch.bmm(a, b)", "Many small products.", two("512, 128, 256", "512, 256, 128")),
        "batched_vector": ("torch.bmm(a, b)", "Many matrices times one vector each.",
                           two("512, 512, 512", "512, 512, 1")),
        "transposed_left": ("a.T @ b", "The left factor is transposed.", two("4096, 2048", "4096, 2048")),
        "transposed_right": ("a @ b.T", "The right factor is transposed.", two("2048, 4096", "2048, 4096")),
        "transposed_both": ("a.T @ b.T", "Both factors are transposed.", two("2048, 2048", "2048, 2048")),
        "gram": ("a @ a.T", "A symmetric product.", {"a": "torch.randn(4096, 2048)"}),
        "odd_shape": ("a @ b", "No dimension is a multiple of eight.", two("2047, 1531", "1531, 1999")),
        "lower_triangular": ("torch.tril(a) @ torch.tril(b)", "A product of lower triangular matrices.",
                             two("2048, 2048", "2048, 2048")),
        "upper_of_product": ("torch.triu(a @ b)", "Only half of the product is kept.",
                             two("3072, 3072", "3072, 3072")),
        "diagonal_left": ("torch.diag(a) @ b", "A diagonal matrix from the left scales rows.",
                          two("4096", "4096, 4096")),
        "diagonal_right": ("b @ torch.diag(a)", "A diagonal matrix from the right scales columns.",
                           two("4096", "4096, 4096")),
        "diagonal_of_product": ("torch.diagonal(a @ b)", "Only the diagonal of a product is used.",
                                two("3072, 3072", "3072, 3072")),
        "trace_of_product": ("torch.trace(a @ b)", "The trace of a product is a sum of products.",
                             two("3072, 3072", "3072, 3072")),
        "product_with_vector_last": ("(a @ b) @ c", "Matrices first is the expensive order.",
                                     {**two("2048, 2048", "2048, 2048"), "c": "torch.randn(2048, 1)"}),
        "einsum_batch": ('torch.einsum("bij,bjk->bik", a, b)', "A batched product by einsum.",
                         two("64, 512, 512", "64, 512, 512")),
        "tensor_contraction": ('torch.einsum("nchw,cd->ndhw", a, b)', "A 1x1 convolution by einsum.",
                               two("16, 256, 64, 64", "256, 128")),
        "half_precision": ("a @ b", "bfloat16 inputs on tensor cores.",
                           {"a": "torch.randn(4096, 4096).bfloat16()", "b": "torch.randn(4096, 4096).bfloat16()"}),
        "scalar_multiple": ("a * self.factor", "A matrix times a number.", {"a": ROWS}),
    }  # fmt: skip
    factor = {"scalar_multiple": ("self.factor = factor", {"factor": "1.7"})}
    return [
        SuiteTask(name=f"matmul_{name}", family="matmul", doc=doc, forward=form, inputs=inputs,
             setup=factor.get(name, ("pass", None))[0], init=factor.get(name, ("pass", None))[1])
        for name, (form, doc, inputs) in forms.items()
    ]  # fmt: skip


def _convolutions() -> list[SuiteTask]:
    forms = {
        "conv1d": ("nn.Conv1d(64, 128, 5)", "A plain convolution of signals.", "32, 64, 8192"),
        "conv1d_dilated": ("nn.Conv1d(64, 64, 3, dilation=8, padding=8)", "A dilated one.", "32, 64, 8192"),
        "conv2d_3x3": ("nn.Conv2d(64, 64, 3, padding=1)", "The work horse of image networks.", "32, 64, 64, 64"),
        "conv2d_1x1": ("nn.Conv2d(256, 128, 1)", "A product over channels.", "16, 256, 64, 64"),
        "conv2d_first": ("nn.Conv2d(3, 64, 7, stride=2, padding=3)", "Three channels in: few operations a byte.",
                         "32, 3, 224, 224"),
        "conv2d_asymmetric": ("nn.Conv2d(64, 64, (5, 3), padding=(2, 1))", "An oblong kernel.", "16, 64, 96, 64"),
        "conv2d_strided": ("nn.Conv2d(64, 128, 3, stride=2, padding=1)", "Every other pixel.", "32, 64, 96, 96"),
        "conv2d_dilated": ("nn.Conv2d(64, 64, 3, dilation=2, padding=2)", "Holes in the kernel.", "16, 64, 64, 64"),
        "conv2d_grouped": ("nn.Conv2d(128, 128, 3, padding=1, groups=8)", "Eight groups.", "32, 128, 64, 64"),
        "conv2d_depthwise": ("nn.Conv2d(256, 256, 3, padding=1, groups=256)", "One filter a channel.",
                             "16, 256, 96, 96"),
        "conv2d_depthwise_wide": ("nn.Conv2d(128, 128, 7, padding=3, groups=128)", "Large filters, one a channel.",
                                  "16, 128, 96, 96"),
        "conv3d": ("nn.Conv3d(16, 32, 3, padding=1)", "A convolution of volumes.", "8, 16, 24, 48, 48"),
        "conv3d_pointwise": ("nn.Conv3d(64, 32, 1)", "A product over the channels of volumes.", "8, 64, 16, 48, 48"),
        "conv_transpose1d": ("nn.ConvTranspose1d(64, 64, 4, stride=2, padding=1)", "Upsampling of signals.",
                             "32, 64, 4096"),
        "conv_transpose2d": ("nn.ConvTranspose2d(64, 32, 4, stride=2, padding=1)", "Upsampling of images.",
                             "16, 64, 64, 64"),
        "conv_transpose2d_unit": ("nn.ConvTranspose2d(64, 64, 3, padding=1)", "Stride one: a flipped convolution.",
                                  "16, 64, 64, 64"),
        "conv_transpose2d_grouped": ("nn.ConvTranspose2d(64, 64, 3, stride=2, padding=1, groups=4)",
                                     "Upsampling in groups.", "16, 64, 64, 64"),
        "conv_transpose3d": ("nn.ConvTranspose3d(16, 16, 3, stride=2, padding=1, output_padding=1)",
                             "Upsampling of volumes.", "4, 16, 16, 32, 32"),
        "conv2d_separable": ("nn.Sequential(nn.Conv2d(128, 128, 3, padding=1, groups=128), nn.Conv2d(128, 128, 1))",
                             "A depthwise and a pointwise convolution.", "16, 128, 64, 64"),
    }  # fmt: skip
    return [
        SuiteTask(name=name, family="convolution", doc=doc, forward="self.conv(x)", setup=f"self.conv = {layer}",
             inputs={"x": f"torch.randn({shape})"})
        for name, (layer, doc, shape) in forms.items()
    ]  # fmt: skip


def _attention() -> list[SuiteTask]:
    heads = dict.fromkeys("qkv", "torch.randn(8, 12, 1024, 64)")
    by_hand = (
        "scores = q @ k.transpose(-2, -1) / 8.0\n{mask}return torch.softmax(scores, dim=-1) @ v"
    )
    causal = (
        "hidden = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device).triu(1)\n"
        'scores = scores.masked_fill(hidden, float("-inf"))\n'
    )
    return [
        SuiteTask(name="attention_by_hand", family="attention", doc="Attention with the scores in memory.",
             forward=by_hand.format(mask=""), inputs=heads),
        SuiteTask(name="attention_causal_by_hand", family="attention", doc="Causal attention with a mask in memory.",
             forward=by_hand.format(mask=causal), inputs=heads),
        SuiteTask(name="attention_fused", family="attention", doc="Attention by the library: hard to beat.",
             forward="F.scaled_dot_product_attention(q, k, v)", inputs=heads),
        SuiteTask(name="attention_relu", family="attention",
             doc="Near miss: ReLU instead of softmax, so no library call fits.",
             forward="torch.relu(q @ k.transpose(-2, -1) / 8.0) @ v", inputs=heads),
        SuiteTask(name="attention_linear", family="attention",
             doc="Linear attention in the expensive order: keys and values belong together first.",
             forward="(F.elu(q) + 1) @ (F.elu(k) + 1).transpose(-2, -1) @ v", inputs=heads),
        SuiteTask(name="attention_one_query", family="attention", doc="Decoding: one query, a long cache.",
             forward=by_hand.format(mask=""),
             inputs={"q": "torch.randn(32, 16, 1, 64)", "k": "torch.randn(32, 16, 4096, 64)",
                     "v": "torch.randn(32, 16, 4096, 64)"}),
    ]  # fmt: skip


TASKS: list[SuiteTask] = [
    *_activations(),
    *_normalizations(),
    *_reductions(),
    *_losses(),
    *_pools(),
    *_products(),
    *_convolutions(),
    *_attention(),
]
