"""Cross entropy of maps: logits [images, classes, positions...], one target for each position.

Neighbors in memory are positions, so a program takes a block of them and walks over the classes;
each lane keeps its own maximum and sum, and no probability is written. A second launch adds what
the programs left. Covered: mean, sum and none; ignore_index; class weights; label smoothing;
training, but not with both. Not covered: maps whose channels lie innermost, probabilities as
targets."""

from __future__ import annotations

from typing import Any

from torch import fx

from kernel_lsp.rewrite.codegen.backward import kernels as backward
from kernel_lsp.rewrite.codegen.core import launching, source
from kernel_lsp.rewrite.codegen.core.nodes import dtype_name
from kernel_lsp.rewrite.codegen.loss.cross_entropy import (
    HOW,
    covered_rank,
    is_trainable,
    logits_of,
    match_loss,
    operands,
    put,
    settings_of,
    smoothing_of,
    weight_of,
)
from kernel_lsp.rewrite.codegen.loss.cross_entropy_maps_source import (
    BACKWARD,
    COUNTED,
    KEEP,
    KERNEL,
    SCALED,
    SMOOTHING,
    STORE,
    TOTAL,
    WEIGHTED,
)
from kernel_lsp.rewrite.generated import GeneratedSource, Match
from kernel_lsp.rewrite.graph import Graph, argument

PARAMETERS: dict[str, list[Any]] = {"BLOCK_SIZE": [256, 512, 128], "num_warps": [4, 8]}


def matches(graph: Graph) -> list[Match]:
    """Cross entropies of maps that one kernel can compute, with their gradients where the graph has
    them."""
    return [
        _match(graph, node)
        for node in graph.nodes
        if _is_covered(node) and is_trainable(graph, node)
    ]


def _is_covered(node: fx.Node) -> bool:
    logits = logits_of(node)
    if logits is None or covered_rank(node) < 3:
        return False
    value = logits.meta["val"]
    # One class: channels-last is contiguous too.
    return bool(value.is_contiguous() and value.shape[1] > 1)


def _match(graph: Graph, node: fx.Node) -> Match:
    data = {"parameters": PARAMETERS, "cross_entropy_maps": True}
    return match_loss(graph, node, operands(node), "cross entropy of maps", data)


def apply(graph: Graph, match: Match, choice: dict[str, Any]) -> None:
    """Puts the generated kernel in the loss's place."""
    node = graph.named(match.data["nodes"][0])
    name = launching.unique_name(graph, "fused_cross_entropy")
    kernel = _CrossEntropyWriter(node, name, choice, graph.gradients).generated()
    put(graph, node, kernel)


class _CrossEntropyWriter:
    """Kernels and launchers for one call."""

    def __init__(self, node: fx.Node, name: str, choice: dict[str, Any], trained: bool) -> None:
        self.node, self.name, self.trained = node, name, trained
        self.how, self.ignore = (
            HOW[argument(node, "reduction", 1)],
            argument(node, "ignore_index", -100),
        )
        self.weighted, self.smoothing = weight_of(node) is not None, smoothing_of(node)
        self.block, self.warps = choice["BLOCK_SIZE"], choice["num_warps"]
        self.names = ["logits", "target", "weight"] if self.weighted else ["logits", "target"]
        self.counts = trained and self.how == "mean"

    def generated(self) -> GeneratedSource:
        """The kernels with their launcher, for both ways where it is trained."""
        parts = [self._kernel()]
        if self.how != "none":
            parts.append(self._total())
        parts.append(self._launcher())
        if self.trained:
            parts += [backward.AGAIN, self._backward()]
        return GeneratedSource(
            name=self.name,
            imports=source.IMPORTS,
            definitions="\n\n".join(parts),
            summary="cross entropy",
            supports_autograd=self.trained,
        )

    def _kernel(self) -> str:
        more = dict.fromkeys(("before", "step", "smoothed"), "")
        if self.smoothing:
            more = dict(SMOOTHING[self.weighted])
            more["smoothed"] = more["smoothed"].format(
                smoothing=self.smoothing, rest=1.0 - self.smoothing
            )
        return KERNEL.format(
            name=self.name,
            ignore=self.ignore,
            result="loss" if self.how == "none" else "partial",
            label="label" if self.smoothing and self.weighted else "_",
            weight_pointer="weight_ptr, " if self.weighted else "",
            kept_pointer="log_sum_ptr, " if self.trained else "",
            keep=KEEP if self.trained else "",
            weighted=WEIGHTED if self.weighted else "",
            store=STORE[self.how].format(weight="weight" if self.weighted else "1.0"),
            **more,
        )

    def _total(self) -> str:
        more = COUNTED if self.how == "mean" else dict.fromkeys(COUNTED, "")
        pointer, store = "", ""
        if self.counts:
            pointer, store = "count_ptr, ", "    tl.store(count_ptr, tl.sum(lane_count, axis=0))\n"
        return TOTAL.format(name=self.name, count_pointer=pointer, store=store, **more)

    def _launcher(self) -> str:
        dtype, names = dtype_name(self.node.meta["val"].dtype), self.names
        launches = "one launch" if self.how == "none" else "two launches"
        lines = 2 if self.how == "mean" else 1  # a mean counts as well
        result, shape, kind = "partial", f"({lines}, n_programs)", "float32"
        if self.how == "none":
            result, shape, kind = "loss", "target.shape", dtype
        kept = ["log_sum"] if self.trained else []
        sizes = ["n_classes", "n_positions", f"BLOCK_SIZE={self.block}", f"num_warps={self.warps}"]
        called = source.wrap_items(
            f"_{self.name}_kernel[(n_programs,)](",
            [*names, result, *kept, *sizes],
            ")",
            indent=" " * 8,
        )
        text = [
            f"def {self.name}{'_forward' if self.trained else ''}({', '.join(names)}):",
            f'    """Cross entropy in {launches}; no probability is written."""',
            f"    {', '.join(names)} = {', '.join(f'{item}.contiguous()' for item in names)}",
            "    n_images, n_classes = logits.shape[:2]",
            "    n_positions = logits.shape[2:].numel()",
            f"    n_programs = n_images * ({source.blocks('n_positions', self.block)})",
            _empty(result, shape, kind),
            *([_empty("log_sum", "(n_images, 2, n_positions)", "float32")] if kept else []),
            "    if n_programs > 0:  # a grid of zero programs cannot be launched",
            called,
        ]
        if self.how != "none":
            count = ["count"] if self.counts else []
            arguments = ", ".join(["partial", "out", *count, "n_programs"])
            text += [_empty(item, "()", "float32") for item in count] + [
                _empty("out", "()", dtype),
                f"    _{self.name}_total_kernel[(1,)]({arguments}, BLOCK_SIZE=1024, num_warps=4)",
            ]
            kept += count
        returned = ", ".join(["loss" if self.how == "none" else "out", *kept])
        return "\n".join([*text, f"    return {returned}", ""])

    def _backward(self) -> str:
        at = " + image * n_positions + offs, mask=mask" if self.how == "none" else ""
        scale = f"tl.load(grad_out_ptr{at}).to(tl.float32)"
        return BACKWARD.format(
            name=self.name,
            title=source.title(self.name),
            names=", ".join(self.names),
            ignore=self.ignore,
            weight_pointer="weight_ptr, " if self.weighted else "",
            weighted=SCALED if self.weighted else "",
            scale=f"{scale} / tl.load(count_ptr)" if self.counts else scale,
            scale_pointers="grad_out_ptr, count_ptr" if self.counts else "grad_out_ptr",
            scale_values="grad_out, ctx.kept[1]" if self.counts else "grad_out",
            rest=1.0 - self.smoothing,
            smoothed=f" - {self.smoothing} / n_classes" if self.smoothing else "",
            blocks=source.blocks("n_positions", self.block),
            block=self.block,
            warps=self.warps,
            nothing=", ".join("None" for _ in self.names[1:]),
            settings=settings_of(self.node),
        )


def _empty(name: str, shape: str, dtype: str) -> str:
    return f"    {name} = torch.empty({shape}, dtype=torch.{dtype}, device=logits.device)"
