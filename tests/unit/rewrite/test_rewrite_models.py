"""Rewrites of whole models: what is found, what must not fire, and the source that a user gets."""

import re

import pytest
from rewrite_helpers import (
    assert_same,
    instance,
    module,
    program,
    rewrite,
    session,
    sites,
    skill,
    workload,
)

from kernel_lsp.records import Candidate, Site, Step

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")

from kernel_lsp.rewrite.engine import EngineSession  # noqa: E402
from kernel_lsp.rewrite.loops.unrolled import loops_of  # noqa: E402

LAYERS = "self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(6))"
CHAIN = "for layer in self.layers:\n    x = torch.relu(layer(x))\nreturn x"


def on_cuda(source: str, *names: str, training: bool | None = None) -> EngineSession:
    return EngineSession(
        program(source), workload(training), "cuda", [skill(name) for name in names]
    )


def graph_sites(source: str, training: bool | None = None) -> tuple[Site, ...]:
    opened = on_cuda(source, "cuda-graph", training=training)
    found = opened.capture().sites
    assert not opened.notes
    return found


def wrapped(source: str, *before: str) -> Candidate:
    """The program inside a recorded graph, after every site of the other skills."""
    opened = on_cuda(source, "cuda-graph", *before)
    steps: list[Step] = []
    left = opened.capture().sites
    while plain := [site for site in left if not site.wraps]:
        steps.append(Step(skill=plain[0].skill, site=plain[0].site))
        left = opened.propose(steps).sites_left
    last = opened.propose([*steps, Step(skill="cuda-graph", site=left[0].site)])
    assert last.sites_left == () and not opened.notes
    return last.candidate


# --- cuda-graph ----------------------------------------------------------------------------


def test_small_kernels_are_replayed_from_a_graph_around_the_original_forward() -> None:
    text = wrapped(module(CHAIN, LAYERS)).program
    assert "return _replayed(self, self._forward_eager, x)" in text
    assert "_forward_steps" not in text
    assert "not torch.compiler.is_compiling()" in text and "torch.is_grad_enabled()" in text


def test_rewritten_steps_are_a_method_with_the_conditions_on_layers() -> None:
    init = f"{LAYERS}\nself.drop = nn.Dropout(0.5)\nself.eval()"
    text = wrapped(
        module(CHAIN.replace("return x", "return self.drop(x)"), init), "remove-dead-work"
    ).program
    outer, steps = (
        text.index("    def forward(self, x):"),
        text.index("    def _forward_steps(self, x):"),
    )
    assert steps < outer and "return _replayed(self, self._forward_steps, x)" in text[outer:]
    assert "not drop.training" in text[steps:outer] and "self.drop" not in text[outer:]
    assert "x.is_cuda" in text[outer:] and "x.is_cuda" not in text[steps:outer]


def test_the_program_still_runs_where_there_is_no_device() -> None:
    namespace: dict[str, object] = {}
    exec(wrapped(module(CHAIN, LAYERS)).program, namespace)
    made, x = namespace["Model"](), torch.randn(6, 8)  # type: ignore[operator]
    torch.testing.assert_close(made(x), made._forward_eager(x))


NOT_RECORDED = {
    "an input is returned": (f"{CHAIN}, y", LAYERS, "x, y"),
    "two views of one result": (f"{CHAIN}, x.t()", LAYERS, "x"),
    "a part of a larger result": (f"{CHAIN}[:, 2:]", LAYERS, "x"),
    "numbers from the host": (f"{CHAIN} * torch.tensor([1.0, 2.0] * 4)", LAYERS, "x"),
    "a tensor that is no buffer": (
        f"{CHAIN} * self.scale",
        f"{LAYERS}\nself.scale = torch.ones(8)",
        "x",
    ),
    "inputs in a list": (CHAIN.replace("return", "x = x + y[0]\nreturn"), LAYERS, "x, y"),
}


@pytest.mark.parametrize("case", NOT_RECORDED)
def test_what_a_replay_would_get_wrong_is_refused(case: str) -> None:
    forward, init, arguments = NOT_RECORDED[case]
    values = "torch.randn(6, 8)"
    if arguments == "x, y":
        values += ", [torch.randn(6, 8)]" if "y[0]" in forward else ", torch.randn(6, 8)"
    source = module(forward, init, values).replace(
        "forward(self, x)", f"forward(self, {arguments})"
    )
    assert graph_sites(source) == ()


KEPT_IN_STEP = {
    "dropout": "for layer in self.layers:\n    x = torch.relu(F.dropout(layer(x), 0.5, "
    "True))\nreturn x",
    "running statistics": "for layer in self.layers:\n    x = "
    "torch.relu(self.norm(layer(x)))\nreturn x",
}


@pytest.mark.parametrize("case", KEPT_IN_STEP)
def test_effects_that_a_replay_has_too_are_recorded(case: str) -> None:
    found = graph_sites(module(KEPT_IN_STEP[case], f"{LAYERS}\nself.norm = nn.BatchNorm1d(8)"))
    assert [site.skill for site in found] == ["cuda-graph"]


def test_a_transposed_weight_is_a_view_and_no_transfer() -> None:
    found = graph_sites(module(CHAIN.replace("layer(x)", "x @ layer.weight.T"), LAYERS))
    assert [site.skill for site in found] == ["cuda-graph"]


def test_a_librarys_recurrent_layer_launches_kernels_for_each_step() -> None:
    """Not as one operation: a call of one layer took 11 us a step on an H200."""
    source = module("return self.layer(x)[0]", "self.layer = nn.GRU(8, 8)", "torch.randn(64, 4, 8)")
    (found,) = graph_sites(source)
    assert found.benefit is not None and found.benefit > 0.4


def test_every_kernel_of_a_generated_launcher_counts() -> None:
    from kernel_lsp.rewrite import call_time

    source = module(
        "return torch.relu(self.layer(x)).sum(-1)",
        "self.layer = nn.Linear(512, 8192)",
        "torch.randn(1024, 512)",
    )
    opened = on_cuda(source, "fused-matmul")
    (site,) = opened.capture().sites
    for form, launches in (("pointers", 3), ("tiles", 2)):
        plan = f"{form} 128x128x64 warps 8 stages 2 splits 1"
        step = Step(skill="fused-matmul", site=site.site, parameters={"plan": plan})
        graph, _, _ = opened._replay(opened.graph, [step])
        assert call_time.launches(graph) == launches


def test_sizes_that_depend_on_data_are_refused() -> None:
    """Such a program cannot be captured at all; the skill is never asked."""
    from kernel_lsp.errors import CaptureError

    with pytest.raises(CaptureError):
        on_cuda(module("return x[x > 0]", LAYERS), "cuda-graph")


def test_large_kernels_gain_nothing() -> None:
    big = module(
        "return torch.relu(self.layer(x))",
        "self.layer = nn.Linear(4096, 4096)",
        "torch.randn(4096, 4096)",
    )
    assert graph_sites(big) == ()


def test_nothing_is_recorded_on_a_cpu() -> None:
    opened = session(module(CHAIN, LAYERS), "cuda-graph")
    assert opened.capture().sites == ()


def test_several_results_are_copied_one_by_one() -> None:
    text = wrapped(
        module(CHAIN.replace("return x", 'return {"a": x, "b": (x + 1, 2)}'), LAYERS)
    ).program
    assert "return _copied(self.result)" in text
    namespace: dict[str, object] = {}
    exec(text, namespace)
    x = torch.randn(3)
    copied = namespace["_copied"]({"a": x, "b": (x, [x, 2])})  # type: ignore[operator]
    assert copied["a"] is not x and copied["b"][1][0] is not x and copied["b"][1][1] == 2
    assert torch.equal(copied["b"][0], x) and type(copied["b"]) is tuple


# --- compile-target --------------------------------------------------------------------------


HEAVY = module(
    "return self.layer(x)",
    "self.layer = nn.Linear(4096, 4096).bfloat16()",
    "torch.randn(4096, 4096).bfloat16()",
)


def all_compile_sites(source: str, *others: str) -> list[Site]:
    opened = on_cuda(source, "compile-target", *others)
    found = opened.capture().sites
    assert not opened.notes
    return [site for site in found if site.skill == "compile-target"]


def compile_sites(source: str, *others: str) -> list[Site]:
    """Without the default mode, which applies to every whole target."""
    return [site for site in all_compile_sites(source, *others) if site.benefit is not None]


def test_the_default_mode_is_there_for_every_target_and_claims_no_gain() -> None:
    for source in (module(CHAIN, LAYERS), HEAVY, HEAVY.replace(".bfloat16()", "")):
        (site,) = [site for site in all_compile_sites(source) if site.benefit is None]
        assert site.summary == "torch.compile of the target, default mode"


def test_a_target_is_compiled_under_its_own_name_and_replayed_where_launches_cost_most() -> None:
    (site,) = compile_sites(module(CHAIN, LAYERS))
    assert (
        site.summary == "torch.compile of the target, default mode, replayed as one CUDA graph"
        and site.wraps
    )
    (site,) = compile_sites(HEAVY)
    assert site.summary == "torch.compile of the target, mode max-autotune-no-cudagraphs"
    assert compile_sites(HEAVY.replace(".bfloat16()", "")) == []


def test_random_draws_and_rewritten_targets_are_not_compiled() -> None:
    assert compile_sites(module(KEPT_IN_STEP["dropout"], LAYERS)) == []
    init = f"{LAYERS}\nself.drop = nn.Dropout(0.5)\nself.eval()"
    source = module(CHAIN.replace("return x", "return self.drop(x)"), init)
    assert compile_sites(source.replace("0.5", "0.0").replace("self.eval()", "pass"))
    opened = on_cuda(source, "compile-target", "remove-dead-work")
    first = next(site for site in opened.capture().sites if site.skill == "remove-dead-work")
    left = opened.propose([Step(skill=first.skill, site=first.site)]).sites_left
    assert "compile-target" not in [site.skill for site in left]


def test_a_compiler_that_fails_is_asked_once_and_the_original_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opened = on_cuda(HEAVY, "compile-target")
    step = Step(skill="compile-target", site=opened.capture().sites[0].site)
    namespace: dict[str, object] = {}
    exec(opened.propose([step]).candidate.program, namespace)
    asked: list[object] = []

    def broken(function: object, **_: object) -> object:
        asked.append(function)
        raise RuntimeError("no compiler here")

    monkeypatch.setattr(torch, "compile", broken)
    made = torch.nn.Linear(3, 3)
    run = namespace["_run_compiled"]
    x = torch.randn(2, 3)
    for _ in range(3):
        torch.testing.assert_close(run(made, made.forward, x), made(x))  # type: ignore[operator]
    assert len(asked) == 1
    with pytest.raises(RuntimeError):  # the steps' own error is theirs
        run(made, made.forward, torch.randn(2, 4))  # type: ignore[operator]


# --- loops -----------------------------------------------------------------------------------

SCAN = """
a = torch.sigmoid(self.decay)
h = torch.zeros_like(x[0])
out = []
for step in x:
    h = a * h + (1 - a) * step
    out.append(h)
return torch.stack(out)
"""
DECAY, WALK = "self.decay = nn.Parameter(torch.randn(8))", "torch.randn(6, 5, 8)"


def test_a_loop_is_found_with_its_state_and_its_constants() -> None:
    (loop,) = loops_of(on_cuda(module(SCAN, DECAY, WALK)).graph)
    assert loop.length == 6
    assert [node.target._opname for node in loop.steps[1]] == ["mul", "mul", "add"]
    assert [(initial.name, index) for initial, index in loop.carried] == [("zeros_like", 2)]
    assert (loop.listed, loop.final) == ((2,), ())


def test_operations_on_the_state_alone_belong_to_the_step_that_follows() -> None:
    forward = (
        "h = x.new_zeros(5, 8)\nfor step in x:\n    h = torch.tanh(self.a(step) + "
        "self.b(h))\nreturn h"
    )
    source = module(forward, "self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)", WALK)
    (loop,) = loops_of(on_cuda(source).graph)
    assert [node.target._opname for node in loop.steps[0]] == ["linear", "linear", "add", "tanh"]
    assert (loop.listed, loop.final) == ((), (3,))


NO_LOOP = {
    "another number in one step": SCAN.replace("h = a *", "h = (a if len(out) != 3 else 1 - a) *"),
    "three steps back": SCAN.replace("a * h", "a * (out[-3] if len(out) > 2 else h)"),
    "every second slice": SCAN.replace("for step in x:", "for step in x[::2].unbind() [:2]:"),
    "no state": SCAN.replace("a * h + ", ""),
}


@pytest.mark.parametrize("case", NO_LOOP)
def test_what_is_no_such_loop_is_left_alone(case: str) -> None:
    opened = on_cuda(module(NO_LOOP[case], DECAY, WALK), "fused-recurrence")
    assert opened.capture().sites == () and not opened.notes


def test_steps_of_a_long_loop_are_not_rewritten_one_by_one() -> None:
    opened = on_cuda(
        module(SCAN, DECAY, "torch.randn(64, 5, 8)"), "fused-pointwise", "fused-recurrence"
    )
    assert {site.skill for site in opened.capture().sites} == {"fused-recurrence"}
    short = on_cuda(
        module("return torch.relu(x + 1) * self.decay", DECAY, "torch.randn(4096, 8)"),
        "fused-pointwise",
    )
    assert {site.skill for site in short.capture().sites} == {"fused-pointwise"}


def test_a_matrix_product_in_a_step_is_not_fused() -> None:
    forward = (
        "h = x.new_zeros(5, 8)\nfor step in x:\n    h = torch.tanh(step + self.b(h))\nreturn h"
    )
    opened = on_cuda(module(forward, "self.b = nn.Linear(8, 8)", WALK), "fused-recurrence")
    assert opened.capture().sites == () and not opened.notes


PAIR = """
h, peak = self.start, torch.zeros_like(x[0])
for step in x:
    h = torch.tanh(0.5 * h + step)
    peak = torch.maximum(peak * 0.9, h)
return h, peak
"""
MIXED = """
h = torch.zeros_like(x[0])
out = []
for step, gate in zip(x, torch.sigmoid(y)):
    h = gate * h + step
    out.append(h * 2)
return torch.stack(out, 1), h
"""
TWO_SCANS = f"""{SCAN.replace("return", "y =")}
g = self.decay.expand(5, 8)
for step in y:
    g = torch.tanh(0.5 * g - step)
return y, g
"""
RECURRENCES = {
    "one behind the other": (TWO_SCANS, DECAY, WALK, "x"),
    "all states": (SCAN, DECAY, WALK, "x"),
    "the last state": (SCAN.replace("torch.stack(out)", "h"), DECAY, WALK, "x"),
    "two states": (PAIR, "self.start = nn.Parameter(torch.randn(5, 8))", WALK, "x"),
    "two tensors, stacked along another dimension": (MIXED, "pass", f"{WALK}, {WALK}", "x, y"),
    "many elements": (
        SCAN,
        "self.decay = nn.Parameter(torch.randn(13))",
        "torch.randn(4, 31, 13)",
        "x",
    ),
    "bfloat16": (
        SCAN,
        "self.decay = nn.Parameter(torch.randn(8).bfloat16())",
        f"{WALK}.bfloat16()",
        "x",
    ),
}


@pytest.mark.parametrize("case", RECURRENCES)
def test_a_recurrence_in_one_kernel_agrees_with_the_loop(interpreter, case: str) -> None:
    forward, init, values, arguments = RECURRENCES[case]
    source = module(forward, init, values).replace(
        "forward(self, x)", f"forward(self, {arguments})"
    )
    candidate = rewrite(source, "fused-recurrence", any_batch=False)
    found = interpreter.ask(before=source, after=candidate.program)
    assert not found["fell_back"] and all(found["same_kind"])
    slack = 2**-5 if case == "bfloat16" else 3e-6
    for ours, eager in zip(found["ours"], found["eager"], strict=True):
        assert ours <= 2 * eager + slack


@pytest.mark.parametrize(
    "start", ["x[0], dtype=torch.float64", "x[0], dtype=torch.bfloat16", "x[0, 0]"]
)
def test_a_state_that_starts_in_another_dtype_or_shape_is_refused(start: str) -> None:
    source = module(SCAN.replace("zeros_like(x[0])", f"zeros_like({start})"), DECAY, WALK)
    opened = on_cuda(source, "fused-recurrence")
    assert opened.capture().sites == () and not opened.notes


# --- hoist-recurrent-input -------------------------------------------------------------------

CELL = """
h, c = x.new_zeros(5, 8), torch.ones_like(x[0])
out = []
for step in x:
    gate = torch.sigmoid(self.gate(torch.cat([step, h], 1)))
    c = gate * c + torch.tanh(self.see(step) + self.keep(c)) * step
    h = torch.tanh(c)
    out.append(h)
return torch.stack(out), c
"""
LAYERS_OF_CELL = (
    "self.gate, self.see, self.keep = nn.Linear(16, 8), nn.Linear(8, 8), nn.Linear(8, 8)"
)
HOISTED = {
    "a layer of the input": (
        "h = x.new_zeros(5, 8)\nfor step in x:\n    h = torch.tanh(self.see(step) + "
        "self.keep(h))\nreturn h",
        LAYERS_OF_CELL,
    ),
    "a layer of both": (
        "h = x.new_zeros(5, 8)\nfor step in x:\n"
        "    h = torch.tanh(self.gate(torch.cat([step, h], 1)))\nreturn h",
        LAYERS_OF_CELL,
    ),
    "two states and all results": (CELL, LAYERS_OF_CELL),
    "one behind the other": (
        "h, g, out = x.new_zeros(5, 8), x.new_ones(5, 8), []\nfor step in x:\n"
        "    h = torch.tanh(self.see(step) + h)\n    out.append(h)\nfor step in torch.stack(out):\n"
        "    g = torch.relu(self.keep(step) - g)\nreturn g",
        LAYERS_OF_CELL,
    ),
}


@pytest.mark.parametrize("case", HOISTED)
def test_inputs_of_all_steps_are_multiplied_at_once(case: str) -> None:
    forward, init = HOISTED[case]
    source = module(forward, init, WALK)
    candidate = rewrite(source, "hoist-recurrent-input")
    assert re.search(r"projected = F\.linear\(x, \w+weight", candidate.program)
    assert_same(source, candidate, torch.randn(6, 5, 8, dtype=torch.float64))


NOT_HOISTED = {
    "a layer of the state": (
        "h = x.new_zeros(5, 8)\nfor step in x:\n    h = torch.tanh(step + self.keep(h))\nreturn h"
    ),
    "a layer of a product": CELL.replace("self.see(step)", "self.see(step * c)").replace(
        "[step, h]", "[h, step * c]"
    ),
    "another layer in each step": (
        "h = x.new_zeros(5, 8)\nfor step, layer in zip(x, [self.see, self.keep] * 3):\n"
        "    h = torch.tanh(layer(step) + h)\nreturn h"
    ),
}


@pytest.mark.parametrize("case", NOT_HOISTED)
def test_products_that_depend_on_the_state_stay_in_the_loop(case: str) -> None:
    assert sites(module(NOT_HOISTED[case], LAYERS_OF_CELL, WALK), "hoist-recurrent-input") == []


def test_sixteen_bits_are_not_added_in_another_order() -> None:
    source = module(
        HOISTED["a layer of both"][0],
        "self.gate = nn.Linear(16, 8).bfloat16()",
        f"{WALK}.bfloat16()",
    )
    assert sites(source, "hoist-recurrent-input") == []


# --- channels-last-network -------------------------------------------------------------------

BLOCK = """
h = torch.relu(self.norm(self.first(x)))
h = F.max_pool2d(torch.cat([h, x * self.gain], dim=1), 2)
return torch.relu(self.second(h) + self.third(F.avg_pool2d(x, 2)) + self.row)
"""
CONVOLUTIONS = """
self.first, self.second = nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.Conv2d(16, 8, 1)
self.third, self.norm = nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8)
self.gain, self.row = nn.Parameter(torch.ones(8, 1, 1)), nn.Parameter(torch.ones(6))
self.eval()
"""
IMAGES = "torch.randn(2, 8, 12, 12)"


def moved(source: str) -> str:
    """The program with its network in channels-last memory, guarded for a CPU."""
    opened = on_cuda(source, "channels-last-network")
    skill_module = opened.rewrites["channels-last-network"]
    (found,) = skill_module.match(opened.graph)
    assert all(proof.holds for proof in skill_module.preconditions(opened.graph, found))
    step = Step(skill="channels-last-network", site=found.label)
    return opened.propose([step]).candidate.program.replace("x.is_cuda", "True")


MOVED = {
    "a block": (BLOCK, CONVOLUTIONS, IMAGES),
    "one channel": ("return torch.sigmoid(self.c(x))", "self.c = nn.Conv2d(8, 1, 3)", IMAGES),
    "one pixel": ("return self.c(x)", "self.c = nn.Conv2d(8, 8, 12)", IMAGES),
    "a mean, then a layer": (
        "return self.head(torch.relu(self.c(x)).mean(dim=(2, 3)))",
        "self.c, self.head = nn.Conv2d(8, 8, 3), nn.Linear(8, 3)",
        IMAGES,
    ),
    "a view": ("return self.c(x).view(2, -1)", "self.c = nn.Conv2d(8, 8, 3)", IMAGES),
    "softmax over channels": (
        "return torch.softmax(self.c(x), dim=1)",
        "self.c = nn.Conv2d(8, 8, 3)",
        IMAGES,
    ),
    "an image for all": (
        "return self.c(x) * x[0, :, 1:-1, 1:-1]",
        "self.c = nn.Conv2d(8, 8, 3)",
        IMAGES,
    ),
    "a slope for each channel": (
        "return self.bend(self.c(x))",
        "self.c, self.bend = nn.Conv2d(8, 8, 3), nn.PReLU(8)",
        IMAGES,
    ),
    "a transposed convolution": (
        "return torch.relu(self.c(x))",
        "self.c = nn.ConvTranspose2d(8, 4, 2, 2)",
        IMAGES,
    ),
    "two results": (
        "h = self.c(x)\nreturn h, torch.relu(h)",
        "self.c = nn.Conv2d(8, 8, 3)",
        IMAGES,
    ),
}


@pytest.mark.parametrize("case", MOVED)
def test_a_network_in_channels_last_gives_the_same_values_and_strides(case: str) -> None:
    source = module(*MOVED[case])
    before, after = (
        instance(source, None, torch.float32),
        instance(moved(source), None, torch.float32),
    )

    def never(*_: object) -> None:
        raise AssertionError("the guard refused the verified workload")

    after._forward_eager = never
    x = torch.randn(2, 8, 12, 12)
    with torch.no_grad():
        expected, got = before(x), after(x)
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)
    pairs = zip(got, expected, strict=True) if isinstance(got, tuple) else [(got, expected)]
    assert all(mine.stride() == theirs.stride() for mine, theirs in pairs)


def test_a_norm_in_train_mode_stays_in_nchw_with_its_statistics() -> None:
    init = "self.c, self.norm = nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8)"
    source = module("return torch.relu(self.norm(self.c(x)))", init, IMAGES)
    text = moved(source)
    before, after = instance(source, None, torch.float32), instance(text, None, torch.float32)
    x = torch.randn(2, 8, 12, 12)
    with torch.no_grad():
        torch.testing.assert_close(after(x), before(x), rtol=1e-4, atol=1e-4)
    for name, value in before.state_dict().items():
        torch.testing.assert_close(after.state_dict()[name], value, rtol=1e-4, atol=1e-4)


NOT_MOVED = {
    "depthwise": ("return self.c(x)", "self.c = nn.Conv2d(8, 8, 3, groups=8)"),
    "channels last already": (
        "return self.c(x.contiguous(memory_format=torch.channels_last))",
        "self.c = nn.Conv2d(8, 8, 3)",
    ),
}


@pytest.mark.parametrize("case", NOT_MOVED)
def test_networks_that_would_lose_stay(case: str) -> None:
    forward, init = NOT_MOVED[case]
    opened = on_cuda(module(forward, init, IMAGES), "channels-last-network")
    skill_module = opened.rewrites["channels-last-network"]
    (found,) = skill_module.match(opened.graph)
    assert not all(proof.holds for proof in skill_module.preconditions(opened.graph, found))


def test_small_images_do_not_pay_for_their_weights() -> None:
    opened = on_cuda(module(BLOCK, CONVOLUTIONS, IMAGES), "channels-last-network")
    assert opened.capture().sites == () and not opened.notes
