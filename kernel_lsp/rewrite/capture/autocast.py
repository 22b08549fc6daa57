"""torch.autocast for a capture on fake CPU tensors: the casts that it would make, as operations of
the graph.

torch casts below the level at which a graph is captured, and a fake CPU stands for the GPU, whose
autocast casts other operators. `Autocast` stands between the program and torch's functions and
casts their arguments by the target device's rules. Regions that the program opens itself (``with
torch.autocast(...)``) count as well.

Rules: "CUDA Ops that can autocast" and its CPU twin in torch's documentation
(ATen/autocast_mode.h). Not covered: custom autograd functions with custom_fwd; casts inside of
operators written in C++."""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from kernel_lsp.records import TorchSetting


@dataclass(frozen=True, kw_only=True)
class AutocastRules:
    """Names of torch's functions by what autocast does to their floating arguments."""

    lower: frozenset[str]
    """Cast to the lower precision."""
    float32: frozenset[str]
    """Cast to float32."""
    float32_result: frozenset[str]
    """Computed in float32 unless a dtype is asked for."""
    widest: frozenset[str]
    """Cast to the widest dtype among the arguments."""

    @functools.cached_property
    def all(self) -> frozenset[str]:
        """The names of all functions whose arguments autocast touches."""
        return self.lower | self.float32 | self.float32_result | self.widest


PRODUCTS = frozenset({
    "conv1d", "conv2d", "conv3d", "conv_tbc", "conv_transpose1d", "conv_transpose2d",
    "conv_transpose3d",
    "convolution", "addmm", "matmul", "__matmul__", "__rmatmul__", "einsum", "mm", "linear",
    "addbmm",
    "baddbmm", "bmm", "vecdot", "linalg_vecdot", "prelu", "scaled_dot_product_attention",
})  # fmt: skip
CUDA = AutocastRules(
    lower=PRODUCTS
    | {"addmv", "addr", "mv", "chain_matmul", "multi_dot", "linalg_multi_dot"}
    | {"lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell"},
    float32=frozenset({
        "acos", "asin", "cosh", "erfinv", "exp", "expm1", "log", "log10", "log2", "log1p",
        "reciprocal",
        "rsqrt", "sinh", "tan", "pow", "__pow__", "__rpow__", "softplus", "layer_norm",
        "native_layer_norm",
        "group_norm", "cosine_similarity", "poisson_nll_loss", "cosine_embedding_loss", "nll_loss",
        "nll_loss_nd", "nll_loss2d", "hinge_embedding_loss", "kl_div", "l1_loss", "smooth_l1_loss",
        "huber_loss", "mse_loss", "margin_ranking_loss", "multilabel_margin_loss",
        "soft_margin_loss",
        "triplet_margin_loss", "multi_margin_loss", "binary_cross_entropy_with_logits",
        "cross_entropy_loss",
        "dist", "pdist", "cdist", "renorm", "logsumexp", "frobenius_norm", "nuclear_norm",
        "upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d", "upsample_linear1d",
        "upsample_bilinear2d", "upsample_trilinear3d", "upsample_bicubic2d",
    }),
    float32_result=frozenset({
        "prod", "softmax", "log_softmax", "cumprod", "cumsum", "sum", "linalg_vector_norm",
        "vector_norm",
        "linalg_matrix_norm", "matrix_norm", "norm",
    }),
    widest=frozenset({
        "addcdiv", "addcmul", "atan2", "bilinear", "cross", "dot", "vdot", "grid_sampler",
        "index_put",
        "tensordot", "scatter_add", "cat", "concat", "stack", "hstack", "vstack",
    }),
)  # fmt: skip
CPU = AutocastRules(
    lower=PRODUCTS,
    float32=frozenset({
        "avg_pool3d", "binary_cross_entropy", "grid_sampler", "polar", "quantile", "nanquantile",
        "cdist",
        "mse_loss", "cosine_embedding_loss", "nll_loss_nd", "ctc_loss", "kl_div",
        "multilabel_margin_loss",
        "smooth_l1_loss", "huber_loss", "binary_cross_entropy_with_logits", "l1_loss", "trace",
        "view_as_complex", "cholesky", "inverse", "logdet", "svd", "triplet_margin_loss",
        "soft_margin_loss", "margin_ranking_loss",
        "cosine_similarity", "multi_margin_loss", "hinge_embedding_loss", "poisson_nll_loss",
    }),
    float32_result=frozenset(),
    widest=frozenset({"cat", "stack", "index_copy"}),
)  # fmt: skip
WRITTEN_IN_PYTHON = ("torch.nn.functional", "torch.functional")
"""Modules whose functions would hand the whole call to the mode instead of what they call in
turn."""
ASKS = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")


class Autocast(TorchFunctionMode):
    """Casts as autocast in ``dtype`` does on ``device``; None: it is off where the target is
    called."""

    def __init__(self, dtype: torch.dtype | None, device: str) -> None:
        super().__init__()
        self.device, self.rules = device, CUDA if device == "cuda" else CPU
        self._regions: list[torch.dtype | None] = [dtype]
        self.opened = False
        """The program has opened a region of its own."""
        self._made: weakref.WeakSet[Any] = weakref.WeakSet()

    @classmethod
    def around(cls, setting: TorchSetting, device: str) -> Autocast:
        """Autocast as the program has set it where it calls the target."""
        return cls(getattr(torch, setting.autocast) if setting.autocast else None, device)

    @property
    def dtype(self) -> torch.dtype | None:
        """What products are cast to now; None: nothing is cast."""
        return self._regions[-1]

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        if self.dtype is not None and name in self.rules.all and kwargs.get("out") is None:
            args, kwargs = self._cast(name, args, kwargs)
        return func(*args, **kwargs)

    def _cast(self, name: str, args: Any, kwargs: dict[str, Any]) -> Any:
        if name in self.rules.lower:
            return _to(self.dtype, args, kwargs)
        if name in self.rules.float32:
            return _to(torch.float32, args, kwargs)
        if name in self.rules.float32_result:
            asked = kwargs.get("dtype") is not None or any(isinstance(a, torch.dtype) for a in args)
            return (args, kwargs) if asked else _to(torch.float32, args, kwargs)
        found = {leaf.dtype for leaf in pytree.tree_leaves((args, kwargs)) if _is_cast(leaf)}
        return _to(torch.float32, args, kwargs) if torch.float32 in found else (args, kwargs)

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Sees, while the block runs, what torch's Python functions call, and the program's own
        regions."""
        with contextlib.ExitStack() as stack:
            for module in map(_module, WRITTEN_IN_PYTHON):
                for name in ASKS:
                    if hasattr(module, name):
                        stack.enter_context(_patch(module, name, lambda *tensors: False))
            kind = torch.amp.autocast_mode.autocast
            made, entered, left = kind.__init__, kind.__enter__, kind.__exit__
            stack.enter_context(_patch(kind, "__init__", self._makes(made)))
            stack.enter_context(_patch(kind, "__enter__", self._enters(entered)))
            stack.enter_context(_patch(kind, "__exit__", self._leaves(left)))
            yield

    def _makes(self, original: Any) -> Any:
        def __init__(
            region: Any,
            device_type: str,
            dtype: Any = None,
            enabled: bool = True,
            cache_enabled: Any = None,
        ) -> None:
            if device_type != self.device:
                original(region, device_type, dtype, enabled, cache_enabled)
                return
            default = self._regions[0] or (
                torch.float16 if device_type == "cuda" else torch.bfloat16
            )
            region.device, region._enabled, region._cache_enabled = (
                device_type,
                enabled,
                cache_enabled,
            )
            region.fast_dtype = dtype or default
            self._made.add(region)

        return __init__

    def _is_known(self, region: Any) -> bool:
        """Whether it is on or off is known. One that was made before the capture may be off merely
        because this machine lacks the device: torch is asked, and the region is refused."""
        return region.device == self.device and (region in self._made or region._enabled)

    def _enters(self, original: Any) -> Any:
        def __enter__(region: Any) -> Any:
            if not self._is_known(region):
                return original(region)
            self.opened = True
            self._regions.append(region.fast_dtype if region._enabled else None)
            return region

        return __enter__

    def _leaves(self, original: Any) -> Any:
        def __exit__(region: Any, *error: Any) -> Any:
            if not self._is_known(region):
                return original(region, *error)
            self._regions.pop()
            return False

        return __exit__


def _module(name: str) -> Any:
    return functools.reduce(getattr, name.split(".")[1:], torch)


@contextlib.contextmanager
def _patch(owner: Any, name: str, value: Any) -> Iterator[None]:
    before = vars(owner)[name]
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def _to(dtype: torch.dtype | None, args: Any, kwargs: Any) -> Any:
    def cast(leaf: Any) -> Any:
        return leaf.to(dtype) if _is_cast(leaf) and leaf.dtype != dtype else leaf

    return pytree.tree_map(cast, (args, kwargs))


def _is_cast(leaf: Any) -> bool:
    """Autocast leaves float64 and everything that is no floating tensor alone."""
    return (
        isinstance(leaf, torch.Tensor) and leaf.is_floating_point() and leaf.dtype != torch.float64
    )
