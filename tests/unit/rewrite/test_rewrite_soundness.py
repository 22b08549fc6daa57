"""What changes between two calls: the rewritten forward gives eager's answer, or takes eager's
path."""

import copy
import functools
import io
import pickle
import sys
import types

import pytest
import torch
from rewrite_helpers import graph_of, module, program, rewrite, session, sites, skill, workload

from kernel_lsp.errors import CaptureError
from kernel_lsp.records import ArgSpec, Step, Workload, WorkloadOrigin
from kernel_lsp.rewrite.capture.overriding import called_code, conditions
from kernel_lsp.rewrite.capture.questions import decides_by_batch, unanswerable
from kernel_lsp.rewrite.engine import EngineSession

pytestmark = pytest.mark.torch

X = torch.randn(6, 8, generator=torch.Generator().manual_seed(0))
WIDE = "self.fc = nn.Linear(8, 400)"
BIG = "torch.randn(64, 8)"
LINEAR = "reassociate-linear-reduction"


def loaded(source: str, name: str = "rewritten_soundness") -> types.ModuleType:
    made = types.ModuleType(name)
    sys.modules[name] = made
    exec(compile(source, "<soundness>", "exec"), made.__dict__)
    return made


def pair(
    source: str, skill_name: str, **options: object
) -> tuple[torch.nn.Module, torch.nn.Module]:
    """Eager and rewritten, with the same weights, in eval mode."""
    after = loaded(rewrite(source, skill_name, **options).program).Model()
    before = loaded(source, "before_soundness").Model()
    before.load_state_dict(after.state_dict())
    torch._dynamo.reset()
    return before.eval(), after.eval()


def takes_the_fast_path(made: torch.nn.Module, *inputs: object) -> bool:
    """Whether it does eagerly; torch.compile must answer alike, without a break in the graph."""
    originals = [name for name in dir(made) if name.startswith("_forward_eager")]
    for name in originals:
        setattr(made, name, lambda *_: None)
    compiled = torch.compile(made, backend="eager", fullgraph=True)
    eagerly, compiled_so = made(*inputs) is not None, compiled(*inputs) is not None
    for name in originals:
        delattr(made, name)
    torch._dynamo.reset()
    assert eagerly == compiled_so
    return eagerly


def agree(before: torch.nn.Module, after: torch.nn.Module, *inputs: object) -> None:
    torch.testing.assert_close(
        after(*inputs), before(*inputs), equal_nan=True, rtol=1e-4, atol=1e-4
    )


def both(change, *modules: torch.nn.Module) -> None:
    for item in modules:
        change(item)


def names_in(made: torch.nn.Module) -> dict:
    return type(made).__init__.__globals__


RANGE = "y = torch.sigmoid(x)\nreturn F.relu(y) * {}"


@pytest.mark.parametrize(
    "read, init, change",
    [
        ("self._scale", "self._scale = 2.0", lambda m: setattr(m, "_scale", 3.0)),
        ("self.table['a']", "self.table = {'a': 2.0}", lambda m: m.table.update(a=3.0)),
        ("self.pair[1]", "self.pair = [1.0, 2.0]", lambda m: m.pair.__setitem__(1, 3.0)),
        ("self.limit", "self.limit = float('inf')", lambda m: setattr(m, "limit", 1.0)),
        ("self.act(x)", "self.act = torch.tanh", lambda m: setattr(m, "act", torch.sin)),
        ("(1 if self.bias is None else 2)", "self.register_parameter('bias', None)",
         lambda m: setattr(m, "bias", torch.nn.Parameter(torch.ones(1)))),
    ],
)  # fmt: skip
def test_whatever_forward_reads_from_self_may_change(read, init, change) -> None:
    before, after = pair(module(RANGE.format(read), init), "value-range-collapse")
    assert takes_the_fast_path(after, X)
    agree(before, after, X)
    both(change, before, after)
    agree(before, after, X)


def test_fields_of_an_object_on_self_may_change() -> None:
    source = module(RANGE.format("self.cfg.scale"), "self.cfg = Config()")
    source = source.replace("class Model", "class Config:\n    scale = 2.0\n\n\nclass Model")
    before, after = pair(source, "value-range-collapse")
    agree(before, after, X)
    before.cfg.scale = after.cfg.scale = 5.0
    agree(before, after, X)


CONFIG = (
    "class Config:\n    def __init__(self, scale):\n        self.scale = scale\n\n\nclass Model"
)


@pytest.mark.parametrize(
    "read, init, change",
    [
        ("self.configs[1].scale", "self.configs = {1: Config(2.0), 2: Config(4.0)}",
         lambda m: setattr(m.configs[1], "scale", 3.0)),
        ("self.configs[1].scale", "self.configs = {1: Config(2.0)}",
         lambda m: m.configs.update({1: type(m.configs[1])(3.0)})),
        ("self.pair[0][0].scale", "self.pair = [[Config(2.0), None]]",
         lambda m: setattr(m.pair[0][0], "scale", 3.0)),
        ("(self.a.scale + self.b.scale)", "self.a = self.b = Config(2.0)",
         lambda m: setattr(m, "b", type(m.a)(3.0))),
        ("len([c for c in self.some if c.scale > 0])", "self.some = [Config(2.0)]",
         lambda m: m.some.append(type(m.some[0])(3.0))),
        ("float(self.array[1])", "import numpy\nself.array = numpy.array([1, 2])",
         lambda m: m.array.__setitem__(1, 5)),
    ],
)  # fmt: skip
def test_objects_within_containers_and_arrays_may_change(read, init, change) -> None:
    source = module(RANGE.format(read), init).replace("class Model", CONFIG)
    before, after = pair(source, "value-range-collapse")
    agree(before, after, X)
    assert after._forward_eager is not None
    both(change, before, after)
    agree(before, after, X)


SCALING = """def scaled(x, by=1.0):
    return x * by


class Scaling:
    def __init__(self, by):
        self.by = by

    def __call__(self, x):
        return x * self.by


class Adding(Scaling):
    def __call__(self, x):
        return x + self.by


class Model"""


@pytest.mark.parametrize(
    "init, change",
    [
        ("import functools\nself.act = functools.partial(scaled, by=2.0)",
         lambda m: setattr(m, "act", functools.partial(m.act.func, by=3.0))),
        ("import functools\nself.act = functools.partial(scaled, by=2.0)",
         lambda m: setattr(m, "act", torch.tanh)),
        ("self.act = Scaling(2.0)", lambda m: setattr(m.act, "by", 3.0)),
        ("self.act = Scaling(2.0)\nself.other = Adding(2.0)",
         lambda m: setattr(m, "act", m.other)),
    ],
)  # fmt: skip
def test_what_is_called_on_an_instance_may_change(init, change) -> None:
    source = module("y = torch.sigmoid(x)\nreturn self.act(F.relu(y))", init)
    before, after = pair(source.replace("class Model", SCALING), "value-range-collapse")
    assert takes_the_fast_path(after, X)
    agree(before, after, X)
    both(change, before, after)
    agree(before, after, X)


def test_objects_with_slots_are_compared() -> None:
    slotted = CONFIG.replace("    def", "    __slots__ = ('scale',)\n\n    def", 1)
    source = module(RANGE.format("self.cfg.scale"), "self.cfg = Config(2.0)")
    before, after = pair(source.replace("class Model", slotted), "value-range-collapse")
    agree(before, after, X)
    before.cfg.scale = after.cfg.scale = 5.0
    agree(before, after, X)


def test_an_object_that_is_made_of_another_within_the_call_is_nobodys_state() -> None:
    made = CONFIG.replace(
        "class Model",
        "    def twice(self):\n        return type(self)(2 * self.scale)\n\n\nclass Model",
    )
    source = module(RANGE.format("self.cfg.twice().scale"), "self.cfg = Config(2.0)")
    before, after = pair(source.replace("class Model", made), "value-range-collapse")
    agree(before, after, X)
    before.cfg.scale = after.cfg.scale = 5.0
    agree(before, after, X)


REGISTERED = """\
import abc

known = []


class Registering(abc.ABCMeta):
    def __new__(meta, name, bases, members, **more):
        assert name not in known
        known.append(name)
        return super().__new__(meta, name, bases, members, **more)


class Named:
    def __init_subclass__(cls, title, **more):
        super().__init_subclass__(**more)


class Config(Named, title="config", metaclass=Registering):
    def __init__(self, scale):
        self.scale = scale


class Model"""


def test_objects_whose_class_hears_of_subclasses_are_compared() -> None:
    source = module(RANGE.format("self.cfg.scale"), "self.cfg = Config(2.0)")
    before, after = pair(source.replace("class Model", REGISTERED), "value-range-collapse")
    agree(before, after, X)
    before.cfg.scale = after.cfg.scale = 5.0
    agree(before, after, X)


def test_an_object_that_no_guard_can_compare_is_refused() -> None:
    with pytest.raises(CaptureError, match=r"self\.seen"):
        graph_of(module("return x * len(self.seen)", "self.seen = {1, 2}"))


OUTPUT = """import dataclasses
from collections import OrderedDict


@dataclasses.dataclass
class Part:
    value: torch.Tensor


@dataclasses.dataclass(slots=True)
class Output:
    first: Part
    second: torch.Tensor | None = None
    name: str = "a"
    rest: tuple = ()


class Model"""


def test_dataclasses_among_the_results_are_made_again() -> None:
    made = "Output(Part(F.relu(y)), name='b', rest=(y, 2))"
    source = module(f"y = torch.sigmoid(x)\nreturn {made}").replace("class Model", OUTPUT)
    before, after = pair(source, "value-range-collapse")
    expected, got = before(X), after(X)
    assert type(got).__name__ == "Output" and type(got.first).__name__ == "Part"
    assert (got.second, got.name, got.rest[1]) == (None, "b", 2)
    torch.testing.assert_close(got.first.value, expected.first.value)
    torch.testing.assert_close(got.rest[0], expected.rest[0])


def test_an_ordered_dict_is_made_again() -> None:
    made = "OrderedDict([('b', F.relu(y)), ('a', Part(y))])"
    source = module(f"y = torch.sigmoid(x)\nreturn {made}").replace("class Model", OUTPUT)
    before, after = pair(source, "value-range-collapse")
    expected, got = before(X), after(X)
    assert type(got).__name__ == "OrderedDict" and list(got) == ["b", "a"]
    torch.testing.assert_close(got["b"], expected["b"])
    torch.testing.assert_close(got["a"].value, expected["a"].value)


@pytest.mark.parametrize(
    "head, made",
    [
        ("    seen = 0\n\n    def __post_init__(self):\n        self.id = object()", "Part(x * 2)"),
        ("", "(lambda p: (setattr(p, 'more', 1), p)[1])(Part(x * 2))"),
        ("", "Part({1, 2})"),
    ],
)
def test_an_object_that_its_fields_do_not_make_is_refused(head, made) -> None:
    text = OUTPUT.replace("    value: torch.Tensor\n", f"    value: torch.Tensor\n{head}\n", 1)
    with pytest.raises(CaptureError, match="returns a"):
        graph_of(module(f"return {made}").replace("class Model", text))


def test_a_tensor_in_the_place_of_a_number_keeps_its_gradient() -> None:
    _, after = pair(module(RANGE.format("self.scale"), "self.scale = 2.0"), "value-range-collapse")
    del after.scale
    after.scale = torch.nn.Parameter(torch.tensor(2.0))
    assert after(X).requires_grad


COUNTED = """
self.calls = 0
def count(module, args, out):
    count.calls += 1
    return out * 2
count.calls = 0
self.c = nn.Conv1d(8, 8, 3)
self.c.register_forward_hook(count)
"""
PLAIN_NORM = "self.c = nn.utils.weight_norm(nn.Conv1d(8, 8, 3))"
COMPUTED_NORM = "self.c = nn.utils.parametrizations.weight_norm(nn.Conv1d(8, 8, 3))"


@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
@pytest.mark.parametrize(
    "init, change",
    [
        (COUNTED, lambda m: m.c._forward_hooks.clear()),
        (COUNTED, lambda m: m.c.register_forward_hook(lambda _m, _i, out: -out)),
        (PLAIN_NORM, lambda m: torch.nn.utils.remove_weight_norm(m.c)),
        (PLAIN_NORM, lambda m: m.c.weight_g.data.mul_(3)),
        (COMPUTED_NORM,
         lambda m: torch.nn.utils.parametrize.remove_parametrizations(m.c, "weight")),
        (COMPUTED_NORM,
         lambda m: torch.nn.utils.parametrize.register_parametrization(m.c, "weight", Negated())),
    ],
)  # fmt: skip
def test_layers_with_hooks_and_computed_weights_are_called_as_they_are(init, change) -> None:
    source = module(
        "y = torch.sigmoid(self.c(x))\nreturn F.relu(y) * 2", init, "torch.randn(2, 8, 16)"
    )
    before, after = pair(source, "value-range-collapse")
    x = torch.randn(2, 8, 16)
    agree(before, after, x)
    if init is COUNTED:
        assert next(iter(after.c._forward_hooks.values())).calls == 1
    else:
        after.c(x).sum().backward()
    both(change, before, after)
    agree(before, after, x)


class Negated(torch.nn.Module):
    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return -weight


def test_what_a_hook_returns_is_no_fact() -> None:
    hooked = "self.c = nn.Conv1d(8, 8, 3)\nself.c.register_forward_hook(lambda m, a, y: y.relu())"
    source = module("return F.relu(self.c(x)) * 2", hooked, "torch.randn(2, 8, 16)")
    assert not sites(source, "value-range-collapse")


@pytest.mark.parametrize(
    "forward, init",
    [
        ("return self.c(self.c(x))", "self.c = nn.Linear(8, 8)"),
        ("return self.c(x)", "self.c = nn.Sequential(nn.Linear(8, 8))"),
        ("return self.c(x)", "self.c = Config(2.0)"),
    ],
)
def test_hooks_that_would_be_lost_are_refused(forward, init) -> None:
    hook = "self.c.register_forward_hook(lambda m, a, y: y * 2)"
    own = CONFIG.replace("class Config:", "class Config(nn.Module):")
    own = own.replace("        self.scale", "        super().__init__()\n        self.scale")
    own = own.replace(
        "\n\n\nclass Model", "\n\n    def forward(self, x):\n        return x + 1\n\n\nclass Model"
    )
    with pytest.raises(CaptureError, match=r"Model\.c has a forward hook"):
        graph_of(module(forward, f"{init}\n{hook}").replace("class Model", own))


class Lora(torch.nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + 1


def lora(made: torch.nn.Module) -> None:
    made.fc.__class__ = Lora


def hooked(made: torch.nn.Module) -> None:
    made.fc.register_forward_hook(lambda _m, _i, out: out * 2)


def weight_norm(made: torch.nn.Module) -> None:
    torch.nn.utils.parametrizations.weight_norm(made.fc)


@pytest.mark.parametrize("change", [lora, hooked, weight_norm])
def test_a_replaced_layer_may_get_another_class_or_a_hook(change) -> None:
    before, after = pair(module("return self.fc(x).sum(dim=1)", WIDE, BIG), LINEAR)
    x = torch.randn(64, 8)
    agree(before, after, x)
    both(change, before, after)
    agree(before, after, x)


def test_the_stride_of_a_replaced_layer_may_change() -> None:
    init = "self.conv = nn.Conv2d(3, 4, 3)\nself.bn = nn.BatchNorm2d(4)"
    source = module("return self.bn(self.conv(x))", init, "torch.randn(4, 3, 64, 64)")
    before, after = pair(source, "fold-batchnorm-eval", training=False)
    x = torch.randn(4, 3, 64, 64)
    agree(before, after, x)
    both(lambda m: setattr(m.conv, "stride", (2, 2)), before, after)
    agree(before, after, x)


def test_batch_norm_behind_an_unbatched_convolution_is_left_alone() -> None:
    init = "self.conv = nn.Conv2d(3, 8, 1)\nself.bn = nn.BatchNorm2d(8)"
    forward = "y = self.conv(x)\nreturn F.batch_norm(y, self.bn.running_mean, self.bn.running_var)"
    assert (
        sites(module(forward, init, "torch.randn(3, 8, 8)"), "fold-batchnorm-eval", training=False)
        == []
    )


def test_under_autocast_the_dtypes_are_eagers() -> None:
    before, after = pair(module("return self.fc(x).sum(dim=1)", WIDE, BIG), LINEAR)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        agree(before, after, torch.randn(64, 8))


def test_a_module_in_another_dtype_takes_eagers_path() -> None:
    forward = "return self.fc(x.to(self.fc.weight.dtype)).mean(dim=1)"
    before, after = pair(module(forward, WIDE, BIG), LINEAR)
    both(lambda m: m.double(), before, after)
    agree(before, after, torch.randn(64, 8))


@pytest.mark.parametrize(
    "forward, skill_name",
    [
        ("return torch.relu(torch.clamp(x, 0.0, 1.0))", "value-range-collapse"),
        ("return torch.clamp(F.hardtanh(x, 0.0, 1.0), 0.0, 1.0)", "value-range-collapse"),
        ("return torch.clamp(torch.clamp(x, 0.0, 1.0), 1.0, 2.0)", "value-range-collapse"),
        ("return F.relu(F.leaky_relu(x, 0.1))", "value-range-collapse"),
        ("return torch.softmax(torch.tanh(x[:, :1]) , dim=1) * x", "singleton-reduction"),
        ("y = torch.sigmoid(x[:, :1]).nan_to_num()\nreturn x[:, :1].logsumexp(1) + (y - y)[:, 0]",
         "singleton-reduction"),
    ],
)  # fmt: skip
def test_gradients_are_eagers_at_every_kink(forward: str, skill_name: str) -> None:
    before, after = pair(module(forward), skill_name)
    x = torch.tensor([[0.0, 1.0, -0.0, 2.0, -1.0, 0.5, 3.0, -2.0]] * 6)
    grads = []
    for made in (before, after):
        own = x.clone().requires_grad_()
        made(own).sum().backward()
        grads.append(own.grad)
    torch.testing.assert_close(grads[1], grads[0], rtol=0, atol=0)


HOISTED = module(
    "keep = torch.tril(torch.ones(8, 8))\nreturn x @ (keep * 2)", "self.fc = nn.Linear(8, 8)"
)


def test_a_tensor_built_in_inference_mode_serves_training_later() -> None:
    _, after = pair(HOISTED, "hoist-invariant-tensors")
    with torch.inference_mode():
        after(X)
    own = X.clone().requires_grad_()
    after(own).sum().backward()
    assert own.grad is not None


def test_a_module_with_a_kept_tensor_is_copied_pickled_and_exported() -> None:
    before, after = pair(HOISTED, "hoist-invariant-tensors")
    assert list(after.state_dict()) == list(before.state_dict())
    agree(before, copy.deepcopy(after), X)
    agree(before, pickle.load(io.BytesIO(pickle.dumps(after))), X)
    torch.export.export(after, (X,), strict=False)
    agree(before, after, X)  # the tracer's own tensors did not stay behind


def test_rewriting_a_class_and_its_heir_ends_in_no_circle() -> None:
    base = module(RANGE.format("2.0"))
    heir = "\n\nclass Heir(Model):\n    def forward(self, x):\n        y = torch.tanh(F.relu(x))\n"
    heir += "        return super().forward(F.relu(y))\n"
    whole = base.replace("\n\ndef get_inputs", heir + "\n\ndef get_inputs")
    name = "value-range-collapse"
    opened = EngineSession(program(whole, "Heir"), workload(), "cpu", [skill(name)])
    made = opened.propose([Step(skill=name, site=opened.capture().sites[0].site)]).candidate.program
    first = rewrite(base, name).program
    text = first + made[made.index("class Heir") : made.index("def get_inputs")]
    odd = X.double()  # refused by both guards
    torch.testing.assert_close(loaded(text).Heir()(odd), loaded(whole).Heir()(odd))


SCALED = (
    "import torch\n\n\ndef gate(x, scale=2.0, mask=None):\n    y = torch.relu(torch.sigmoid(x)) * "
    "scale\n"
)
SCALED += (
    "    return y if mask is None else y * mask\n\n\ndef get_inputs():\n    return "
    "[torch.randn(4, 4){}]\n"
)


@pytest.mark.parametrize("more", ["", ", 2.0, torch.ones(4, 4)"])
@pytest.mark.parametrize(
    "call",
    [{}, {"scale": 3.0}, {"mask": torch.zeros(4, 4)}, {"mask": 0.5}, {"scale": torch.tensor(2.0)}],
)
def test_defaults_of_a_function_are_checked_like_arguments(more: str, call: dict) -> None:
    source = SCALED.format(more)
    opened = EngineSession(
        program(source, "gate", "function"), workload(), "cpu", [skill("value-range-collapse")]
    )
    made = opened.propose(
        [Step(skill="value-range-collapse", site=opened.capture().sites[0].site)]
    ).candidate
    x = torch.randn(4, 4)
    torch.testing.assert_close(loaded(made.program).gate(x, **call), loaded(source).gate(x, **call))


def test_a_longer_tuple_of_inputs_takes_eagers_path() -> None:
    source = module(
        "return sum(F.relu(torch.sigmoid(v)) for v in x)", inputs="(torch.ones(2), torch.ones(2))"
    )
    before, after = pair(source, "value-range-collapse")
    for count in (1, 2, 3):
        agree(before, after, (torch.ones(2),) * count)


def test_variable_arguments_are_refused() -> None:
    with pytest.raises(CaptureError, match=r"\*args"):
        graph_of(module("return x").replace("(self, x)", "(self, x, *rest)"))


@pytest.mark.parametrize(
    "question", ["torch.is_grad_enabled()", "x.requires_grad", "torch.compiler.is_compiling()"]
)
def test_questions_that_capture_answers_differently_are_refused(question: str) -> None:
    with pytest.raises(CaptureError, match="asks for"):
        graph_of(module(f"return x if {question} else -x"))


def test_a_branch_on_the_device_is_refused_for_the_device_only() -> None:
    source = "def f(x):\n    return x if x.device.type == 'cuda' else -x\n"
    assert unanswerable(source, "cuda") == "x.device.type" and unanswerable(source, "cpu") is None


@pytest.mark.parametrize(
    "body, decides",
    [
        ("return x if x.shape[0] > 100 else -x", True),
        ("n, c = x.shape\n    return x if n % 2 else -x", True),
        ("n = min(len(x), 8)\n    return x[:n]", True),
        ("rows = 2 * x.size(0)\n    return x if rows == 64 else -x", True),
        ("n, c = x.shape\n    assert c == 8\n    return x.view(n, c, 1)", False),
        ("assert x.shape[-1] == 8 and x.size(1) > 3\n    return x.reshape(x.shape[0], -1)", False),
        ("y = x.view(x.shape[0], -1)\n    return y > 0", False),
    ],
)
def test_control_flow_by_batch_size_is_seen(body: str, decides: bool) -> None:
    assert decides_by_batch(f"def forward(x):\n    {body}\n") is decides


def test_a_program_that_decides_by_its_batch_fixes_it() -> None:
    source = module("y = F.relu(torch.sigmoid(x))\nreturn y if x.shape[0] < 100 else y + 1")
    before, after = pair(source, "value-range-collapse")
    for rows in (1, 6, 13, 99, 100):
        agree(before, after, torch.randn(rows, 8))


def test_a_result_never_becomes_the_input_itself() -> None:
    source = module(
        "return x[:, :1].clone().sum(dim=1, keepdim=True), F.relu(torch.relu(x)), torch.relu(x)"
    )
    for name in ("singleton-reduction", "value-range-collapse"):
        before, after = pair(source, name)
        agree(before, after, X)
    source = module("return x.sum(dim=1, keepdim=True)", inputs="torch.randn(6, 1)")
    _, after = pair(source, "singleton-reduction")
    x = torch.randn(6, 1)
    assert after(x).data_ptr() != x.data_ptr()


def test_a_copy_of_a_parameter_is_not_needless() -> None:
    init = "self.w = nn.Parameter(torch.randn(2, 3, 4, 4))"
    source = module("return x + self.w.contiguous().view(-1)[:8].to(x.device)", init)
    assert sites(source, "remove-dead-work") == []


@pytest.mark.parametrize(
    "expression",
    [
        "F.relu(F.softplus(x, beta=-1.0))", "torch.round(x.clamp(0, 7), "
                                            "decimals=-1).clamp(max=7.0)",
        "torch.ones(6, 8, dtype=torch.int32).view(torch.float32).clamp(min=0.5)",
        "F.relu(-x.abs()) + torch.full((8,), 2.7, dtype=torch.int64)",
        "1 / torch.abs(x.clamp(min=0.0))",
    ],
)  # fmt: skip
def test_values_outside_of_the_usual_range_are_not_collapsed(expression: str) -> None:
    assert sites(module(f"return {expression}"), "value-range-collapse") == []


def test_facts_of_a_wide_range_do_not_survive_a_narrow_dtype() -> None:
    graph = graph_of(module("return torch.sigmoid(x).to(torch.bfloat16).mul(1e5).half()"))
    assert graph.fact(graph.outputs[0]).may_be_inf


def test_a_loss_outside_of_a_kernel_runs() -> None:
    source = module("return F.mse_loss(F.relu(torch.sigmoid(x)), x)")
    before, after = pair(source, "value-range-collapse")
    agree(before, after, X)


def test_a_given_argument_stays_a_keyword() -> None:
    source = "import torch\n\n\ndef f(x, *, p=1.0):\n    return torch.relu(torch.sigmoid(x)) * p\n"
    specs = (ArgSpec(name=None, dtype="float32", shape=(3, 4)), ArgSpec(name="p", value=3.0))
    load = Workload(name="p", origin=WorkloadOrigin.PRAGMA, inputs=specs)
    opened = EngineSession(
        program(source, "f", "function"), load, "cpu", [skill("value-range-collapse")]
    )
    made = opened.propose(
        [Step(skill="value-range-collapse", site=opened.capture().sites[0].site)]
    ).candidate
    x = torch.randn(3, 4)
    for p in (1.0, 3.0):
        torch.testing.assert_close(loaded(made.program).f(x, p=p), loaded(source).f(x, p=p))


def test_rms_norm_by_hand_belongs_to_one_skill() -> None:
    source = module(
        "return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)",
        inputs="torch.randn(64, 4096)",
    )
    opened = session(source, "fused-norm", "fused-reduction")
    owners = {name for name, rewrite_ in opened.rewrites.items() if rewrite_.match(opened.graph)}
    assert owners == {"fused-norm"}


CODE = """
import torch
import torch.nn as nn
import torch.nn.functional as F


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 8)

    def forward(self, x):
        return self.fc(x)


class Scale:
    factor = 2.0

    def half(self, x):
        return x / self.factor


class Base(nn.Module):
    offset = staticmethod(torch.neg)

    def gate(self, x):
        return F.relu(torch.sigmoid(x))

    @classmethod
    def shifted(cls, x):
        return x + 1

    @property
    def doubled(self):
        return self.block.fc.bias * 2


class Model(Base):
    def __init__(self):
        super().__init__()
        self.block, self.scale = Block(), Scale()

    def forward(self, x):
        y = self.gate(self.block(x)) * self.scale.half(x) + self.doubled
        return self.shifted(y) + self.offset(x)


def get_inputs():
    return [torch.randn(6, 8)]
"""


def subclass(**members: object):
    def change(made: torch.nn.Module) -> None:
        kind = type(made)
        made.__class__ = type("Other", (kind,), members)

    return change


def other_block(made: torch.nn.Module) -> None:
    kind = type(made.block)
    made.block.__class__ = type("Other", (kind,), {"forward": lambda self, x: self.fc(x) * 3})


def borrowed_forward(made: torch.nn.Module) -> None:
    """The same function, bound to another block."""
    other = type(made.block)()
    other.fc.weight.data.fill_(0.5)
    other.fc.bias.data.zero_()
    made.block.forward = other.forward


def hooked_block(made: torch.nn.Module) -> None:
    made.block.register_forward_hook(lambda _m, _i, out: out * 2)


def other_scale(made: torch.nn.Module) -> None:
    made.scale.__class__ = type("Other", (type(made.scale),), {"half": lambda self, x: x * 7})


@pytest.mark.parametrize(
    "change",
    [
        subclass(gate=lambda self, x: x.sin()),
        subclass(offset=staticmethod(torch.exp)),
        subclass(shifted=classmethod(lambda cls, x: x + 9)),
        subclass(doubled=property(lambda self: self.block.fc.bias * 5)),
        lambda made: setattr(made, "gate", types.MethodType(lambda self, x: x.cos(), made)),
        lambda made: setattr(made.block, "forward", lambda x: x - 4),
        other_block,
        borrowed_forward,
        hooked_block,
        other_scale,
    ],
)  # fmt: skip
def test_code_that_forward_calls_may_be_overridden(change) -> None:
    before, after = pair(CODE, "value-range-collapse")
    assert takes_the_fast_path(after, X)
    agree(before, torch.compile(after, backend="eager", fullgraph=True), X)
    both(change, before, after)
    agree(before, after, X)


@pytest.mark.parametrize("doubled, kept", [("", True), (" + self.doubled", False)])
def test_a_subclass_that_overrides_nothing_keeps_the_fast_path(doubled: str, kept: bool) -> None:
    """But for properties, which are compared by the class of the object."""
    _, after = pair(CODE.replace(" + self.doubled", doubled), "value-range-collapse")
    subclass(extra=1)(after)
    assert takes_the_fast_path(after, X) is kept


def test_classes_that_the_file_does_not_name_are_compared_by_their_names() -> None:
    class Act:
        by_object = functools.partial(torch.mul, 2)

        def method(self) -> None: ...

    act, here = Act(), "test_classes_that_the_file_does_not_name_are_compared_by_their_names"
    name = f"{here}.<locals>.Act"
    for member, expected in [
        (
            "method",
            'getattr(getattr(type(self.act).method, "__code__", None), "co_qualname", None) == '
            f"'{name}.method' and \"method\" not in self.act.__dict__",
        ),
        ("by_object", f'type(self.act).__qualname__ == "{name}"'),
    ]:
        called = called_code(member, getattr(act, member), act, Act)
        assert called is not None
        assert conditions("self.act", called, {}) == [expected]


LAYERED = """
import torch
import torch.nn as nn
import torch.nn.functional as F


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.fc = nn.Linear(width, width)

    def forward(self, x):
        return x + self.fc(x)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        {init}

    def forward(self, x):
        {body}
        return F.relu(torch.sigmoid(x))


def get_inputs():
    return [torch.randn(6, 8)]
"""
BLOCKS = "self.blocks = nn.ModuleList([Block(8), Block(8), Block(8)])"
LINEARS = "self.blocks = nn.ModuleList([nn.Linear(8, 8), nn.Linear(8, 8)])"
EACH = "for block in self.blocks: x = block(x)"
SEQUENCE = "self.blocks = nn.Sequential(Block(8), nn.Tanh())"
NAMED = "self.blocks = nn.ModuleDict({'p': Block(8), 'q': nn.Linear(8, 8)})"
MAYBE = "x = x if self.fc is None else self.fc(x)"


def another_linear() -> torch.nn.Module:
    torch.manual_seed(3)
    return torch.nn.Linear(8, 8)


def append(m: torch.nn.Module) -> None:
    m.blocks.append(another_linear())


def drop_last(m: torch.nn.Module) -> None:
    del m.blocks[-1]


def rename(m: torch.nn.Module) -> None:
    m.blocks.pop("q")
    m.blocks.update({"r": another_linear()})


def hook_blocks(m: torch.nn.Module) -> None:
    m.blocks.register_forward_hook(lambda _m, _i, result: result * 2)


@pytest.mark.parametrize(
    "init, body, change",
    [
        (BLOCKS, EACH, append),
        (BLOCKS, EACH, drop_last),
        (LINEARS, EACH, append),
        (LINEARS, EACH, drop_last),
        (SEQUENCE, "x = self.blocks(x)", append),
        (SEQUENCE, "x = self.blocks(x)", drop_last),
        (SEQUENCE, "x = self.blocks(x)", hook_blocks),
        ("self.blocks = nn.ModuleList([])", "x = x if len(self.blocks) else x * 2", append),
        (BLOCKS, "for block in self.blocks[:2]: x = block(x)\n        x = x * len(self.blocks)",
         append),
        (NAMED, "for block in self.blocks.values(): x = block(x)", rename),
        (NAMED, "for key in self.blocks: x = self.blocks[key](x)",
         lambda m: m.blocks.update({"r": another_linear()})),
        ("self.blocks = nn.ParameterList([torch.ones(8) * 2])", "for p in self.blocks: x = x * p",
         lambda m: m.blocks.append(torch.ones(8) * 5)),
        ("self.blocks = nn.ParameterDict({'a': torch.ones(8) * 2})",
         "for p in self.blocks.values(): x = x * p",
         lambda m: m.blocks.update({"b": torch.ones(8) * 5})),
        ("self.fc = nn.Linear(8, 8)", "for layer in self.children(): x = layer(x)",
         lambda m: m.add_module("z", another_linear())),
        ("self.fc = nn.Linear(8, 8)", MAYBE, lambda m: setattr(m, "fc", None)),
        ("self.fc = Block(8)", MAYBE, lambda m: setattr(m, "fc", None)),
        ("self.fc = None", MAYBE, lambda m: (delattr(m, "fc"), setattr(m, "fc", another_linear()))),
        ("self.fc = nn.Linear(8, 8)", "x = self.fc(x) if isinstance(self.fc, nn.Linear) else x",
         lambda m: setattr(m, "fc", torch.nn.Tanh())),
        ("self.register_buffer('s', torch.ones(8) * 2)", "x = x if self.s is None else x * self.s",
         lambda m: setattr(m, "s", None)),
        ("self.fc = nn.Linear(8, 8)", "x = self.fc(x) * self.fc.in_features",
         lambda m: setattr(m.fc, "in_features", 3)),
    ],
)  # fmt: skip
def test_another_instance_may_have_other_layers(init: str, body: str, change) -> None:
    before, after = pair(LAYERED.format(init=init, body=body), "value-range-collapse")
    assert takes_the_fast_path(after, X)
    agree(before, after, X)
    both(change, before, after)
    agree(before, after, X)


def test_the_layers_are_asked_for_where_torch_compile_follows() -> None:
    before, after = pair(LAYERED.format(init=BLOCKS, body=EACH), "value-range-collapse")
    agree(before, torch.compile(after, backend="eager", fullgraph=True), X)
    both(append, before, after)
    agree(before, torch.compile(after, backend="eager", fullgraph=True), X)


@pytest.mark.parametrize(
    "made",
    [
        "x.new_tensor(self.offsets)",
        "torch.tensor(self.offsets, device=x.device)",
        "torch.tensor(self.offsets, dtype=torch.float64)",
    ],
)
def test_a_tensor_made_of_an_array_is_a_constant_while_the_array_is(made: str) -> None:
    source = module(
        f"return F.relu(torch.sigmoid(x + {made}))",
        "import numpy\nself.offsets = numpy.arange(8, dtype='float32')",
    )
    before, after = pair(source, "value-range-collapse")
    agree(before, after, X)
    both(lambda m: m.offsets.__setitem__(3, 9.0), before, after)
    agree(before, after, X)


@pytest.mark.parametrize(
    "init, called, change",
    [
        ("self.acts = {'a': torch.tanh}", "self.acts['a'](x)",
         lambda m: m.acts.update(a=torch.sin)),
        ("self.acts = [torch.tanh]", "self.acts[0](x)", lambda m: m.acts.__setitem__(0, torch.sin)),
        ("self.act = F.gelu", "self.act(x)", lambda m: setattr(m, "act", torch.nn.functional.silu)),
    ],
)  # fmt: skip
def test_functions_in_containers_may_be_exchanged(init: str, called: str, change) -> None:
    source = module(f"return F.relu(torch.sigmoid(x)) * {called}", init)
    before, after = pair(source, "value-range-collapse")
    assert takes_the_fast_path(after, X)
    agree(before, torch.compile(after, backend="eager", fullgraph=True), X)
    both(change, before, after)
    agree(before, after, X)


LOCAL = """import functools


def doubled(function):
    @functools.wraps(function)
    def inner(x):
        return function(x) * 2

    return inner


@doubled
def soft(x):
    return torch.tanh(x)


def other(x):
    return x * 3


def tanh(x):
    return x * 5


def tripled():
    return lambda x: x * 3


class Model"""


@pytest.mark.parametrize(
    "init, change",
    [
        ("self.act = lambda t: t * 2", lambda m: setattr(m, "act", lambda t: t * 3)),
        ("self.act = lambda t, by=2.0: t * by",
         lambda m: setattr(m.act, "__defaults__", (3.0,))),
        ("self.act = other", lambda m: setattr(m, "act", torch.tanh)),
    ],
)  # fmt: skip
def test_functions_of_the_same_file_may_be_exchanged(init: str, change) -> None:
    source = module("return F.relu(torch.sigmoid(x)) * self.act(x)", init)
    before, after = pair(source.replace("class Model", LOCAL), "value-range-collapse")
    assert takes_the_fast_path(after, X)
    agree(before, torch.compile(after, backend="eager", fullgraph=True), X)
    both(change, before, after)
    agree(before, after, X)
    agree(before, torch.compile(after, backend="eager", fullgraph=True), X)


@pytest.mark.parametrize(
    "init, change",
    [
        ("self.act = soft", lambda m: setattr(m, "act", m.act.__wrapped__)),
        ("self.act = soft.__wrapped__",
         lambda m: setattr(m, "act", names_in(m)["soft"])),
    ],
)  # fmt: skip
def test_a_decorated_function_is_not_what_it_decorates(init: str, change) -> None:
    source = module("return F.relu(torch.sigmoid(x)) * self.act(x)", init)
    before, after = pair(source.replace("class Model", LOCAL), "value-range-collapse")
    agree(before, after, X)
    both(change, before, after)
    agree(before, after, X)
    agree(before, torch.compile(after, backend="eager", fullgraph=True), X)


@pytest.mark.parametrize(
    "init, called",
    [
        ("self.act = lambda t: t * 2\nself.act = lambda t: t * 3", "self.act(x)"),
        ("by = 2.0\nself.act = lambda t: t * by", "self.act(x)"),
        ("by = [2.0]\nself.acts = [lambda t: t * by[0]]", "self.acts[0](x)"),
        ("self.act = nn.Softplus(beta=2.0).forward", "self.act(x)"),
    ],
)
def test_functions_without_a_name_of_their_own_are_refused(init: str, called: str) -> None:
    """Two of one name, or what cannot be compared: no guard would see another one."""
    with pytest.raises(CaptureError, match="cannot be checked"):
        graph_of(module(f"return F.relu(torch.sigmoid(x)) * {called}", init))


TAKING = module("return F.relu(torch.sigmoid(x)) * act(x)").replace("(self, x)", "(self, x, act)")
TAKING = TAKING.replace("class Model", LOCAL)


@pytest.mark.parametrize(
    "given, other",
    [
        ("other", "soft"),
        ("torch.tanh", "torch.sin"),
        ("torch.tanh", "tanh"),
        ("lambda t: t * 2", "tripled()"),
        ("soft", "soft.__wrapped__"),
    ],
)
def test_functions_among_the_arguments_may_be_others(given: str, other: str) -> None:
    text = TAKING.replace("def get_inputs", f"ACT = {given}\n\n\ndef get_inputs")
    before, after = pair(text.replace("(6, 8)]", "(6, 8), ACT]"), "value-range-collapse")
    functions = names_in(after)
    agree(before, after, X, functions["ACT"])
    agree(before, after, X, eval(other, functions))


def test_a_function_among_the_arguments_that_encloses_a_value_is_refused() -> None:
    text = TAKING.replace("(6, 8)]", "(6, 8), (lambda by: lambda t: t * by)(2.0)]")
    with pytest.raises(CaptureError, match="cannot be checked"):
        graph_of(text)
