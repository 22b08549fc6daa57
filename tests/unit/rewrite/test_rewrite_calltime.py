"""The estimate of a whole call, by hand: launches by the host, work by the device, a replay's own
costs."""

import pytest
from rewrite_helpers import module, program, skill, workload

from kernel_lsp.records import Step

pytestmark = pytest.mark.torch
pytest.importorskip("torch")

from kernel_lsp.rewrite import call_time  # noqa: E402
from kernel_lsp.rewrite.engine import EngineSession  # noqa: E402

LAYERS = "self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(6))"
CHAIN = "for layer in self.layers:\n    x = torch.relu(layer(x))\nreturn x"
PRODUCT = module(
    "return torch.relu(x @ self.weight)",
    "self.weight = nn.Parameter(torch.randn(4096, 4096))",
    "torch.randn(4096, 4096)",
)


def on_cuda(source: str, *names: str) -> EngineSession:
    return EngineSession(program(source), workload(None), "cuda", [skill(name) for name in names])


def test_small_kernels_cost_their_launches_and_a_replay_its_copies() -> None:
    graph = on_cuda(module(CHAIN, LAYERS)).graph
    assert call_time.launches(graph) == 12
    assert call_time.seconds(graph) == pytest.approx(6 * 30e-6 + 6 * 15e-6)
    # one input, one result; 12 weights, and 8 modules with the list and the model itself
    assert call_time.replay_seconds(graph) == pytest.approx(38e-6 + 2 * 12e-6 + 20 * 2.5e-6)


def test_large_kernels_cost_their_work_and_a_replay_its_copies_too() -> None:
    graph = on_cuda(PRODUCT).graph
    multiplied, moved = 2 * 4096**3 / 50e12, 2 * 4 * 4096**2 / 4.3e12
    assert call_time.seconds(graph) == pytest.approx(multiplied + moved)
    assert call_time.replay_seconds(graph) == pytest.approx(
        multiplied + moved + 2 * moved + 2 * 2e-6
    )


def test_a_generated_launch_has_the_work_of_what_it_replaced() -> None:
    opened = on_cuda(PRODUCT, "fused-matmul")
    (site,) = opened.capture().sites
    taken = opened.weigh([Step(skill=site.skill, site=site.site)])
    assert taken == pytest.approx(2 * 4096**3 / 160e12, rel=0.01)
    assert opened.weigh([]) == pytest.approx(call_time.seconds(opened.graph))


def test_attention_of_the_library_is_counted_by_its_scores() -> None:
    source = module(
        "return F.scaled_dot_product_attention(x, x, x)", inputs="torch.randn(4, 8, 2048, 64)"
    )
    assert call_time.seconds(on_cuda(source).graph) == pytest.approx(
        4 * 4 * 8 * 2048 * 64 * 2048 / 50e12
    )
