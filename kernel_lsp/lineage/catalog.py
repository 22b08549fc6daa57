"""What each operator is the inverse of: intent, anchor, carrier and pitfalls, for the skills that
come of it.

The order is that of the walk: what the others would stand in the way of goes first. Pure data. Not
covered: which executable skill makes a change again, with which numbers (`lessons`)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from kernel_lsp.records import Skill

RULES = 1
"""Of what is judged and kept; another number begins every walk anew."""
FOLDER = Path(__file__).resolve().parent / "operators"


@dataclass(frozen=True, kw_only=True, slots=True)
class Simplification:
    """One simplification, described by the optimization that it takes back."""

    name: str
    """Of its file."""
    forward: str
    """The skill's name begins with it."""
    intent: str
    anchor: str
    """The pattern of code in the simple form."""
    carrier: str
    """The construct that holds the change."""
    idea: str
    pitfalls: tuple[str, ...]
    tags: tuple[str, ...]


OPERATORS = (
    Simplification(
        name="drop_autotune",
        forward="autotuned",
        intent="Choose blocks, warps and stages by measuring a short list on each shape.",
        anchor="`@triton.jit` kernel with constexpr blocks, launched once with numbers for them",
        carrier="`@triton.autotune(configs=[triton.Config(...)], key=[...])` above `@triton.jit`",
        idea=(
            "Put the numbers that matter into a list of configurations and let `triton.autotune` "
            "measure "
            "them for each new key. The key names the arguments that the best configuration "
            "depends on."
        ),
        pitfalls=(
            "A kernel that adds to its outputs needs `reset_to_zero` or `restore_value`.",
            "An argument that is missing in the key keeps the configuration of another shape.",
        ),
        tags=("autotune", "config", "block", "num_warps"),
    ),
    Simplification(
        name="loads_where_used",
        forward="hoisted-loads",
        intent="Load once before the loop what each turn of it needs.",
        anchor="a `tl.load` in a loop whose address does not depend on the turn",
        carrier="the load stands before the loop, its value in registers",
        idea=(
            "What is the same in each turn is loaded before the loop. The compiler may not do "
            "that by "
            "itself, because a store in between could change it."
        ),
        pitfalls=("It costs registers for as long as the loop runs.",),
        tags=("load", "loop", "invariant", "registers"),
    ),
    Simplification(
        name="one_tile_per_program",
        forward="persistent-tiles",
        intent="Let as many programs as the device holds go through all tiles, and keep what "
        "they share.",
        anchor="one program for each tile: `tl.program_id(0)` is the tile, the grid is "
        "their number",
        carrier=(
            "`for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0))`, grid "
            "`min(tiles, programs)`"
        ),
        idea=(
            "Start only as many programs as run at a time and let each loop over its tiles. What "
            "does not "
            "depend on the tile is loaded once, and the loads of the next tile overlap the end of "
            "this one."
        ),
        pitfalls=(
            "Where there are fewer tiles than programs it changes nothing.",
            "Tiles of unequal work are shared out unequally.",
        ),
        tags=("persistent", "loop", "grid", "tile"),
    ),
    Simplification(
        name="plain_pointers",
        forward="tensor-descriptors",
        intent="Load tiles by tensor descriptors, which Hopper's TMA unit copies without address "
        "arithmetic.",
        anchor="`tl.load(base + rows[:, None] * stride + columns[None, :], mask=...)` of "
        "whole tiles",
        carrier=(
            "`tl.make_tensor_descriptor(base, shape, strides, block_shape)` and its `load([row, "
            "column])`"
        ),
        idea=(
            "Describe the tensor once and load blocks by their corner. Bounds are checked by the "
            "copy unit, "
            "so the masks and most registers for addresses go."
        ),
        pitfalls=(
            "The innermost stride must be 1 and the others multiples of 16 bytes.",
            "Descriptors made in the kernel need `triton.set_allocator` in the launcher.",
            "Before Hopper they are no faster than pointers.",
        ),
        tags=("descriptor", "tma", "hopper", "load"),
    ),
    Simplification(
        name="no_grouped_order",
        forward="grouped-tiles",
        intent="Let programs that run at the same time share rows and columns, so that operands "
        "stay in L2.",
        anchor="`tl.program_id(0)` and `tl.program_id(1)` as the tile of a product",
        carrier="`tl.swizzle2d` on the two numbers of the program",
        idea=(
            "Number the tiles in groups of some rows. What runs at the same time then covers a "
            "nearly "
            "square region, and each loaded block serves several programs."
        ),
        pitfalls=("Small products lie in L2 whole and gain nothing.",),
        tags=("swizzle2d", "l2", "order", "dot"),
    ),
    Simplification(
        name="no_split",
        forward="split-reduction",
        intent="Cut a long reduction into parts, so that the whole device works on few results.",
        anchor="few programs that each loop over a long axis",
        carrier="a constexpr axis of the grid, and `tl.atomic_add` of the parts",
        idea=(
            "Give the reduced axis an axis of the grid. Each program adds up its part, and the "
            "parts are "
            "added with atomics into zeroed outputs."
        ),
        pitfalls=(
            "Sums come in another order each time.",
            "Where results are many it only costs atomics.",
        ),
        tags=("split-k", "atomic_add", "reduction", "grid"),
    ),
    Simplification(
        name="masks_everywhere",
        forward="unmasked-where-it-divides",
        intent="Load without masks where the sizes are known to divide.",
        anchor="`tl.load(..., mask=offsets < n)` in a loop over blocks",
        carrier="a constexpr flag `n % BLOCK == 0` that chooses accesses without a mask",
        idea=(
            "Let the launcher say by a constexpr whether the extent is a multiple of the block. "
            "Where it "
            "is, the masks fall away at compile time and loads become plain vector loads."
        ),
        pitfalls=(
            "The flag must be computed from the extent and the very block that the kernel "
            "is given.",
        ),
        tags=("mask", "divisibility", "constexpr", "load"),
    ),
    Simplification(
        name="whole_loop",
        forward="blocks-that-count",
        intent="End the loop at the last block that the mask leaves anything of.",
        anchor="a loop over all blocks of which a mask discards those past the diagonal",
        carrier="`tl.minimum(end of the row block, length)` as the end of the loop",
        idea=(
            "A causal mask leaves nothing of the blocks past the diagonal. End the loop there; "
            "the mask "
            "stays for the block that the diagonal goes through."
        ),
        pitfalls=("Programs with short loops finish first: let the long ones start first.",),
        tags=("causal", "mask", "loop", "attention"),
    ),
    Simplification(
        name="two_passes",
        forward="online-maximum",
        intent="Find the maximum and what needs it in one pass, correcting by the running maximum.",
        anchor="a loop that finds a maximum, and a second one over the same loads that needs it",
        carrier="running maximum and sum; each turn multiplies what was gathered by `exp(old "
        "- new)`",
        idea=(
            "Keep the maximum so far. When a turn raises it, multiply what was gathered before "
            "by the "
            "exponential of the difference. Everything is read once."
        ),
        pitfalls=(
            "A row that is masked whole has no maximum: begin with a large negative number, not "
            "infinity.",
            "Corrections cost a few exponentials for each turn.",
        ),
        tags=("online", "softmax", "maximum", "one-pass"),
    ),
    Simplification(
        name="plain_exponentials",
        forward="exponentials-of-two",
        intent="Compute exponentials to base 2, which the device has an instruction for.",
        anchor="`tl.exp(x * scale)`",
        carrier="`tl.exp2` with log2(e) folded into a factor that is multiplied anyway",
        idea=(
            "The device computes powers of two. Multiply the scale that is there anyway by "
            "log2(e) once, "
            "and each exponential saves a multiplication."
        ),
        pitfalls=("Where there is no factor to fold it into, nothing is saved.",),
        tags=("exp2", "exp", "softmax", "scale"),
    ),
    Simplification(
        name="no_hints",
        forward="hinted-offsets",
        intent="Tell the compiler that offsets are aligned and contiguous, so that loads are wide.",
        anchor="offsets computed from arguments whose divisibility the compiler does not see",
        carrier="`tl.multiple_of`, `tl.max_contiguous`, `tl.assume`",
        idea=(
            "Where the sizes make it true, say that a start is a multiple of 16 and a range "
            "contiguous. "
            "Loads of single numbers become vector loads."
        ),
        pitfalls=("A promise that does not hold gives wrong numbers without an error.",),
        tags=("multiple_of", "max_contiguous", "alignment", "vector-load"),
    ),
    Simplification(
        name="no_eviction",
        forward="cache-policies",
        intent="Keep in L2 what is read again, and let go what is read once.",
        anchor="`tl.load` of a tensor that a later pass reads again, beside one that streams "
        "through",
        carrier="`eviction_policy=` and `cache_modifier=` of loads and stores",
        idea=(
            "Mark loads that another pass repeats with `evict_last` and what streams through with "
            "`evict_first`. Where the first fit into L2, the second pass does not go to memory."
        ),
        pitfalls=("Where everything fits, or nothing does, it changes nothing.",),
        tags=("eviction", "l2", "cache", "load"),
    ),
    Simplification(
        name="unfused_epilogue",
        forward="fused-epilogue",
        intent="Apply bias and activation before the result leaves the registers.",
        anchor="elementwise torch operations on what the kernel has just stored",
        carrier="the same operations between the last accumulation and `tl.store`",
        idea=(
            "What is elementwise on the result is done on the accumulator, in float32, before "
            "the only "
            "store. It saves reading and writing the whole result for each operation."
        ),
        pitfalls=("Only what needs no other part of the result can move in.",),
        tags=("epilogue", "fusion", "bias", "activation"),
    ),
    Simplification(
        name="exact_products",
        forward="tensor-core-products",
        intent="Multiply on tensor cores, in the type of the operands, and add up in float32.",
        anchor='`tl.dot` of operands that were cast up, or with `input_precision="ieee"`',
        carrier="`tl.dot(a, b, acc)` of the loaded types with a float32 accumulator",
        idea=(
            "Operands that come in half types are multiplied as they are: tensor cores add "
            "the exact "
            "products up in float32, so casting up before gains no digit and loses the "
            "tensor cores."
        ),
        pitfalls=(
            "Of float32 operands TF32 keeps 10 bits; three products (tf32x3) keep nearly all.",
        ),
        tags=("dot", "tensor-cores", "float16", "accumulate"),
    ),
    Simplification(
        name="plain_loops",
        forward="pipelined-loops",
        intent="Let turns of a loop overlap: loads of the next ones are under way while this one "
        "computes.",
        anchor="`for i in range(...)` around loads and arithmetic",
        carrier="`tl.range(..., num_stages=n)`, `flatten=True`, or `tl.static_range`",
        idea=(
            "Say at the loop how many turns may be under way. It helps where a loop has no "
            "`tl.dot`, which "
            "Triton pipelines by itself."
        ),
        pitfalls=("Each stage costs shared memory or registers for one more block.",),
        tags=("range", "num_stages", "pipeline", "loop"),
    ),
    Simplification(
        name="one_stage",
        forward="more-stages",
        intent="Load ahead, so that memory answers while tensor cores compute.",
        anchor="a launch with one stage of a kernel that loops over loads",
        carrier="`num_stages` of the launch or the configuration",
        idea=(
            "With n stages the loads of the next n-1 turns are under way. Take as many as shared "
            "memory "
            "holds blocks for."
        ),
        pitfalls=("Too many stages do not fit into shared memory and do not compile.",),
        tags=("num_stages", "pipeline", "launch", "shared-memory"),
    ),
    Simplification(
        name="smaller_tile",
        forward="larger-blocks",
        intent="Take blocks as large as registers and shared memory hold.",
        anchor="constexpr blocks that cut an axis, given as numbers in the launcher",
        carrier="the numbers of the blocks, and a grid that follows them",
        idea=(
            "A product reads each operand once for each block of the other axis, so twice the "
            "block is half "
            "the traffic. Rows and vectors need enough in flight for each program."
        ),
        pitfalls=(
            "Blocks that spill registers lose more than they save.",
            "Few large blocks leave part of the device idle.",
        ),
        tags=("block", "tile", "grid", "registers"),
    ),
    Simplification(
        name="fewer_warps",
        forward="more-warps",
        intent="Divide a block among enough warps that it stays in registers and loads are many.",
        anchor="a launch with few warps of a kernel with large blocks",
        carrier="`num_warps` of the launch or the configuration",
        idea=(
            "A warp has 32 threads of at most 255 registers. Give a block so many warps that each "
            "thread "
            "holds some dozen numbers."
        ),
        pitfalls=(
            "More warps than work leave threads idle and cost synchronization in reductions.",
        ),
        tags=("num_warps", "launch", "occupancy", "registers"),
    ),
)


FROM_NAIVE = Simplification(
    name="whole",
    forward="from-naive",
    intent="Take the steps of an expert's kernel one after the other, from its naive form on.",
    anchor="a kernel that has none of these steps yet",
    carrier="the launch, its options and the kernel's loops, as the steps say",
    idea=(
        "Each step is an executable skill with the numbers that the expert's kernel had. The "
        "engine proves "
        "each of them anew; the order is that in which they build upon each other."
    ),
    pitfalls=("The numbers belong to the sizes and the device that they were measured on.",),
    tags=("course", "launch", "block", "kernel"),
)
"""All recipes of one lineage in order."""


def operators() -> tuple[Skill, ...]:
    """The operators as skills, as the engine loads them, in the order of the walk."""
    return tuple(
        Skill(
            name=one.name,
            description=one.intent,
            scope="triton",
            tags=one.tags,
            version=1,
            body="",
            path=str(FOLDER / f"{one.name}.py"),
            executable=True,
        )
        for one in OPERATORS
        if (FOLDER / f"{one.name}.py").exists()
    )


def operator(name: str) -> Simplification:
    """The operator of that name, which must be one of OPERATORS."""
    return next(one for one in OPERATORS if one.name == name)


def place(name: str) -> int:
    """The operator's number in the order of the walk."""
    return [one.name for one in OPERATORS].index(name)
