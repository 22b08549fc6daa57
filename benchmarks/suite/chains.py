"""Chains: a convolution, a transposed one or a product, followed by two to six small operators.

A row is a base and a list of tails; `_compose` writes the forward pass. Near misses stand beside the
row they resemble, with a constant, a dimension or an order changed so that the tempting rewrite is wrong.
"""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.suite.task import SuiteTask


@dataclass(frozen=True, kw_only=True, slots=True)
class ChainBase:
    """What the chain starts with. ``channels`` and ``spatial`` describe its output."""

    layer: str
    call: str
    inputs: dict[str, str]
    channels: int
    spatial: int
    """Number of dimensions after the channels; 0: rows of features."""


BASES = {
    "linear": ChainBase(layer="nn.Linear(1024, 2048)", call="self.layer(x)", channels=2048, spatial=0,
                   inputs={"x": "torch.randn(4096, 1024)"}),
    "linear_wide": ChainBase(layer="nn.Linear(512, 8192)", call="self.layer(x)", channels=8192, spatial=0,
                        inputs={"x": "torch.randn(1024, 512)"}),
    "linear_narrow": ChainBase(layer="nn.Linear(8192, 512)", call="self.layer(x)", channels=512, spatial=0,
                          inputs={"x": "torch.randn(2048, 8192)"}),
    "matmul": ChainBase(layer="nn.Linear(2048, 1024, bias=False)", call="x @ self.layer.weight.T", channels=1024,
                   spatial=0, inputs={"x": "torch.randn(4096, 2048)"}),
    "conv1d": ChainBase(layer="nn.Conv1d(64, 96, 5, padding=2)", call="self.layer(x)", channels=96, spatial=1,
                   inputs={"x": "torch.randn(32, 64, 4096)"}),
    "conv2d": ChainBase(layer="nn.Conv2d(32, 64, 3, padding=1)", call="self.layer(x)", channels=64, spatial=2,
                   inputs={"x": "torch.randn(32, 32, 96, 96)"}),
    "conv2d_few": ChainBase(layer="nn.Conv2d(3, 24, 3)", call="self.layer(x)", channels=24, spatial=2,
                       inputs={"x": "torch.randn(64, 3, 128, 128)"}),
    "conv3d": ChainBase(layer="nn.Conv3d(8, 24, 3, padding=1)", call="self.layer(x)", channels=24, spatial=3,
                   inputs={"x": "torch.randn(16, 8, 16, 48, 48)"}),
    "conv_transpose2d": ChainBase(layer="nn.ConvTranspose2d(64, 48, 4, stride=2, padding=1)", call="self.layer(x)",
                             channels=48, spatial=2, inputs={"x": "torch.randn(16, 64, 48, 48)"}),
    "conv_transpose3d": ChainBase(layer="nn.ConvTranspose3d(16, 24, 3, stride=2, padding=1)", call="self.layer(x)",
                             channels=24, spatial=3, inputs={"x": "torch.randn(8, 16, 12, 24, 24)"}),
    "bmm": ChainBase(layer="nn.Identity()", call="torch.bmm(x, y)", channels=256, spatial=1,
                inputs={"x": "torch.randn(64, 256, 512)", "y": "torch.randn(64, 512, 256)"}),
}  # fmt: skip

# tail -> (line of forward(), line of __init__ or ""). {dims}: the spatial dimensions, {ones}: shape of a
# value per channel, {pool}: the dimensionality of pooling layers.
TAILS: dict[str, tuple[str, str]] = {
    "bias": ("h = h + self.shift", "self.shift = nn.Parameter(0.1 * torch.randn({ones}))"),
    "scale": ("h = h * self.factor", "self.factor = nn.Parameter(torch.ones({ones}))"),
    "double": ("h = h * 2.0", ""),
    "third": ("h = h / 3.0", ""),
    "subtract": ("h = h - 0.3", ""),
    "relu": ("h = torch.relu(h)", ""),
    "leaky": ("h = F.leaky_relu(h, 0.1)", ""),
    "gelu": ("h = F.gelu(h)", ""),
    "silu": ("h = h * torch.sigmoid(h)", ""),
    "mish": ("h = F.mish(h)", ""),
    "tanh": ("h = torch.tanh(h)", ""),
    "sigmoid": ("h = torch.sigmoid(h)", ""),
    "hardswish": ("h = F.hardswish(h)", ""),
    "elu": ("h = F.elu(h)", ""),
    "softplus": ("h = F.softplus(h)", ""),
    "clamp": ("h = torch.clamp(h, -0.8, 1.2)", ""),
    "clamp_low": ("h = torch.clamp(h, min=0.25)", ""),
    "clamp_zero": ("h = torch.clamp(h, max=0.0)", ""),
    "min_const": ("h = torch.minimum(h, h.new_tensor(0.5))", ""),
    "batch_norm": ("h = self.norm(h)", "self.norm = nn.BatchNorm{norm}d({channels}).eval()"),
    "batch_norm_train": ("h = self.norm(h)", "self.norm = nn.BatchNorm{norm}d({channels})"),
    "group_norm": ("h = self.groups(h)", "self.groups = nn.GroupNorm(8, {channels})"),
    "layer_norm": ("h = self.rows(h)", "self.rows = nn.LayerNorm({channels})"),
    "instance_norm": ("h = F.instance_norm(h)", ""),
    "max_pool": ("h = F.max_pool{pool}d(h, 2)", ""),
    "avg_pool": ("h = F.avg_pool{pool}d(h, 2)", ""),
    "global_avg": ("h = h.mean(dim={dims}, keepdim=True)", ""),
    "global_max": ("h = torch.amax(h, dim={dims}, keepdim=True)", ""),
    "channel_softmax": ("h = torch.softmax(h, dim=1)", ""),
    "channel_mean": ("h = h.mean(dim=1, keepdim=True)", ""),
    "channel_sum": ("h = h.sum(dim=1, keepdim=True)", ""),
    "channel_max": ("h = h.max(dim=1, keepdim=True).values", ""),
    "channel_min": ("h = h.min(dim=1, keepdim=True).values", ""),
    "channel_logsumexp": ("h = torch.logsumexp(h, dim=1, keepdim=True)", ""),
    "channel_variance": ("h = h.var(dim=1, keepdim=True)", ""),
    "center": ("h = h - h.mean(dim=1, keepdim=True)", ""),
    "sum_all": ("h = h.sum(dim=tuple(range(1, h.dim())))", ""),
    "residual": ("h = h + kept", ""),
    "times_kept": ("h = h * kept", ""),
    "keep": ("kept = h", ""),
    "dropout_eval": ("h = self.drop(h)", "self.drop = nn.Dropout(0.2).eval()"),
    "dropout_train": ("h = self.drop(h)", "self.drop = nn.Dropout(0.2)"),
    "weight_mean": ("h = h + self.layer.weight.mean()", ""),
}

# name suffix, tails, sentence
ChainRow = tuple[str, str, str]
ROWS: dict[str, list[ChainRow]] = {
    "linear": [
        ("bias_gelu", "bias gelu", "A bias and GELU after a product."),
        ("scale_residual_relu", "keep scale residual relu", "h * s + h: one factor."),
        ("silu_third_clamp_tanh", "silu third clamp tanh clamp", "Five pointwise steps."),
        ("sum_features", "channel_sum", "The sum of a linear layer's outputs is one vector product."),
        ("mean_features", "channel_mean double", "The mean as well."),
        ("max_features", "channel_max", "Near miss: a maximum does not commute with the product."),
        ("relu_sum", "relu channel_sum", "Near miss: a ReLU stands between the product and the sum."),
        ("sum_then_max", "channel_sum channel_max", "The maximum over one entry is a view."),
        ("sum_then_logsumexp", "channel_sum channel_logsumexp channel_logsumexp", "Twice over one entry: a view."),
        ("sum_then_softmax", "channel_sum channel_softmax", "A softmax over one entry is a constant."),
        ("logsumexp_mish", "channel_logsumexp leaky mish", "A real logsumexp, then pointwise."),
        ("layer_norm_gelu", "layer_norm gelu", "A row norm after the product."),
        ("batch_norm_eval", "batch_norm scale gelu", "A norm that folds into the weights."),
        ("batch_norm_train", "batch_norm_train relu", "Near miss: batch statistics cannot be folded."),
        ("softmax_double", "softplus channel_softmax double", "A softmax over features, scaled."),
        ("dropout_eval_third", "dropout_eval third relu", "Dropout that does nothing in eval mode."),
        ("dropout_train_third", "dropout_train third relu", "Near miss: this dropout draws random numbers."),
        ("group_norm_clamp", "group_norm clamp", "A group norm over features."),
        ("subtract_center", "subtract center gelu", "A constant disappears when rows are centered."),
        ("max_center", "channel_max center gelu", "One entry minus its own mean is zero."),
        ("gate_residual", "keep sigmoid times_kept residual", "A gate and a residual."),
    ],
    "linear_wide": [
        ("bias_relu_sum", "bias relu channel_sum", "A wide layer that is reduced at once."),
        ("double_clamp_sum", "double clamp channel_sum subtract", "The same with a clamp."),
        ("sum_only", "third channel_sum", "A wide layer that is only summed."),
        ("softmax_max", "channel_softmax channel_max", "The largest probability."),
        ("logsumexp", "channel_logsumexp", "Only the normalizer is used."),
        ("center_square", "center keep times_kept channel_mean", "The variance, written out."),
        ("variance", "channel_variance", "The sample variance of features."),
        ("gelu_mean", "gelu channel_mean", "Near miss: GELU before the mean."),
    ],
    "linear_narrow": [
        ("sigmoid_sum", "sigmoid channel_sum", "A narrow layer, reduced."),
        ("scale_tanh_residual", "keep scale tanh residual", "A residual around a bounded branch."),
        ("layer_norm_softmax", "layer_norm channel_softmax", "Two row operations in a row."),
        ("third_double_third", "third double third bias", "Constants that are one constant."),
        ("hardswish_bias", "hardswish bias relu", "Pointwise on a small output: the product is the time."),
        ("clamp_low_min", "clamp_low min_const", "A clamp whose sides do not cross."),
    ],
    "matmul": [
        ("silu_bias", "silu bias", "A product, a gate, a bias."),
        ("third_silu", "third silu", "A scaled product."),
        ("max_pool_like", "leaky channel_max sigmoid", "A maximum over features."),
        ("gelu_softmax", "gelu channel_softmax", "A softmax over activated features."),
        ("scale_batch_norm", "scale batch_norm", "Two affine steps that are one."),
        ("batch_norm_bias_silu", "batch_norm bias third silu", "Affine steps, then a gate."),
        ("weight_mean", "weight_mean relu", "A number that depends on the weights alone."),
    ],
    "conv1d": [
        ("relu_mean", "relu global_avg", "A signal's mean activation."),
        ("batch_norm_relu", "batch_norm relu", "A norm that folds into the convolution."),
        ("max_pool_tanh", "tanh max_pool", "A monotone function before a maximum."),
        ("avg_pool_bias", "avg_pool bias", "An average that can be a longer convolution."),
        ("softmax_channels", "channel_softmax double", "A softmax over channels."),
        ("global_avg_only", "third global_avg", "A mean commutes with the convolution."),
        ("instance_norm_elu", "instance_norm elu", "A norm over time."),
    ],
    "conv2d": [
        ("bias_relu", "bias relu", "Near the smallest chain there is."),
        ("relu_bias", "relu bias", "Near miss: the bias comes after the ReLU."),
        ("batch_norm_relu", "batch_norm relu", "A norm that folds into the convolution."),
        ("batch_norm_train_relu", "batch_norm_train relu", "Near miss: batch statistics."),
        ("mish_mish", "mish mish", "Two activations."),
        ("subtract_hardswish_pool", "subtract hardswish max_pool mish", "A pool between activations."),
        ("group_norm_residual_logsumexp", "keep group_norm tanh hardswish residual channel_logsumexp",
         "A long chain that ends in one channel."),
        ("channel_min_tanh", "channel_min tanh tanh", "A minimum over channels, squashed twice."),
        ("channel_max_one", "channel_max channel_max", "The second maximum is over one channel."),
        ("global_avg_bias_logsumexp", "global_avg bias channel_logsumexp sum_all double",
         "A mean first makes everything else small."),
        ("scale_min", "scale channel_min", "Scaled by values of unknown sign."),
        ("tanh_scale_bias_pool", "tanh scale bias max_pool", "Pointwise, then a pool."),
        ("avg_pool_sigmoid_sum", "avg_pool sigmoid sum_all", "Reduced to one number an image."),
        ("instance_norm_third", "instance_norm third", "A norm, then a constant."),
        ("scale_then_instance_norm", "double instance_norm", "A factor that the norm nearly removes (not epsilon)."),
        ("gelu_global_avg", "gelu global_avg", "Near miss: GELU before the mean."),
        ("global_avg_gelu", "global_avg gelu", "The mean commutes with the convolution, then GELU."),
        ("silu_residual", "keep silu residual clamp", "A residual around a gate."),
        ("group_norm_scale_pool_clamp", "group_norm scale max_pool clamp", "Norm, scale, pool, clamp."),
        ("softplus_tanh_product", "keep softplus tanh times_kept batch_norm", "Mish by hand, then a norm."),
        ("dropout_eval_relu", "dropout_eval relu", "Dropout that does nothing."),
        ("dropout_train_relu", "dropout_train relu", "Near miss: dropout in train mode."),
        ("clamp_zero_relu", "clamp_zero relu", "Clamped to at most zero, then ReLU: always zero."),
        ("clamp_low_relu", "clamp_low relu", "Clamped to at least 0.25: the ReLU does nothing."),
    ],
    "conv2d_few": [
        ("bias_tanh", "bias tanh scale bias", "Few input channels: the output is the traffic."),
        ("channel_min_sum", "channel_min gelu", "Twenty-four channels reduced to one."),
        ("softmax_channels", "channel_softmax", "A softmax over few channels."),
        ("pool_sigmoid", "max_pool sigmoid", "A pool of a large output."),
        ("avg_pool_only", "avg_pool", "An average that can be a strided convolution."),
        ("relu_avg_pool", "relu avg_pool", "Near miss: a ReLU stands between."),
        ("hardswish_global", "hardswish global_avg", "Reduced to one value a channel."),
    ],
    "conv3d": [
        ("relu_leaky_gelu_sigmoid", "relu leaky gelu sigmoid bias", "Five pointwise steps on volumes."),
        ("softmax_pool_pool", "channel_softmax max_pool max_pool", "Two pools that are one."),
        ("group_norm_mean", "group_norm global_avg", "The mean of a normalized volume."),
        ("scale_tanh_scale_sigmoid", "scale tanh bias sigmoid", "Pointwise with two vectors."),
        ("min_softmax", "channel_min channel_softmax", "A softmax over one channel is a constant."),
        ("third_pool_global", "third max_pool global_avg bias", "Pool, then mean."),
        ("leaky_sum_clamp", "leaky bias clamp gelu", "A bias between activations."),
        ("max_logsumexp_relu", "max_pool channel_logsumexp relu", "A pool and a logsumexp."),
    ],
    "conv_transpose2d": [
        ("bias_clamp_scale", "bias clamp double clamp third", "Clamps around constants."),
        ("channel_min_sum_gelu", "channel_min gelu bias", "Upsampled, then one channel."),
        ("global_avg_bias_logsumexp", "global_avg bias channel_logsumexp double",
         "A mean makes the upsampling unnecessary."),
        ("batch_norm_tanh_pool", "batch_norm tanh max_pool group_norm", "Two norms and a pool."),
        ("softmax_bias_sigmoid", "channel_softmax bias double sigmoid", "A softmax in the middle."),
        ("gelu_group_norm", "gelu group_norm", "A norm after an activation."),
        ("mish_subtract_clamp", "mish subtract clamp third", "Pointwise on an upsampled image."),
        ("global_avg_twice", "double global_avg global_avg", "The mean of a mean over one entry."),
        ("max_pool_clamp_mean", "max_pool clamp global_avg tanh", "Pool, clamp, mean."),
    ],
    "conv_transpose3d": [
        ("sum_layer_like", "bias center avg_pool gelu", "Center channels, pool, activate."),
        ("clamp_third", "clamp_low third", "A clamp and a division."),
        ("avg_pool_twice", "avg_pool avg_pool", "Two averages that are one larger one."),
        ("softmax_sigmoid", "channel_softmax sigmoid", "A softmax over channels of volumes."),
        ("batch_norm_avg_pool", "batch_norm avg_pool avg_pool", "A norm and two averages."),
        ("leaky_scale_leaky_pool", "leaky scale leaky max_pool", "Two activations around a factor."),
        ("center_spatial", "batch_norm_train center", "Near miss: batch statistics, then centered."),
        ("residual_chain", "keep bias residual times_kept residual", "h * h + 2h and more."),
        ("max_min", "channel_max subtract softplus", "One channel, then pointwise."),
    ],
    "bmm": [
        ("scale_softmax", "third channel_softmax", "Scores and a softmax over the middle dimension."),
        ("relu_sum", "relu channel_sum", "Products, reduced after a ReLU."),
        ("sum_only", "channel_sum", "Products that are only summed."),
        ("bias_gelu_max", "subtract gelu channel_max", "Products, activated, reduced."),
        ("instance_norm_residual", "keep instance_norm residual times_kept", "A norm and a residual."),
    ],
}  # fmt: skip


def _compose(base_name: str, row: ChainRow) -> SuiteTask:
    name, tails, doc = row
    base = BASES[base_name]
    words = {
        "ones": ", ".join([str(base.channels), *["1"] * base.spatial]),
        "dims": str(tuple(range(2, 2 + base.spatial))),
        "pool": str(base.spatial),
        "norm": str(max(base.spatial, 1)),
        "channels": str(base.channels),
    }
    steps = [TAILS[tail] for tail in tails.split()]
    setup = [f"self.layer = {base.layer}", *(line.format(**words) for _, line in steps if line)]
    body = [f"h = {base.call}", *(line.format(**words) for line, _ in steps), "return h"]
    return SuiteTask(
        name=f"{base_name}_{name}",
        family=base_name,
        doc=doc,
        setup="\n".join(dict.fromkeys(setup)),
        forward="\n".join(body),
        inputs=base.inputs,
    )


TASKS: list[SuiteTask] = [_compose(base, row) for base, rows in ROWS.items() for row in rows]
