"""The emitted source: a guard that is never stale, original code byte for byte, readable
statements."""

import ast
from dataclasses import replace

import pytest
import torch
from rewrite_helpers import (
    assert_same,
    graph_of,
    instance,
    module,
    program,
    rewrite,
    session,
    skill,
    workload,
)

from kernel_lsp.errors import KernelLspError, RewriteError
from kernel_lsp.records import Candidate, Step
from kernel_lsp.rewrite.engine import EngineSession
from kernel_lsp.rewrite.generated import GeneratedSource
from kernel_lsp.rewrite.graph import Graph
from kernel_lsp.rewrite.printing.forward import emit
from kernel_lsp.rewrite.printing.place import TargetPlace

pytestmark = pytest.mark.torch

INIT = "self.fc = nn.Linear(8, 4000)\nself.scale = 2.0"
FORWARD = (
    "# why\nlogits = self.fc(x)  # wide\nlogits = logits * self.scale\nreturn logits.sum(dim=1)"
)
SOURCE = module(FORWARD, INIT, "torch.randn(640, 8)")
SKILL = "reassociate-linear-reduction"


def fast(candidate: Candidate) -> str:
    return candidate.program.split("def forward")[1].split("def get_inputs")[0]


def ran_eager(candidate: Candidate, change: object, x: torch.Tensor) -> bool:
    made = instance(candidate.program, None, torch.float32)
    change(made)  # type: ignore[operator]
    calls, original = [], made._forward_eager
    made._forward_eager = lambda *args: calls.append(1) or original(*args)
    with torch.no_grad():
        made(x)
    return bool(calls)


def test_the_original_body_and_its_comments_are_kept_byte_for_byte() -> None:
    made = rewrite(SOURCE, SKILL)
    old = SOURCE[SOURCE.index("(self, x):") : SOURCE.index("\n\n\ndef get_inputs")]
    assert f"    def _forward_eager{old}" in made.program
    assert made.program.replace(fast(made), "").count("def __init__") == 1


def test_the_fast_path_says_why_and_uses_no_name_twice() -> None:
    text = fast(rewrite(SOURCE, SKILL))
    assert "# sum(x @ W.T + b) over output features is x @ sum(W) + sum(b)." in text
    assert "weight_sum = torch.sum(fc_weight, dim=0)" in text


def nothing(_module: object) -> None:
    """The verified workload."""


def other_scale(made: object) -> None:
    made.scale = 3.0  # type: ignore[attr-defined]


def other_layer(made: object) -> None:
    made.fc = torch.nn.Linear(8, 10)  # type: ignore[attr-defined]


X = torch.randn(640, 8)


@pytest.mark.parametrize(
    "change, x, eager",
    [
        (nothing, X, False),
        (nothing, X[:7], False),  # dimension 0 is free: other sizes give the same source
        (nothing, X.t().contiguous().t(), False),
        (other_scale, X, True),
        (other_layer, X, True),
        (nothing, torch.randn(2, 3, 8), True),
    ],
)
def test_the_guard_lets_in_exactly_what_was_reasoned_about(
    change: object, x: torch.Tensor, eager: bool
) -> None:
    assert ran_eager(rewrite(SOURCE, SKILL), change, x) is eager


def test_a_size_that_the_source_mentions_is_guarded() -> None:
    source = module("return x - torch.softmax(torch.ones_like(x[:, :1]), dim=1)")
    assert "x.shape == (6, 8)" in fast(rewrite(source, "singleton-reduction"))


def test_a_rewrite_of_eval_mode_is_guarded_by_the_layer_it_reasoned_about() -> None:
    source = module("return self.drop(x) * 2", "self.drop = nn.Dropout(0.5)")
    made = rewrite(source, "remove-dead-work", training=False)
    assert "not drop.training" in fast(made) and "drop := self.drop)" in fast(made)


def test_unchanged_layers_stay_calls_of_the_module() -> None:
    init = "self.bn = nn.BatchNorm1d(8)\nself.net = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.1))"
    source = module("return F.relu(torch.sigmoid(self.net(self.bn(x))))", init)
    text = fast(rewrite(source, "value-range-collapse"))
    assert "self.bn(x)" in text and "net[1](net[0](" in text
    assert "training" not in text  # the layers read their own mode


def test_a_layer_called_twice_keeps_its_hyperparameters_by_name() -> None:
    init = "self.bn = nn.BatchNorm1d(8, eps=1e-3)"
    source = module("return F.relu(torch.sigmoid(self.bn(self.bn(x))))", init)
    text = fast(rewrite(source, "value-range-collapse"))
    assert text.count("F.batch_norm(") == 2 and "eps=bn.eps" in text
    assert text.count("bn.num_batches_tracked.add_(1)") == 2


def test_two_functions_of_one_name_are_never_written() -> None:
    graph = graph_of(module("return torch.relu(x) + torch.exp(x)"))
    for node in graph.nodes[:2]:
        text = f"def made(x):\n    return torch.{node.name}(x)"
        kernel = GeneratedSource(name="made", definitions=text, is_triton=False)
        graph.replace(
            node, graph.call_generated(kernel, (node.args[0],), like=graph.val(node), before=node)
        )
    with pytest.raises(RewriteError, match="two generated functions would be called made"):
        emit(graph, generic_batch=False)


@pytest.mark.parametrize("unit", ["  ", "\t", "        "])
def test_the_files_own_indentation_is_used(unit: str) -> None:
    source = SOURCE.replace("    ", unit)
    text = fast(rewrite(source, SKILL))
    assert f"\n{unit}{unit}weight_sum = " in text
    ast.parse(source)


def test_windows_line_endings_do_not_shift_the_target() -> None:
    made = rewrite(SOURCE.replace("\n", "\r\n"), SKILL)
    assert made.program == rewrite(SOURCE, SKILL).program


def test_a_function_gets_a_twin_with_its_original_body() -> None:
    source = (
        "import torch\n\n\ndef gate(x: torch.Tensor, *, hot=False):\n    y = torch.sigmoid(x)\n"
    )
    source += "    return torch.relu(y)\n"
    source += "\n\ndef get_inputs():\n    return [torch.randn(4, 4)]\n"
    opened = EngineSession(
        program(source, "gate", "function"), workload(), "cpu", [skill("value-range-collapse")]
    )
    made = opened.propose(
        [Step(skill="value-range-collapse", site=opened.capture().sites[0].site)]
    ).candidate
    assert (
        "def _gate_eager(x: torch.Tensor, *, hot=False):\n    y = torch.sigmoid(x)" in made.program
    )
    assert "return _gate_eager(x, hot=hot)" in made.program
    namespace: dict[str, object] = {}
    exec(made.program, namespace)
    x = torch.randn(4, 4)
    assert torch.equal(namespace["gate"](x), torch.sigmoid(x))  # type: ignore[operator]


@pytest.mark.parametrize(
    "source, message",
    [
        (
            SOURCE.replace("    def forward", "    @staticmethod\n    def forward").replace(
                "(self, x)", "(x)"
            ),
            "decorated|signature|traced",
        ),
        (SOURCE + "\n_forward_eager = 1\n", "already has"),
        (
            SOURCE.replace("class Model(nn.Module)", "class Base(nn.Module)").replace(
                "def get_inputs", "class Model(Base):\n    pass\n\n\ndef get_inputs"
            ),
            "no forward of its own",
        ),
    ],
)
def test_forms_that_cannot_be_kept_are_refused(source: str, message: str) -> None:
    with pytest.raises(KernelLspError, match=message):
        rewrite(source, SKILL)


def test_dictionaries_and_nested_results_are_rebuilt() -> None:
    source = module('y = F.relu(torch.sigmoid(x))\nreturn {"y": y, "pair": (y + 1, [x])}')
    made = rewrite(source, "value-range-collapse")
    with torch.no_grad():
        got = instance(made.program, None, torch.float32)(torch.zeros(6, 8))
    assert (
        got["y"][0, 0] == 0.5 and got["pair"][0][0, 0] == 1.5 and got["pair"][1][0].shape == (6, 8)
    )


def test_a_step_that_does_not_apply_is_an_error_with_a_remedy() -> None:
    opened = session(SOURCE, SKILL)
    with pytest.raises(RewriteError, match="does not apply at nowhere"):
        opened.propose([Step(skill=SKILL, site="nowhere")])
    with pytest.raises(RewriteError, match="has no rewrite"):
        opened.propose([Step(skill="unknown", site="x")])


def test_a_name_is_reused_only_when_its_value_is_read_no_more() -> None:
    source = module(
        "y = torch.relu(torch.sigmoid(x * x))\nx = y + x * x\nz = x * y\nreturn x + z - y"
    )
    made = rewrite(source, "value-range-collapse")
    x = torch.randn(6, 8)
    with torch.no_grad():
        eager, fast_path = (
            instance(source, None, torch.float32),
            instance(made.program, None, torch.float32),
        )
        assert torch.equal(eager(x), fast_path(x))


def test_new_strides_reach_everything_below() -> None:
    source = module(
        "return torch.relu(self.conv(x)).contiguous()",
        "self.conv = nn.Conv2d(16, 32, 3)",
        "torch.randn(2, 16, 64, 64)",
    )
    opened = session(source, "channels-last-conv", "remove-dead-work")
    first = next(site for site in opened.capture().sites if site.skill == "channels-last-conv")
    proposed = opened.propose([Step(skill=first.skill, site=first.site)])
    assert not [site for site in proposed.sites_left if site.skill == "remove-dead-work"]


def test_what_two_layers_share_is_computed_before_both() -> None:
    """Once they share a value that lies within both, neither is printed as a call of its own."""
    init = "self.one = nn.Softmin(0)\nself.other = nn.Softmin(1)"  # each negates x
    source = module("return self.one(x) * self.other(x)", init)
    made = rewrite(source, "common-subexpression")
    assert "self.one(" not in fast(made)
    assert_same(source, made, torch.randn(6, 8, dtype=torch.float64))


def test_the_original_gets_every_argument_however_it_was_passed() -> None:
    graph = graph_of(module("return torch.relu(x)"))
    signature = "def forward(self, x, /, y=1, *rest, scale=2, **more)"
    text = graph.origin.program.replace("def forward(self, x)", signature)
    assert signature in text
    place = TargetPlace(_with_program(graph, text))
    assert place.eager_call() == "self._forward_eager(x, y, *rest, scale=scale, **more)"
    text = text.replace(", scale=2", "")
    place = TargetPlace(_with_program(graph, text))
    assert (
        place.wrapper_call("run", "_steps", {"not more": ""})
        == "run(self, self._steps, x, y, *rest)"
    )
    with pytest.raises(RewriteError, match="cannot be called by position"):
        place.wrapper_call("run", "_steps", ())


def _with_program(graph: Graph, text: str) -> Graph:
    graph.origin = replace(graph.origin, program=text)
    return graph
