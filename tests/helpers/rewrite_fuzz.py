"""Random small programs for the rewrite engine, and what it means for a rewrite to be right.

    python tests/helpers/rewrite_fuzz.py FIRST COUNT [triton]     search by hand; prints every failure

A program is a chain of statements drawn from a grammar (layers, products, reductions, pointwise
functions, views, shared values, several results). ``check`` applies each site alone and all of
them greedily, runs the emitted source and compares it with eager: values, dtypes, gradients, other
batches, odd strides."""

from __future__ import annotations

import random
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

import torch

from kernel_lsp.errors import CaptureError, RewriteError
from kernel_lsp.records import Program, Skill, Step, TargetKind, Workload, WorkloadOrigin
from kernel_lsp.rewrite.engine import EngineSession

SKILLS = Path(__file__).resolve().parents[2] / "skills"
PLAIN = sorted(
    n
    for p in SKILLS.glob("*/rewrite.py")
    if not (n := p.parent.name).startswith(("fused-", "triton-"))
)
FUSED = sorted(p.parent.name for p in SKILLS.glob("fused-*/rewrite.py"))
NUMBERS = ["0.0", "1.0", "-1.0", "0.5", "2", "-0.25", "1e-3", "3", "float('inf')", "6.0"]
UNARY = [
    "F.relu({})", "torch.sigmoid({})", "torch.tanh({})", "{}.abs()", "-{}", "F.gelu({})",
    "F.silu({})",
    "torch.exp({})", "F.softplus({})", "{} ** 2", "torch.sqrt({})", "torch.square({})",
    "F.mish({})",
    "F.leaky_relu({}, {s})", "torch.clamp({}, {n}, {n})", "torch.clamp({}, min={n})",
    "{}.clamp(max={n})",
    "F.hardtanh({})", "F.relu6({})", "F.hardswish({})", "{} * {n}", "{} / {n}", "{} + {n}",
    "{n} - {}",
    "F.dropout({}, 0.5, self.training)", "{}.contiguous()", "{}.to(x.dtype)", "torch.round({})",
    "F.elu({})", "torch.where({} > {n}, {}, {n})", "{}.masked_fill({} < {n}, {n})", "{} - {}",
    "torch.floor({})", "F.softplus({}, beta=-1.0)", "torch.log1p({}.abs())", "self.act({})",
    "({} > {n}).to(x.dtype)", "torch.maximum({}, {})", "torch.minimum({}, {})", "{} * {}",
    "{} + {}",
    "torch.where(torch.isnan({}), {n}, {})", "(({} > 0) + ({} > 1)).to(x.dtype)", "{} * self._gain",
    "F.softsign({})", "torch.reciprocal({})", "F.hardsigmoid({})", "{} + torch.ones(1)", "{} * 0.0",
]  # fmt: skip
SHAPED = [  # they keep [rows, columns]
    "torch.softmax({}, dim={d})", "F.log_softmax({}, dim={d})", "F.layer_norm({}, ({c},))",
    "{} - {}.mean(dim={d}, keepdim=True)", "{} / ({}.pow(2).mean(-1, keepdim=True) + 1e-3).sqrt()",
    "{} * torch.rsqrt({}.pow(2).mean(-1, keepdim=True) + 1e-3)", "{}.t().contiguous().t()",
    "F.rms_norm({}, ({c},))", "{} - torch.logsumexp({}, dim={d}, keepdim=True)",
    "{} * {}.sum(dim={d}, keepdim=True)", "{}.view(-1, {c}, 1).squeeze(-1)", "{}.flip(0)",
    "{} - {}[:, :1].amax(dim=1, keepdim=True)", "{} * torch.softmax({}[:, :1], dim=1)",
    "{} + {}[:, :1].mean(dim=1, keepdim=True)", "{} + torch.arange({c}).to(x.dtype)",
    "{} * torch.tril(torch.ones({c}, {c}))[0]", "{} + torch.logsumexp({}[:, 1:2], 1, keepdim=True)",
    "self.bn({})", "self.norm({})", "self.drop({})", "F.normalize({}, dim=1)", "{}.cumsum(1)",
    "{} @ torch.diag(self.vector{c})", "({} @ self.square{c}) @ self.square{c}.t()",
]  # fmt: skip
WIDER = ["self.fc({})", "self.bn4(self.fc({}))", "self.fc({}) / 2", "{} @ self.square4", "self.fc2({})",
         "F.linear({}, self.fc.weight)"]  # fmt: skip
ENDS = [
    "{}", "{}.sum(dim={e})", "{}.mean(dim={e}, keepdim=True)", "{}.amax(dim=1)", "{}.sum()",
    "{}.mean()",
    "{}.max(dim=1)[0]", "torch.logsumexp({}, dim=1)", "{}.var(dim=1)", "{}.norm(dim=1)",
    "{}[:, :1].sum(dim=1, keepdim=True)",
    "({}, {})", "({}, {}.sum(dim=1))", "F.mse_loss({}, {})", "F.smooth_l1_loss({}, y)", "{}.t()",
    "{}.mean(0)",
    "(self.fc({a}) * 2).sum(dim=1)", "self.fc2({a}).mean(dim=1, "
                                     "keepdim=True)", "self.fc({a}).mean(dim=0)",
    "({a} @ self.square4).sum(-1)", "torch.max(self.fc({a}), dim=1, "
                                    "keepdim=True)[0]", "{{'a': {}, 'b': {}}}",
]  # fmt: skip

HEAD = """import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.fc2 = nn.Linear(4, 4, bias=False)
        self.bn, self.bn4 = nn.BatchNorm1d(4), nn.BatchNorm1d(4)
        self.norm, self.act, self.drop = nn.LayerNorm(4), nn.ReLU(), nn.Dropout(0.5)
        self._gain = 0.5
        self.square4 = nn.Parameter(torch.randn(4, 4))
        self.vector4 = nn.Parameter(torch.randn(4))

    def forward(self, x, y):
"""


def program(seed: int) -> str:
    """The source of one module on [rows, 4] inputs."""
    dice = random.Random(seed)
    names, lines = ["x", "y", "x"], []
    for index in range(dice.randint(1, 5)):
        form = dice.choice(dice.choice([UNARY, UNARY, SHAPED, WIDER]))
        name = dice.choice([f"v{index}", f"v{index}", "x"])
        lines.append(f"        {name} = {_fill(form, names, dice)}")
        names += [name, name]
    lines.append(f"        return {_fill(dice.choice(ENDS), names, dice)}")
    rows = dice.choice([2, 3, 5, 6])
    tail = f"\n\ndef get_inputs():\n    return [torch.randn({rows}, 4), torch.randn({rows}, 4)]\n"
    return HEAD + "\n".join(lines) + "\n" + tail


def _fill(form: str, names: list[str], dice: random.Random) -> str:
    form = form.replace("{c}", "4").replace("{d}", dice.choice(["1", "-1", "0"]))
    form = form.replace("{e}", dice.choice(["1", "-1", "0", "(0, 1)"])).replace(
        "{s}", dice.choice(["0.1", "0.0", "1.5"])
    )
    while "{n}" in form:
        form = form.replace("{n}", dice.choice(NUMBERS), 1)
    while "{a}" in form:
        form = form.replace("{a}", dice.choice(names[-3:]), 1)
    value = dice.choice(names[-3:])
    while "{}" in form:
        form = form.replace("{}", value if dice.random() < 0.7 else dice.choice(names), 1)
    return form.replace("{{", "{").replace("}}", "}")


def skill(name: str) -> Skill:
    return Skill(name=name, description="", scope="graph", tags=(), version=1, body="",
                 path=str(SKILLS / name), executable=True)  # fmt: skip


def candidates(source: str, training: bool, names: list[str]) -> list[tuple[str, str]]:
    """(steps in words, rewritten program) for each single site and for the greedy chain."""
    load = Workload(name="fuzz", origin=WorkloadOrigin.GET_INPUTS, training=training)
    target = Program(source=source, entry="Model", kind=TargetKind.MODULE)
    session = EngineSession(target, load, "cpu", [skill(name) for name in names])
    sites = session.capture().sites
    chains = [[Step(skill=s.skill, site=s.site)] for s in sites]
    chain: list[Step] = []
    left = sites
    while left and len(chain) < 8:
        chain = [*chain, Step(skill=left[0].skill, site=left[0].site)]
        left = session.propose(chain).sites_left
    found = [*chains, *([chain] if len(chain) > 1 else [])]
    assert not session.notes, session.notes
    return [
        (" > ".join(f"{s.skill}:{s.site}" for s in steps), session.propose(steps).candidate.program)
        for steps in found
    ]


def load(source: str, training: bool, dtype: torch.dtype) -> Any:
    namespace: dict[str, Any] = {"__name__": "fuzz"}
    exec(compile(source, "<fuzz>", "exec"), namespace)
    torch.manual_seed(0)
    made = namespace["Model"]().to(dtype).train(training)
    with torch.no_grad():
        for item in [*made.parameters(), made.bn.running_var, made.bn4.running_var]:
            drawn = torch.rand(item.shape)  # float32, so that both dtypes get the same numbers
            item.copy_(drawn * 2 - 0.5 if item.dim() > 1 else drawn + 0.5)
    return made


def inputs(source: str, dtype: torch.dtype) -> dict[str, list[torch.Tensor]]:
    """Named pairs of inputs; those after ``batch`` have another size or layout."""
    rows = int(source.rsplit("torch.randn(", 1)[1].split(",")[0])
    torch.manual_seed(1)

    def pair(n: int) -> list[torch.Tensor]:
        return [torch.randn(n, 4).to(dtype), torch.randn(n, 4).to(dtype)]

    x, y = pair(rows)
    spiked = x.clone()
    spiked[0, 0], spiked[1, 1] = float("inf"), float("nan")
    ones, mixed = x.clone(), x.clone()
    ones[0, 0] = float("-inf")
    mixed[0, :2] = torch.tensor([float("nan"), float("inf")], dtype=dtype)
    return {
        "normal": [x, y], "negative": [-x.abs(), -y.abs()], "large": [x * 1e3, y],
        "heavy": [x**3 * 10, y],
        "zero": [torch.zeros_like(x), torch.zeros_like(y)], "whole": [x.round(), y.round()],
        "spiked": [spiked, y], "minus": [ones, y], "mixed": [mixed, mixed],
        "batch 1": pair(1), "batch 2n+1": pair(2 * rows + 1), "batch 2n": pair(2 * rows),
        "strided": [t.t().contiguous().t() for t in pair(rows)],
        "every other": [pair(2 * rows)[0][::2], y],
    }  # fmt: skip


def check(
    before: str,
    after: str,
    training: bool,
    dtype: torch.dtype,
    nonfinite: bool,
    grad: bool,
    finite_inputs: bool = False,
) -> list[str]:
    """What differs, in words."""
    wide = after.replace("torch.float32", "torch.float64") if dtype == torch.float64 else after
    found = []
    for name, values in inputs(before, dtype).items():
        if finite_inputs and not all(bool(v.isfinite().all()) for v in values):
            continue
        theirs = run(load(before, training, dtype), values, grad)
        if not nonfinite and not _finite(theirs):
            continue
        ours = run(load(wide, training, dtype), values, grad)
        why = _differ(theirs, ours, dtype)
        if why and "import_module" in after:  # a kernel may be right where eager's float32 is not
            double = run(load(before, training, torch.float64), [v.double() for v in values], grad)
            why = _differ(double, ours, dtype)
        if why:
            found.append(f"{name} (grad {grad}, training {training}, {dtype}): {why}")
    return found


def run(module: Any, values: list[torch.Tensor], grad: bool) -> Any:
    """(leaves of the result, gradients, whether a result shares memory with an input, state
    afterwards)."""
    torch.manual_seed(2)
    values = [v.detach().requires_grad_(grad) for v in values]
    with torch.set_grad_enabled(grad):
        try:
            result = module(*values)
        except Exception as error:  # eager may refuse a batch: then so must we
            return type(error).__name__
        leaves = (
            list(result.values())
            if isinstance(result, dict)
            else list(result)
            if isinstance(result, tuple)
            else [result]
        )
        grads: list[Any] = []
        if grad and all(leaf.requires_grad for leaf in leaves):
            total = sum(
                (
                    leaf * torch.linspace(0.5, 1.5, leaf.numel(), dtype=leaf.dtype).view(leaf.shape)
                ).sum()
                for leaf in leaves
            )
            grads = list(
                torch.autograd.grad(total, [*values, *module.parameters()], allow_unused=True)
            )
    owners = {t.untyped_storage().data_ptr() for t in [*values, *module.parameters()] if t.numel()}
    shared = [leaf.untyped_storage().data_ptr() in owners for leaf in leaves]
    draws = torch.rand(1)
    return (
        [leaf.detach() for leaf in leaves],
        grads,
        shared,
        list(module.state_dict().values()),
        draws,
        [leaf.requires_grad for leaf in leaves],
    )


def _finite(outcome: Any) -> bool:
    return isinstance(outcome, str) or all(
        bool(t.isfinite().all()) for part in outcome[:2] for t in part if t is not None
    )


def _differ(theirs: Any, ours: Any, dtype: torch.dtype) -> str:
    if isinstance(theirs, str) or isinstance(ours, str):
        return (
            ""
            if isinstance(theirs, str) == isinstance(ours, str)
            else f"{theirs!s:.60} against {ours!s:.60}"
        )
    loose = {"rtol": 1e-7, "atol": 1e-8} if dtype == torch.float64 else {"rtol": 2e-3, "atol": 2e-3}
    for what, a, b in zip(("values", "gradients"), theirs[:2], ours[:2], strict=False):
        if len(a) != len(b):
            return f"{what}: {len(a)} against {len(b)}"
        for one, two in zip(a, b, strict=True):
            if (one is None) != (two is None):
                return f"{what}: {one} against {two}"
            if one is not None:
                one = one.to(two.dtype) if two.dtype == torch.float32 == dtype else one
                if one.dtype != two.dtype or one.shape != two.shape:
                    return f"{what}: {one.dtype} {one.shape} against {two.dtype} {two.shape}"
                scale = one.abs().nan_to_num(0, 0, 0).max().item() if one.numel() else 1.0
                if not torch.allclose(
                    one,
                    two,
                    equal_nan=True,
                    rtol=loose["rtol"],
                    atol=loose["atol"] * max(1.0, scale),
                ):
                    return f"{what}: {one.flatten()[:8]} against {two.flatten()[:8]}"
    if any(b and not a for a, b in zip(theirs[2], ours[2], strict=True)):
        return "a result shares memory with an input"
    if theirs[5] != ours[5]:
        return f"requires_grad {theirs[5]} against {ours[5]}"
    if dtype == torch.float32 and not theirs[1] and theirs[3][0].dtype == torch.float64:
        return ""
    same_state = all(
        torch.allclose(a.double(), b.double(), equal_nan=True)
        for a, b in zip(theirs[3], ours[3], strict=True)
    )
    return (
        "" if same_state and torch.equal(theirs[4], ours[4]) else "buffers or random numbers differ"
    )


PRODUCTS = ("fused-matmul",)
"""They split their factors and say so: an infinite one gives NaN."""


def fused_failures(seed: int) -> tuple[int, list[str]]:
    """The same for each single kernel that could be generated, worth it or not. Needs
    TRITON_INTERPRET=1."""
    source, found, count = program(seed), [], 0
    load_ = Workload(name="fuzz", origin=WorkloadOrigin.GET_INPUTS, training=False)
    target = Program(source=source, entry="Model", kind=TargetKind.MODULE)
    try:
        session = EngineSession(target, load_, "cpu", [skill(name) for name in FUSED])
    except CaptureError:
        return 0, []
    for name, rewrite in session.rewrites.items():
        for match in rewrite.match(session.graph):
            count += 1
            try:
                after = session.propose([Step(skill=name, site=match.label)]).candidate.program
                finite = name in PRODUCTS
                wrong = check(
                    source, _as_file(after), False, torch.float32, not finite, False, finite
                )
            except Exception:
                after, wrong = source, [traceback.format_exc()]
            if wrong:
                found.append(
                    f"seed {seed}, {name}:{match.label}\n" + "\n".join(wrong[:4]) + "\n" + after
                )
    return count, found


def _as_file(text: str) -> str:
    """Triton reads a kernel's source from its file: the program becomes an import from one."""
    with tempfile.NamedTemporaryFile(
        "w", suffix=".py", prefix="fuzz_kernel_", delete=False
    ) as file:
        file.write(text)
    path = Path(file.name)
    made = f"import importlib, sys\nsys.path.insert(0, {str(path.parent)!r})\n"
    return made + f"Model = importlib.import_module({path.stem!r}).Model\n"


REASSOCIATING = ("reassociate", "fold-batchnorm", "diagonal", "avgpool")
"""They sum in another order and say so: infinities may meet elsewhere."""


def failures(seed: int) -> tuple[int, list[str]]:
    """(candidates checked, descriptions of what is wrong) for one random program."""
    source, found, count = program(seed), [], 0
    for training in (False, True) if seed % 4 == 0 else (False,):
        try:
            made = candidates(source, training, PLAIN)
        except CaptureError:
            continue
        except (RewriteError, AssertionError) as error:
            found.append(f"seed {seed}: {error}\n{source}")
            continue
        for steps, after in made:
            count += 1
            nonfinite = not any(word in steps for word in REASSOCIATING)
            try:
                wrong = check(source, after, training, torch.float64, nonfinite, False)
                wrong += check(source, after, training, torch.float32, False, True)
            except Exception:
                wrong = [traceback.format_exc()]
            if wrong:
                found.append(f"seed {seed}, {steps}\n" + "\n".join(wrong[:4]) + "\n" + after)
    return count, found


if __name__ == "__main__":
    torch.set_num_threads(1)
    if "triton" in sys.argv:
        import interpreter_speed

        interpreter_speed.apply()
    first, number = int(sys.argv[1]), int(sys.argv[2])
    total, bad = 0, 0
    for seed in range(first, first + number):
        checked, wrong = (fused_failures if "triton" in sys.argv else failures)(seed)
        total += checked
        bad += bool(wrong)
        for text in wrong:
            print(text, "=" * 80, sep="\n", flush=True)
    print(f"{number} programs, {total} candidates, {bad} programs wrong")
