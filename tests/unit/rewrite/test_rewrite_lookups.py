"""Layers are looked up once: which names stand for them, where, and that nothing else changes."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rewrite_helpers import assert_same, instance, module, rewrite

from kernel_lsp.rewrite.printing.lookups import bound_once

pytestmark = pytest.mark.torch

PATHS = {
    "self.input",
    "self.conv",
    "self.conv.weight",
    "self.gain",
    "self.layers[0]",
    "self.block",
    "self.block.conv",
}


def checks(*texts: str, body: tuple[str, ...] = (), taken: tuple[str, ...] = ()) -> list[str]:
    return bound_once(texts, body, PATHS, taken)[0]


def test_the_first_condition_binds_and_the_others_and_the_statements_read_the_name() -> None:
    found = bound_once(
        [
            "type(self.conv) is Conv",
            "self.conv.weight.dtype == d",
            "self.conv.weight.shape == (3,)",
        ],
        ["# self.conv does it", "y = conv2d(x, self.conv.weight, self.conv.bias)", "return y"],
        PATHS,
        {"x"},
    )
    assert found == (
        [
            "type(conv := self.conv) is Conv",
            "(conv_weight := conv.weight).dtype == d",
            "conv_weight.shape == (3,)",
        ],
        ["# self.conv does it", "y = conv2d(x, conv_weight, conv.bias)", "return y"],
    )


@pytest.mark.parametrize(
    "texts",
    [
        ("self.gain.dtype == d",),  # once is no reason
        ("not (grad() and self.gain.requires_grad)", "x or self.gain"),  # Python may not get there
        ("(self.gain if x else y) == 1", "any(p for p in self.gain)"),
        ("self.gains == 1", "other.self.gain == 1"),  # other things
    ],
)
def test_what_may_not_be_evaluated_or_is_something_else_is_left_alone(
    texts: tuple[str, ...],
) -> None:
    assert checks(*texts) == list(texts)


def test_a_condition_before_the_binding_keeps_the_whole_path() -> None:
    texts = ("not (grad() and self.gain.r)", "self.gain.dtype == d", "self.gain.shape == s")
    assert checks(*texts) == [texts[0], "(gain := self.gain).dtype == d", "gain.shape == s"]


def test_names_that_the_function_uses_are_left_to_it() -> None:
    twice = ("self.gain.dtype == d", "self.gain.shape == s")
    assert checks(*twice, taken=("gain",))[1] == "gain_2.shape == s"
    assert checks(*twice, body=("gain = 2",))[1] == "gain_2.shape == s"
    assert (
        checks("self.block.conv.a == 1", "self.block.conv.b == 1", taken=("conv",))[1]
        == "block_conv.b == 1"
    )
    assert checks("self.layers[0].a == 1", "self.layers[0].b == 1")[1] == "layers_0.b == 1"
    assert checks("type(self.input) is Linear", "self.input.b == 1") == [
        "type(input_ := self.input) is Linear",
        "input_.b == 1",
    ]


class Recorded:
    """An object that keeps the order in which its attributes are asked for."""

    def __init__(self, log: list[str], path: str = "self") -> None:
        self.__dict__.update(log=log, path=path)

    def __getattr__(self, name: str) -> "Recorded":
        self.log.append(f"{self.path}.{name}")
        return Recorded(self.log, f"{self.path}.{name}")

    def __getitem__(self, index: int) -> "Recorded":
        self.log.append(f"{self.path}[{index}]")
        return Recorded(self.log, f"{self.path}[{index}]")

    def __bool__(self) -> bool:
        return self.path.endswith("!") or len(self.path) % 3 > 0

    def __eq__(self, other: object) -> bool:
        return bool(self)

    __hash__ = None  # type: ignore[assignment]


TERMS = [f"{path}.{name}" for path in sorted(PATHS) for name in ("ab", "abc")]
FORMS = [
    "{0} == 1",
    "not ({0} or {1})",
    "({0}, {1}) == (1, 1)",
    "not ({0} and {1})",
    "({0} if {1} else {2})",
]


@given(
    st.lists(
        st.tuples(st.sampled_from(FORMS), *[st.sampled_from(TERMS)] * 3), min_size=1, max_size=6
    )
)
def test_the_same_questions_are_asked_in_the_same_order_with_the_same_answer(
    items: list[tuple[str, ...]],
) -> None:
    texts = [form.format(*terms) for form, *terms in items]
    logs, answers = [], []
    for each in (texts, checks(*texts)):
        log: list[str] = []
        answers.append(bool(eval(" and ".join(each), {"self": Recorded(log)})))
        logs.append(list(dict.fromkeys(log)))
    assert answers[0] == answers[1] and logs[0] == logs[1]


def test_a_rewritten_forward_looks_a_layer_up_once_and_sees_it_replaced() -> None:
    source = module(
        "return self.fc(x).sum(dim=1)", "self.fc = nn.Linear(8, 4000)", "torch.randn(640, 8)"
    )
    made = rewrite(source, "reassociate-linear-reduction")
    forward = made.program.split("def forward")[1].split("def get_inputs")[0]
    assert forward.count("self.fc") == 1 and "type(fc := self.fc) is torch.nn.Linear" in forward
    assert_same(source, made, torch.randn(640, 8, dtype=torch.float64))
    changed = instance(made.program, None, torch.float32)
    changed.fc = torch.nn.Sequential(torch.nn.Linear(8, 3))  # has no weight: nothing asks for it
    with torch.no_grad():
        assert changed(torch.randn(640, 8)).shape == (640,)
