"""Families come from structure, splits keep them whole, likeness sees through renaming, suites
count."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernel_lsp.errors import ConfigError
from trainer.tasks import task_suites
from trainer.tasks.families import TaskStructure, _fold_repeats, structure
from trainer.tasks.generated import build
from trainer.tasks.likeness import Likeness, mark
from trainer.tasks.task_suites import DataPart, FamilySplit

PLAIN = """
import torch
import torch.nn as nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(64, 32)
    def forward(self, x):
        return torch.relu(self.layer(x)).sum(dim=1)

def get_inputs():
    return [torch.randn(8, 64)]
"""


def model(forward: str, init: str = "pass", helpers: str = "") -> str:
    return (
        f"import torch\nimport torch.nn as nn\nimport torch.nn.functional as F\n{helpers}\n"
        f"class Model(nn.Module):\n    def __init__(self):\n        super().__init__()\n        "
        f"{init}\n"
        f"    def forward(self, x):\n        {forward}\n"
    )


def ops(forward: str, init: str = "pass", helpers: str = "") -> tuple[str, ...]:
    found = structure(model(forward, init, helpers))
    assert found is not None
    return found.ops


@pytest.mark.parametrize(
    "forward, init, expected",
    [
        ("return F.relu(x)", "pass", ("relu",)),
        ("return x.relu()", "pass", ("relu",)),
        ("return nn.ReLU()(x)", "pass", ("relu",)),
        ("return self.act(x)", "self.act = nn.ReLU()", ("relu",)),
        ("return self.net(x)", "self.net = nn.Sequential(nn.Linear(4, 4), "
                               "nn.ReLU())", ("linear", "relu")),
        ("return self.a(self.b(x))", "self.a, self.b = nn.Tanh(), "
                                     "nn.Linear(4, 4)", ("linear", "tanh")),
        ("return self.drop(x)", "self.drop = nn.Dropout(0.1).eval()", ("dropout",)),
        ("return x @ self.w.T + 1", "self.w = nn.Parameter(torch.randn(4, 4))", ("matmul", "add")),
        ("return x.view(x.shape[0] * 2, -1).transpose(0, 1)", "pass", ()),
        ("for layer in self.all:\n            x = layer(x)\n        return x",
         "self.all = nn.ModuleList([nn.Linear(4, 4), nn.Tanh()])", ("linear", "tanh")),
        ("for step in x:\n            x = torch.exp(step)\n        "
         "return x", "pass", ("loop", "exp")),
        ("return torch.stack([torch.sin(row) for row in x])", "pass",
         ("loop", "sin", "stack")),
    ],
)  # fmt: skip
def test_operators_are_found_however_they_are_spelled(
    forward: str, init: str, expected: tuple[str, ...]
) -> None:
    assert ops(forward, init) == expected


def test_helpers_are_followed_where_they_are_called() -> None:
    helper = (
        "def gate(x):\n    return torch.sigmoid(x) * x\n"
        "class Block(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.inner = nn.Linear(4, 4)\n    def forward(self, x): return "
        "gate(self.inner(x))\n"
    )
    assert ops("return self.block(x).sum()", "self.block = Block()", helper) == (
        "linear", "sigmoid", "mul", "sum",
    )  # fmt: skip


def test_a_helper_that_calls_itself_ends() -> None:
    helper = "def again(x):\n    return again(torch.exp(x))\n"
    assert set(ops("return again(x)", helpers=helper)) <= {"exp"}


def test_repeats_are_folded_and_long_networks_told_by_their_kinds() -> None:
    assert _fold_repeats(list("aabbababc")) == ("a", "b", "c")
    kinds = (
        "conv",
        "norm",
        "pointwise",
        "pool",
        "matmul",
        "softmax",
        "reduce",
        "scan",
        "index",
        "loss",
    )
    assert TaskStructure(ops=(), kinds=kinds).family.startswith("net:conv+")
    assert structure(PLAIN).family == "matmul>pointwise>reduce"  # type: ignore[union-attr]


@given(kinds=st.lists(st.sampled_from("abc"), max_size=30))
def test_folding_twice_changes_nothing_and_loses_no_kind(kinds: list[str]) -> None:
    once = _fold_repeats(kinds)
    assert _fold_repeats(once) == once and set(once) == set(kinds)


@pytest.mark.parametrize("text", ["def broken(:", "x = 1", "class Model:\n    pass", "\0", ""])
def test_what_is_no_task_has_no_structure(text: str) -> None:
    assert structure(text) is None


@settings(max_examples=30)
@given(number=st.integers(0, 100_000), seed=st.integers(0, 9))
def test_sizes_dtypes_and_names_do_not_change_a_family(number: int, seed: int) -> None:
    large, twin = build(seed, number), build(seed, number, tiny=True)
    renamed = large.replace("self.layer", "self.other").replace("kept", "saved")
    families = {structure(text).family for text in (large, twin, renamed)}  # type: ignore[union-attr]
    assert len(families) == 1


# --- splits ---------------------------------------------------------------------------------------

FAMILY = st.text(alphabet="abcdefgh>", min_size=1, max_size=12)


@given(
    families=st.sets(FAMILY, max_size=40),
    later=st.sets(FAMILY, max_size=10),
    seed=st.integers(0, 99),
    test=st.floats(0, 0.6),
    validation=st.floats(0, 0.3),
)
def test_a_family_is_in_one_part_and_stays_there_whatever_comes_later(
    families: set[str], later: set[str], seed: int, test: float, validation: float
) -> None:
    first = FamilySplit(seed=seed, test=test, validation=validation)
    held = FamilySplit(seed=seed, test=test, validation=validation, held_out=frozenset(later))
    for family in families:
        assert first.part(family) is FamilySplit(seed=seed, test=test, validation=validation).part(
            family
        )
        assert held.part(family) is (DataPart.TEST if family in later else first.part(family))


def test_shares_are_kept_over_many_families() -> None:
    parts = [FamilySplit(seed=3).part(f"family {number}") for number in range(4000)]
    assert abs(parts.count(DataPart.TEST) / 4000 - 0.2) < 0.02
    assert abs(parts.count(DataPart.VALIDATION) / 4000 - 0.1) < 0.02


@pytest.mark.parametrize("shares", [(0.5, 0.5), (-0.1, 0.2), (0.0, 1.0)])
def test_shares_that_leave_nothing_to_train_on_are_refused(shares: tuple[float, float]) -> None:
    with pytest.raises(ConfigError, match="leave nothing"):
        FamilySplit(validation=shares[0], test=shares[1])


# --- likeness -------------------------------------------------------------------------------------


def likeness(*texts: str) -> Likeness:
    return Likeness([found for text in texts if (found := mark(text))])


def test_a_renamed_and_resized_copy_is_recognized() -> None:
    copy = PLAIN.replace("layer", "projection").replace("64", "1024").replace("x", "value")
    assert likeness(PLAIN).why(copy) == "the same program but for names and numbers"


def test_the_same_operators_spelled_otherwise_are_recognized() -> None:
    other = model(
        "h = F.linear(x, self.w)\n        h = h.relu()\n        return h.sum(1)", "self.w = x"
    )
    assert likeness(PLAIN).why(other) == "the same operators in the same order"


def test_a_copy_with_one_more_operator_shares_most_of_its_text() -> None:
    lines = (
        "h = torch.relu(x)\n        h = torch.tanh(h) * 3\n        h = F.gelu(h) + torch.exp(h)\n "
        "       "
    )
    original, longer = model(lines * 3 + "return h"), model(lines * 3 + "return torch.abs(h)")
    assert likeness(original).why(longer) == "most of its text"
    assert likeness(PLAIN).why(PLAIN.replace("torch.relu", "torch.cumsum")) is None
    assert likeness(original).why(model("return torch.cumsum(x, dim=1)")) is None


def test_marks_hold_no_text() -> None:
    found = mark(PLAIN.replace("Linear", "SecretLayer"))
    assert found is not None and "SecretLayer" not in repr(found)


# --- suites ---------------------------------------------------------------------------------------


def test_a_suite_counts_what_is_no_task_and_what_it_has_twice(tmp_path: Path) -> None:
    files = {
        "a/first.py": PLAIN,
        "a/second.py": "# a comment\n" + PLAIN,
        "broken.py": "import torch\ndef f(:",
        "no_model.py": "def get_inputs(): return []",
        "no_inputs.py": PLAIN.split("def get_inputs")[0],
        "_private.py": PLAIN,
        "other.py": PLAIN.replace("8, 64", "9, 64"),
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "latin.py").write_bytes(b"# \xff\n" + PLAIN.encode())
    suite = task_suites.load(tmp_path)
    assert sorted(suite.by_name) == ["a/first", "other"]
    assert {one.reason: one.count for one in suite.skipped} == {
        "the same task as another file": 1,
        "does not parse": 1,
        "has no class Model with forward(), and no single kernel that it launches": 1,
        "has no get_inputs()": 1,
        "cannot be read": 1,
    }
    assert suite.by_name["a/first"].id != suite.by_name["other"].id


def test_a_task_that_changed_since_its_suite_was_written_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text(PLAIN)
    (tmp_path / "two.py").write_text(PLAIN.replace("32", "48"))
    listed = {p.name: {"sha256": task_suites.digest(p.read_text())} for p in tmp_path.glob("*.py")}
    (tmp_path / task_suites.MANIFEST).write_text(json.dumps({"tasks": listed}))
    (tmp_path / "two.py").write_text(PLAIN.replace("32", "56"))
    suite = task_suites.load(tmp_path)
    assert list(suite.by_name) == ["one"]
    assert [s.reason for s in suite.skipped] == [
        "its reference changed since the suite was written"
    ]
    (tmp_path / task_suites.MANIFEST).write_text("{")
    with pytest.raises(ConfigError, match="cannot be read"):
        task_suites.load(tmp_path)


def test_no_folder_is_an_error_with_a_way_out(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no folder of tasks"):
        task_suites.load(tmp_path / "nowhere")
