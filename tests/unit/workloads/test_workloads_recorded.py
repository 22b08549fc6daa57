"""Recorded workloads in TOML: the schema, which target they belong to, and what bad ones are
told."""

from pathlib import Path

import pytest

from kernel_lsp.records import ArgSpec, Snapshot, Span, Target, TargetKind, Workload, WorkloadOrigin
from kernel_lsp.workloads import workloads_for

GOOD = """
[[workload]]
target = "models/block.py::Block"
name = "train step"
training = true
[[workload.inputs]]
name = "x"
dtype = "f32"
shape = [8, 4096]
stride = [1, 8]
distribution = "uniform"
requires_grad = true
[[workload.inputs]]
dtype = "int64"
shape = [8]
distribution = "index:100"
[[workload.inputs]]
name = "mask"
[[workload.init]]
value = 4096

[[workload]]
target = "models/other.py::Block"
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / ".kernel-lsp").mkdir()
    return tmp_path


def read(root: Path, uri: str | None = None) -> tuple[tuple[Workload, ...], tuple[Exception, ...]]:
    span = Span(start=0, end=0)
    target = Target(
        qualname="Block", kind=TargetKind.MODULE, name_span=span, span=span, fingerprint=""
    )
    snapshot = Snapshot(uri=uri or (root / "models" / "block.py").as_uri(), text="")
    return workloads_for(snapshot, target, str(root))


def write(root: Path, text: str, name: str = "workloads.toml") -> None:
    (root / ".kernel-lsp" / name).write_text(text)


def test_the_whole_schema(root: Path) -> None:
    write(root, GOOD)
    expected = Workload(
        name="train step",
        origin=WorkloadOrigin.RECORDED,
        training=True,
        inputs=(
            ArgSpec(
                name="x",
                dtype="float32",
                shape=(8, 4096),
                stride=(1, 8),
                distribution="uniform",
                requires_grad=True,
            ),
            ArgSpec(name=None, dtype="int64", shape=(8,), distribution="index:100"),
            ArgSpec(name="mask", value=None),
        ),
        init=(ArgSpec(name=None, value=4096),),
    )
    assert read(root) == ((expected,), ())
    assert read(root, uri="models/block.py") == ((expected,), ())


def test_names_have_a_default_and_workloads_toml_comes_first(root: Path) -> None:
    write(root, '[[workload]]\ntarget = "models/block.py::Block"\n')
    write(root, '[[workload]]\ntarget = "models/block.py::Block"\nname = "b"\n', "a.toml")
    assert [w.name for w in read(root)[0]] == ["workloads.toml #1", "b"]


def test_recorded_ways_come_by_share_those_without_one_last(root: Path) -> None:
    entry = '[[workload]]\ntarget = "models/block.py::Block"\n'
    named = [("none", ""), ("half", "share = 0.5\n"), ("most", "share = 0.9\n")]
    write(root, "".join(f'{entry}name = "{name}"\n{more}' for name, more in named), "run.toml")
    assert [w.name for w in read(root)[0]] == ["most", "half", "none"]
    write(root, f'{entry}share = "all"\n', "run.toml")
    assert "share is 'all'" in str(read(root)[1][0])


@pytest.mark.parametrize(
    ("text", "inference"),
    [
        ("", False),
        ("gradients = true", False),
        ("gradients = false", True),
        ("inference = true", True),
        ("gradients = false\ninference = false", False),
    ],
)
def test_nobody_differentiates_where_people_say_so_or_a_run_recorded_none(
    root: Path, text: str, inference: bool
) -> None:
    write(root, f'[[workload]]\ntarget = "models/block.py::Block"\n{text}\n', "run.toml")
    ((workload,), problems) = read(root)
    assert problems == () and (workload.setting.gradients is False) == inference


def test_files_with_other_contents_and_missing_folders_are_nothing(
    root: Path, tmp_path: Path
) -> None:
    write(root, "[settings]\nx = 1\n", "settings.toml")
    assert read(root) == ((), ())
    assert read(tmp_path / "nowhere") == ((), ())


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[[workload", "is no TOML"),
        ("workload = 3", "no array of tables"),
        ("[[workload]]\nname = 'x'", "target is None"),
        ("[[workload]]\ntarget = 'Block'", "target is 'Block'"),
        ("{t}\nshape = [1]", "shape is unknown"),
        ("{t}\ntraining = 'yes'", "training is 'yes'"),
        ("{t}\ninference = 'yes'", "inference is 'yes'"),
        ("{t}\ninputs = 3", "inputs is no array"),
        ("{t}\n[[workload.inputs]]\ndtype = 'f31'\nshape = [1]", "dtype is 'f31'"),
        ("{t}\n[[workload.inputs]]\ndtype = 'f32'", "shape is missing"),
        ("{t}\n[[workload.inputs]]\ndtype = 'f32'\nshape = ['n']", "shape is ['n']"),
        ("{t}\n[[workload.inputs]]\ndtype = 'f32'\nshape = [2]\nstride = [1, 1]", "another length"),
        (
            "{t}\n[[workload.inputs]]\ndtype = 'f32'\nshape = [2]\ndistribution = 'index:0'",
            "distribution is",
        ),
        ("{t}\n[[workload.inputs]]\nname = 3", "name is 3"),
    ],
)
def test_a_bad_file_is_named_with_field_and_remedy(root: Path, text: str, words: str) -> None:
    write(root, text.replace("{t}", '[[workload]]\ntarget = "models/block.py::Block"'))
    workloads, (problem,) = read(root)
    assert workloads == ()
    assert "workloads.toml" in str(problem) and words in str(problem)
    assert problem.remedy  # type: ignore[attr-defined]


def test_a_bad_file_does_not_hide_a_good_one(root: Path) -> None:
    write(root, "[[workload")
    write(root, GOOD, "more.toml")
    workloads, problems = read(root)
    assert [w.name for w in workloads] == ["train step"] and len(problems) == 1


def test_bytes_that_are_no_utf8_are_a_problem(root: Path) -> None:
    (root / ".kernel-lsp" / "workloads.toml").write_bytes(b"\xff\xfe\x00")
    assert "cannot be read" in str(read(root)[1][0])
