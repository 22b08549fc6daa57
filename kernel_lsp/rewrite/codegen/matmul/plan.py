"""What the source of a matrix product depends on: the product, what follows it, and how it is
cut."""

from __future__ import annotations

from dataclasses import dataclass

from kernel_lsp.devices import REFERENCE
from kernel_lsp.rewrite.codegen.core.ir import Region
from kernel_lsp.rewrite.codegen.matmul import reduced_rows
from kernel_lsp.rewrite.codegen.matmul.operands import MatmulProduct

PROCESSORS = REFERENCE.processors


@dataclass(frozen=True, kw_only=True, slots=True)
class MatmulPlan:
    """How the product is computed: which form, and what one program computes with how much."""

    parts: bool
    """Float32 factors are split before the product, not tile by tile inside of it."""
    rows: int
    cols: int
    inner: int
    warps: int
    stages: int
    splits: int = 1
    """Programs that share the inner dimension of one tile."""
    descriptors: bool = False
    """Parts are read through tensor descriptors, which a launch has to make."""
    persistent: bool = False
    """No more programs than run at the same time, each of which computes tile after tile."""

    @staticmethod
    def parse(text: str) -> MatmulPlan:
        """``parts 128x256x64 warps 8 stages 2 splits 1``; the form is ``parts``, ``pointers``
        (parts as well) or ``tiles``. ``persistent`` may follow."""
        form, sizes, _, warps, _, stages, _, splits, *rest = text.split()
        rows, cols, inner = map(int, sizes.split("x"))
        return MatmulPlan(
            parts=form != "tiles",
            descriptors=form == "parts",
            rows=rows,
            cols=cols,
            inner=inner,
            warps=int(warps),
            stages=int(stages),
            splits=int(splits),
            persistent=rest == ["persistent"],
        )

    def __str__(self) -> str:
        form = "parts" if self.descriptors else "pointers" if self.parts else "tiles"
        sizes = f"{self.rows}x{self.cols}x{self.inner}"
        rest = " persistent" if self.persistent else ""
        return f"{form} {sizes} warps {self.warps} stages {self.stages} splits {self.splits}{rest}"

    @property
    def resident(self) -> int:
        """Programs of a persistent plan for each multiprocessor: eight warps with two sums need
        all of its registers."""
        return max(1, 8 // self.warps)

    @property
    def walkers(self) -> int:
        """Programs of a persistent plan, where there are tiles for all of them."""
        return PROCESSORS * self.resident


@dataclass(frozen=True, kw_only=True, slots=True)
class MatmulJob:
    """Everything that the source depends on."""

    product: MatmulProduct
    region: Region
    left: str
    right: str
    tile: MatmulPlan
    float32: bool
    summary: str
    kept: bool = False
    """A reduction keeps its dimension, with size 1."""

    @property
    def batched(self) -> bool:
        """Whether there are several products."""
        return self.product.batched

    @property
    def parts(self) -> bool:
        """Whether programs compute parts of a tile, so that its form is `parts` or `pointers`."""
        return self.tile.parts

    @property
    def descriptors(self) -> bool:
        """Whether tiles are loaded by tensor descriptors."""
        return self.tile.descriptors

    @property
    def split(self) -> bool:
        """Whether several programs share the inner dimension of one tile."""
        return self.tile.splits > 1

    @property
    def reduced(self) -> bool:
        """Rows or columns of the product are reduced: only that is written."""
        return reduced_rows.keeps(self.region)

    @property
    def down(self) -> bool:
        """Whether the product is reduced over the rows, to an element for each column."""
        return reduced_rows.down(self.region)
