"""A graph as it leaves the engine: operations, forms, layouts; names only where sites need them."""

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")

from rewrite_helpers import graph_of, module, program, skill, workload  # noqa: E402

from kernel_lsp import wire  # noqa: E402
from kernel_lsp.agents.prompt_encoding import Dialog, Situation  # noqa: E402
from kernel_lsp.records import Form, GraphView, Layout, OperationRole, Viewed  # noqa: E402
from kernel_lsp.rewrite.engine import EngineSession  # noqa: E402
from kernel_lsp.rewrite.view import _layout, view_of  # noqa: E402

LAYERS = module(
    "h = self.layer(x)\nreturn torch.clamp(h, -0.5, 2.0).sum(dim=1, keepdim=True)",
    init="self.layer = nn.Linear(8, 4)",
)


def test_operations_with_what_they_read_and_yield() -> None:
    view = view_of(graph_of(LAYERS))
    told = [
        (one.role.value, one.op, one.reads, one.numbers, one.forms[0].shape)
        for one in view.operations
    ]
    assert told == [
        ("state", "", (), (), (4, 8)),
        ("state", "", (), (), (4,)),
        ("input", "", (), (), (6, 8)),
        ("call", "linear", (2, 0, 1), (), (6, 4)),
        ("call", "clamp", (3,), (-0.5, 2.0), (6, 4)),
        ("call", "sum", (4,), (1, True), (6, 1)),
    ]
    assert [one.output for one in view.operations] == [False] * 5 + [True]
    assert [one.trained for one in view.operations[:3]] == [True, True, False]
    assert view.training and not view.gradients
    assert wire.from_json(GraphView, wire.to_json(view)) == view


@pytest.mark.parametrize(
    ("value", "layout"),
    [
        (torch.empty(2, 3, 4, 5), Layout.CONTIGUOUS),
        (torch.empty(2, 3, 4, 5).to(memory_format=torch.channels_last), Layout.CHANNELS_LAST),
        (torch.empty(4, 5).t(), Layout.PERMUTED),
        (torch.empty(4, 1).expand(4, 5), Layout.EXPANDED),
        (torch.empty(4, 10)[:, ::2], Layout.STRIDED),
        (torch.empty(()), Layout.CONTIGUOUS),
    ],
)
def test_layouts(value: "torch.Tensor", layout: Layout) -> None:
    assert _layout(value) is layout


def test_after_a_step_the_view_is_of_what_is_left_and_a_talk_goes_on_with_it() -> None:
    session = EngineSession(
        program(LAYERS), workload(), "cuda", [skill("fused-pointwise"), skill("fused-matmul")]
    )
    capture = session.capture()
    assert capture.graph is not None
    talk = Dialog(Situation(graph=capture.graph, sites=capture.sites, device="cuda"), skip=True)
    site = next(one for one in talk.sites if one.skill == "fused-matmul")
    reply = next(words for words in _replies(talk) if words[1] == f"@{talk.sites.index(site)}")
    talk.say(reply)
    viewed = session.view(list(talk.steps))
    kernels = [one for one in viewed.graph.operations if one.op == "kernel"]
    assert kernels and all(one.role is OperationRole.CALL for one in kernels)
    assert isinstance(kernels[0].forms[0], Form)
    assert wire.from_json(Viewed, wire.to_json(viewed)) == viewed
    talk.saw(viewed)
    assert "kernel" in talk.words


def _replies(talk: Dialog) -> list[list[str]]:
    """The first choice everywhere, for each site."""
    found = []
    for word in talk.offer.after(["apply_skill"]).words:
        words = ["apply_skill", word]
        node = talk.offer.after(words)
        while node.branches:
            words.append(node.words[0])
            node = node.branches[words[-1]]
        found.append(words)
    return found
