"""cuda-graph on a device: replays compute what eager does, whatever happens to inputs, weights and
layers."""

import copy
import gc
import pickle
import sys
import threading
import types

import pytest

torch = pytest.importorskip("torch")

from rewrite_helpers import program, skill, workload  # noqa: E402

from kernel_lsp.records import Step  # noqa: E402
from kernel_lsp.rewrite.engine import EngineSession  # noqa: E402

pytestmark = [
    pytest.mark.torch,
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
SOURCE = """
import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(6))
        self.norm, self.bend = nn.LayerNorm(64), nn.LeakyReLU(0.1)

    def forward(self, x, scale=2.0):
        for layer in self.layers:
            x = self.bend(self.norm(layer(x)))
        return x * scale


def get_inputs():
    return [torch.randn(32, 64)]
"""


def load(text: str, name: str) -> types.ModuleType:
    module = types.ModuleType(name)
    sys.modules[name] = module
    exec(compile(text, f"<{name}>", "exec"), module.__dict__)
    return module


@pytest.fixture(scope="module")
def after() -> types.ModuleType:
    session = EngineSession(program(SOURCE), workload(), "cuda", [skill("cuda-graph")])
    site = session.capture().sites[0]
    return load(
        session.propose([Step(skill=site.skill, site=site.site)]).candidate.program, "graph_after"
    )


@pytest.fixture(scope="module")
def before() -> types.ModuleType:
    return load(SOURCE, "graph_before")


@pytest.fixture
def pair(before, after):
    """The same weights in the original and in the rewritten module; the second has recorded a
    call."""
    torch.manual_seed(0)
    eager, ours = before.Model().cuda(), after.Model().cuda()
    ours.load_state_dict(eager.state_dict())
    with torch.no_grad():
        for _ in range(3):
            ours(inputs())
    assert recorded(after, ours) == 1
    yield eager, ours
    del ours
    gc.collect()


def inputs(rows: int = 32) -> "torch.Tensor":
    return torch.randn(rows, 64, device="cuda")


def recorded(after: types.ModuleType, module: "torch.nn.Module") -> int:
    """Recordings that are kept for a module."""
    return sum(len(kind.idle or ()) for kind in after._recordings.get(module, {}).values())


def agree(eager, ours, *arguments) -> None:
    with torch.no_grad():
        torch.testing.assert_close(ours(*arguments), eager(*arguments), rtol=1e-5, atol=1e-5)


def test_new_values_give_new_results_and_old_results_stay(pair) -> None:
    eager, ours = pair
    with torch.no_grad():
        given = [inputs() for _ in range(5)]
        results = [ours(x) for x in given]
        for x, result in zip(given, results, strict=True):
            torch.testing.assert_close(result, eager(x), rtol=1e-5, atol=1e-5)


def test_a_replay_launches_no_operation_of_the_steps(pair, monkeypatch: pytest.MonkeyPatch) -> None:
    _, ours = pair
    # Of the class: an attribute of the module would be a changed setting. Whoever called it would
    # fail.
    monkeypatch.setattr(type(ours), "_forward_eager", lambda self, *arguments: None)
    with torch.no_grad():
        assert ours(inputs()).isfinite().all()


@pytest.mark.parametrize(
    "way", ["in place", "load_state_dict", "data", "there and back", "new layer", "setting"]
)
def test_changed_weights_and_settings_are_seen(pair, way: str) -> None:
    eager, ours = pair
    for module in (eager, ours):
        torch.manual_seed(1)
        fresh = {k: torch.randn_like(v) for k, v in module.state_dict().items()}
        if way == "in place":
            with torch.no_grad():
                for value in module.parameters():
                    value.mul_(1.5)
        elif way == "load_state_dict":
            module.load_state_dict(fresh)
        elif way == "data":
            for name, value in module.named_parameters():
                value.data = fresh[name]
        elif way == "there and back":
            module.double().float()
            module.load_state_dict(fresh)
        elif way == "new layer":
            module.layers[2] = torch.nn.Linear(64, 64).cuda()
        else:
            module.bend.negative_slope, module.norm.eps = 0.5, 0.1
    for _ in range(4):
        agree(eager, ours, inputs())


def test_a_transposed_weight_in_the_same_memory_is_seen(pair) -> None:
    eager, ours = pair
    for module in (eager, ours):
        module.layers[0].weight.data = module.layers[0].weight.data.t()
    for _ in range(4):
        agree(eager, ours, inputs())


def test_hooks_are_called(pair) -> None:
    _, ours = pair
    seen = []
    handle = ours.layers[1].register_forward_hook(lambda *_: seen.append(1))
    with torch.no_grad():
        for _ in range(3):
            ours(inputs())
    handle.remove()
    assert len(seen) == 3


def test_other_sizes_and_arguments(pair) -> None:
    eager, ours = pair
    for rows in (1, 7, 32, 7, 7, 100, 200, 300, 400, 500, 500, 500):
        agree(eager, ours, inputs(rows))
    for _ in range(3):
        agree(eager, ours, inputs(), 3.0)


def test_at_most_four_kinds_of_calls_are_recorded(pair, after) -> None:
    _, ours = pair
    with torch.no_grad():
        for rows in range(1, 12):
            for _ in range(3):
                ours(inputs(rows))
    assert recorded(after, ours) == 4


def test_gradients_autocast_and_the_cpu_take_the_original_path(pair) -> None:
    eager, ours = pair
    x = inputs()
    ours(x).sum().backward()
    assert ours.layers[0].weight.grad is not None
    with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
        assert ours(x).dtype == eager(x).dtype
    agree(copy.deepcopy(eager).cpu(), copy.deepcopy(ours).cpu(), x.cpu())


def test_inference_mode_and_no_grad_mix(pair) -> None:
    eager, ours = pair
    for mode in (torch.inference_mode, torch.no_grad, torch.inference_mode):
        with mode():
            x = inputs(48)
            for _ in range(3):
                torch.testing.assert_close(ours(x), eager(x), rtol=1e-5, atol=1e-5)


def test_inside_a_graph_of_somebody_else_and_on_another_stream(pair) -> None:
    eager, ours = pair
    x, graph = inputs(), torch.cuda.CUDAGraph()
    with torch.no_grad():
        with torch.cuda.graph(graph):
            result = ours(x)
        x.copy_(inputs())
        graph.replay()
        torch.testing.assert_close(result, eager(x), rtol=1e-5, atol=1e-5)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(4):
                agree(eager, ours, inputs())


def test_threads_do_not_mix_their_inputs(pair) -> None:
    eager, ours = pair
    wrong: list[float] = []

    def work(seed: int) -> None:
        draw = torch.Generator("cuda").manual_seed(seed)
        with torch.no_grad():
            for _ in range(200):
                x = torch.randn(32, 64, device="cuda", generator=draw)
                if not torch.allclose(ours(x), eager(x), rtol=1e-4, atol=1e-4):
                    wrong.append(float(x.sum()))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_recorded_module_is_copied_saved_and_freed(pair, after) -> None:
    eager, ours = pair
    twin, state = copy.deepcopy(ours), pickle.loads(pickle.dumps(ours.state_dict()))
    twin.load_state_dict(state)
    for _ in range(3):
        agree(eager, twin, inputs())
    assert recorded(after, twin) == 1
    kept = len(after._recordings)
    del twin
    gc.collect()
    assert len(after._recordings) == kept - 1


def test_steps_that_wait_for_the_device_run_as_usual(after) -> None:
    module = torch.nn.Linear(4, 4).cuda()

    def waits(x):
        return x * float(x.sum())

    x = torch.ones(3, 4, device="cuda")
    with torch.no_grad():
        for _ in range(4):
            torch.testing.assert_close(after._replayed(module, waits, x), x * 12.0)
    assert recorded(after, module) == 0


def test_expanded_inputs_keep_their_meaning(pair) -> None:
    eager, ours = pair
    with torch.no_grad():
        for _ in range(4):
            x = torch.randn(1, 64, device="cuda").expand(32, 64)
            torch.testing.assert_close(ours(x), eager(x), rtol=1e-5, atol=1e-5)


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # the compiler's own use of it
@pytest.mark.filterwarnings(
    "ignore:TensorFloat32 tensor cores:UserWarning"
)  # its advice, raised as an error
def test_under_torch_compile_the_operations_are_traced(pair) -> None:
    eager, ours = pair
    compiled = torch.compile(ours)
    for _ in range(3):
        agree(eager, compiled, inputs())


TRAINED = """
import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(4))
        self.norms = nn.ModuleList(nn.BatchNorm1d(64) for _ in range(4))
        self.drop = nn.Dropout(0.3)

    def forward(self, x):
        for layer, norm in zip(self.layers, self.norms):
            x = self.drop(torch.relu(norm(layer(x))))
        return x


def get_inputs():
    return [torch.randn(32, 64)]
"""


def test_running_statistics_and_random_numbers_move_once_a_call() -> None:
    session = EngineSession(program(TRAINED), workload(), "cuda", [skill("cuda-graph")])
    site = session.capture().sites[0]
    text = session.propose([Step(skill=site.skill, site=site.site)]).candidate.program
    before, after = load(TRAINED, "trained_before"), load(text, "trained_after")
    eager, ours = before.Model().cuda(), after.Model().cuda()
    ours.load_state_dict(eager.state_dict())
    given = [inputs() for _ in range(6)]
    results = []
    for model in (eager, ours):
        torch.manual_seed(5)
        with torch.no_grad():
            results.append([model(x) for x in given] + [torch.rand(3, device="cuda")])
    assert recorded(after, ours) == 1
    for mine, theirs in zip(*results, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5)
    for name, value in eager.state_dict().items():
        torch.testing.assert_close(ours.state_dict()[name], value, rtol=1e-5, atol=1e-5)
    for model in (eager, ours):
        model.eval()
        with torch.no_grad():
            results.append([model(x) for x in given])
    for mine, theirs in zip(*results[2:], strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5)
