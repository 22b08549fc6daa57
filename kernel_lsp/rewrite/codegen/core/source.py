"""The parts that every generated module shares: kernel and launcher text around a body."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kernel_lsp.rewrite.codegen.core.index import sizes_in
from kernel_lsp.rewrite.codegen.core.ir import Operand, Output, Region
from kernel_lsp.rewrite.codegen.core.ops import helpers_for
from kernel_lsp.rewrite.generated import GeneratedSource

IMPORTS = ("import torch", "import triton", "import triton.language as tl")
MAX_LINE = 110


def kernel_text(name: str, parameters: Sequence[str], doc: str, lines: Sequence[str]) -> str:
    """The text of a jitted kernel: decorator, signature, docstring, lines."""
    head = wrap_items(f"def {name}(", parameters, "):")
    # The state of a generator is another number on each call: nothing is compiled for it.
    jit = (
        '@triton.jit(do_not_specialize=["seed", "turn"])' if "seed" in parameters else "@triton.jit"
    )
    return "\n".join([jit, head, f'    """{doc}"""', *lines, ""])


def wrap_items(head: str, items: Sequence[str], tail: str, indent: str = "") -> str:
    """A call or signature on one line when it fits, else one indented block of items."""
    flat = f"{indent}{head}{', '.join(items)}{tail}"
    if len(flat) <= MAX_LINE:
        return flat
    lines, current = [], ""
    for item in items:
        if current and len(indent) + 4 + len(current) + len(item) + 2 > MAX_LINE:
            lines.append(current.rstrip())
            current = ""
        current += f"{item}, "
    lines.append(current.rstrip())
    return "\n".join(
        [f"{indent}{head}", *(f"{indent}    {line}" for line in lines), f"{indent}{tail}"]
    )


def parameters(region: Region, text: str, *, runtime: Sequence[str]) -> list[str]:
    """Sizes of dimensions that the kernel's text uses, as constexpr, after the runtime ones.

    Sizes are constexpr because dividing by a constant is a multiplication and a shift.
    """
    names = [name for name in sizes_in(text, region.dims) if name not in runtime]
    return [*(name for name in runtime), *(f"{name}: tl.constexpr" for name in names)]


def pointers(region: Region) -> list[str]:
    """The names of the kernel's pointers, one per tensor of the region."""
    return [f"{item.name}_ptr" for item in tensors(region)]


def tensors(region: Region) -> list[Operand | Output]:
    """What the kernel gets pointers to: operands, then outputs."""
    return [*region.operands, *region.outputs]


def describe_region(summary: str, region: Region) -> str:
    """The launcher's docstring: what it computes, and the shape of everything it reads and
    writes."""
    shapes = []
    for item in tensors(region):
        every = (
            range(len(region.dims))
            if isinstance(item, Output) and not item.rowwise
            else region.row_axes
        )
        axes = item.axes if isinstance(item, Operand) else tuple(every)
        share = isinstance(item, Output) and item.columns  # of the sums over all rows
        axes = region.reduced if share else axes
        blocks = isinstance(item, Output) and item.segments
        axes = (*region.row_axes, *region.reduced[:-1]) if blocks else axes
        sizes = ", ".join(region.dims[axis].name for axis in axes)
        shape = f"({sizes}{',' if len(axes) == 1 else ''})" if axes else ""
        shape = f"(n_programs, {sizes})" if share else shape
        shape = f"({sizes}, n_blocks)" if blocks else shape
        shapes.append((item.name, item.dtype, shape))
    return "\n".join(docstring(summary, shapes))


def docstring(summary: str, shapes: Iterable[tuple[str, str, str]]) -> list[str]:
    """Lines of a docstring: the summary, then what the launcher reads and writes, from name, dtype
    and shape ("" for one number) of each."""
    groups: dict[str, list[str]] = {}
    for name, dtype, shape in shapes:
        groups.setdefault(f"{dtype} {shape}" if shape else f"one {dtype} number", []).append(name)
    lines = [f"    {', '.join(names)}: {text}" for text, names in groups.items()]
    return [f'    """{summary}', "", *lines, '    """']


def signature(region: Region) -> str:
    """Parameters of the function that launches the region's kernel: tensors that it reads, views
    that it writes to."""
    views = (output.name for output in region.outputs if output.inner is not None)
    return ", ".join([given(region), *views, *draws(region)])


def given(region: Region) -> str:
    """Names of the region's operands, as a launcher's parameters."""
    return ", ".join(operand.name for operand in region.operands)


def draws(region: Region) -> list[str]:
    """``drawn``, where the kernel draws: the last parameter of its launcher."""
    return ["drawn"] if any(value.op == "kept" for value in region.values) else []


def draw_parameters(region: Region) -> list[str]:
    """What a kernel that draws gets of ``drawn``."""
    return ["seed", "turn", "threads"] if draws(region) else []


def draw_lines(region: Region) -> list[str]:
    """The launcher's line that names them."""
    return ["    seed, turn, threads = drawn"] if draws(region) else []


def make_contiguous(operands: Sequence[Operand]) -> list[str]:
    """Kernels walk memory linearly; contiguous() returns the tensor itself when it already is."""
    wide = [operand for operand in operands if operand.axes]
    if not wide:
        return []
    left = ", ".join(operand.name for operand in wide)
    right = ", ".join(f"{operand.name}.contiguous()" for operand in wide)
    if len(left) + len(right) < MAX_LINE - 10:
        return [f"    {left} = {right}"]
    return [f"    {operand.name} = {operand.name}.contiguous()" for operand in wide]


def size_lines(region: Region, names: Sequence[str]) -> list[str]:
    """The launcher's lines that read the named sizes."""
    return [f"    {dim.name} = {dim.source}" for dim in region.dims if dim.name in names]


def allocate(output: Output, device: str) -> str:
    """The launcher's line that makes an output."""
    if output.shape.endswith(".shape"):
        like = output.shape.removesuffix(".shape")
        return f"    {output.name} = torch.empty_like({like}, dtype=torch.{output.dtype})"
    return (
        f"    {output.name} = torch.empty({output.shape}, dtype=torch.{output.dtype}, "
        f"device={device})"
    )


def result(region: Region) -> str:
    """What the launcher returns, as source: the names of the outputs that it makes, separated by
    commas; not of those that it was given to write to."""
    return ", ".join(output.name for output in region.outputs if output.inner is None)


def generate_source(
    region: Region, kernels: Sequence[str], launcher: str, summary: str
) -> GeneratedSource:
    """The source of kernels and launcher as one module, which also names the numbers that it
    computes with."""
    return module(region.name, [*kernels, launcher], summary, numbers(region))


def module(
    name: str, parts: Sequence[str], summary: str, numbers: tuple[float, ...]
) -> GeneratedSource:
    """Kernels and their launcher, behind the helpers that they call."""
    text = "\n\n".join(parts)
    definitions = "\n\n".join([*helpers_for(text), text])
    return GeneratedSource(
        name=name, imports=IMPORTS, definitions=definitions, summary=summary, numbers=numbers
    )


def numbers(region: Region) -> tuple[float, ...]:
    """Numbers of the program that the kernel computes with."""
    scalars = [
        arg for value in region.values for arg in value.args if isinstance(arg, (int, float))
    ]
    return tuple(float(scalar) for scalar in scalars)


def title(name: str) -> str:
    """A launcher's name as part of a class's."""
    return "".join(word.capitalize() for word in name.split("_"))


def blocks(size: str, block: int) -> str:
    """Source of how many blocks cover ``size``. triton.cdiv says the same and takes the host 1.5
    us: it is made for kernels, and looks at every argument."""
    return size if block == 1 else f"({size} + {block - 1}) // {block}"


def power_of_two(size: str) -> str:
    """Source of the power of two that covers ``size``; triton.next_power_of_2 takes 1.5 us as
    well."""
    return f"1 << max({size} - 1, 0).bit_length()"


def next_power_of_two(n: int) -> int:
    """The least power of two that is not below ``n``; 1 for 0."""
    return 1 << max(0, n - 1).bit_length()


def itemsize(dtype: str) -> int:
    """Bytes of one element."""
    return {"bool": 1, "float16": 2, "bfloat16": 2, "float32": 4, "int32": 4}.get(dtype, 8)
