"""Another number of warps or pipeline stages at a launch that nobody tunes."""

from __future__ import annotations

from kernel_lsp.rewrite.kernels import heuristics
from kernel_lsp.rewrite.kernels.source import find_calls
from kernel_lsp.rewrite.kernels.view import Kernel, KernelMatch, Proof, proof

OPTIONS = ("num_warps", "num_stages")
WARPS, STAGES = (1, 2, 4, 8, 16, 32), (1, 2, 3, 4, 5)
MAX_GUESSED = 16
"""Of warps: 32 leave each thread 64 registers, which only a measurement can favor."""
DEFAULT_WARPS, DEFAULT_STAGES = 4, 3
"""Triton's own, where a launch says nothing."""
NUMBERS_A_THREAD, NUMBERS_OF_A_TILE, MAX_NUMBERS = 8, 64, 128


def match(kernel: Kernel) -> list[KernelMatch]:
    if len(kernel.source.launches()) != 1 or not kernel.launched or kernel.launched[0].configs:
        return []
    summary = "launch with the warps and stages that measured best"
    return [KernelMatch(f"launch of {kernel.source.kernel}", summary, 0.1)]


def preconditions(kernel: Kernel, match: KernelMatch) -> list[Proof]:
    launch, settled = kernel.source.launches()[0], heuristics.decided_names(kernel)
    spread = any(k.arg is None for k in launch.call.keywords)
    named = launch.keyword("num_warps") is not None
    options = kernel.launched[0].options
    decided = [name for name in options if launch.keyword(name) is None and name not in settled]
    free = not spread and not decided
    return [
        proof(
            "nothing else sets them",
            named or free or "num_warps" in settled,
            "the kernel's heuristics do, which overrule its launches"
            if "num_warps" in settled
            else "the launch names them, which nothing can do twice"
            if named
            else "the launch names its keywords, and no heuristic adds to them"
            if free
            else f"{', '.join(decided) or '**options'} may be set elsewhere",
        ),
        *([_prove_unread(kernel)] if settled & {*OPTIONS} else []),
        _prove_unasked(kernel),
    ]


def _prove_unasked(kernel: Kernel) -> Proof:
    asked = find_calls(kernel.function, "num_warps")
    return proof(
        "the kernel does not ask for them", not asked, "its text reads neither warps nor stages"
    )


def _prove_unread(kernel: Kernel) -> Proof:
    """Other launches of the kernel get them too, and compute the same."""
    others = sorted({name for option in OPTIONS for name in heuristics.readers(kernel, option)})
    return proof(
        "nothing else comes from them",
        not others,
        f"{', '.join(others) or 'no other constant'} is computed from them",
    )


def parameters(kernel: Kernel, match: KernelMatch) -> dict[str, list[object]]:
    options = kernel.launched[0].options
    warps = options.get("num_warps", DEFAULT_WARPS)
    guess = _guess(kernel)
    first = [guess, warps] if guess != warps else [8 if warps != 8 else 4, warps]
    found: dict[str, list[object]] = {"num_warps": list(dict.fromkeys([*first, *_few(kernel)]))}
    launch = kernel.source.launches()[0]
    free = launch.keyword("num_stages") is not None or all(k.arg for k in launch.call.keywords)
    free = free or "num_stages" in heuristics.decided_names(kernel)
    loops = any("range" in kernel.text(n) for n in kernel.function.body)
    if free and loops and find_calls(kernel.function, "dot"):
        stages = options.get("num_stages", DEFAULT_STAGES)
        found["num_stages"] = [stages, *(s for s in STAGES if s != stages)]
    return found


def apply(kernel: Kernel, match: KernelMatch, parameters: dict[str, object]) -> None:
    now, settled = kernel.launched[0].options, heuristics.decided_names(kernel)
    numbers = {n: value for n, value in parameters.items() if n in settled and value != now.get(n)}
    heuristics.settle(kernel, numbers)
    parameters = {name: value for name, value in parameters.items() if name not in settled}
    launch = kernel.source.launches()[0]
    said = {name: node for name in parameters if (node := launch.keyword(name)) is not None}
    changed = {node: str(parameters[name]) for name, node in said.items()}
    added = [
        f"{name}={value}"
        for name, value in parameters.items()
        if name not in said and value != now.get(name, _default(name))
    ]
    if added:
        last = [*launch.call.args, *(k.value for k in launch.call.keywords)][-1]
        changed[last] = ", ".join([changed.get(last, kernel.text(last)), *added])
    for node, text in changed.items():
        kernel.replace(node, text)


def _guess(kernel: Kernel) -> int:
    """Eight numbers a thread (128 bits of float32 twice, or of float16 once), of a product's tile
    64."""
    return max((w for w in WARPS if w <= min(_wanted_warps(kernel), MAX_GUESSED)), default=1)


def _few(kernel: Kernel) -> list[int]:
    """Without those whose threads would hold more than 128 numbers: they spill, and compile for
    minutes."""
    fewest = _wanted_warps(kernel) * _numbers(kernel) // MAX_NUMBERS
    return [w for w in WARPS if w >= fewest]


def _wanted_warps(kernel: Kernel) -> int:
    sizes = sorted(
        v for v in kernel.launched[0].constants.values() if isinstance(v, int) and v >= 16
    )
    multiplies = bool(find_calls(kernel.function, "dot")) and len(sizes) > 1
    tile = sizes[-1] * sizes[-2] if multiplies else max(sizes, default=1024)
    return int(tile // (32 * _numbers(kernel)))


def _numbers(kernel: Kernel) -> int:
    return NUMBERS_OF_A_TILE if find_calls(kernel.function, "dot") else NUMBERS_A_THREAD


def _default(name: str) -> int:
    return DEFAULT_WARPS if name == "num_warps" else DEFAULT_STAGES
