"""Which policy plans: kept atomically, refused with numbers, never half installed. No torch."""

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kernel_lsp.agents.backbones.small import shape
from kernel_lsp.agents.prompt_encoding import tokenizer
from kernel_lsp.commands.app import app
from kernel_lsp.errors import ModelError
from kernel_lsp.models import GRAPH, KERNEL, TARGETS, HeldOut, PolicyStore, manifest, seal

CHECK = HeldOut(
    metric="first/best",
    tasks=64,
    value=0.95,
    low=0.93,
    high=0.97,
    rule=0.88,
    device="H200",
    suite="abc",
)


def checkpoint(
    folder: Path,
    version: str = "1",
    held_out: HeldOut | None = CHECK,
    name: str = "plan-small",
    weights: bytes = b"w",
    targets: tuple[str, ...] = ("graph",),
) -> Path:
    """Complete but for its weights, which nobody here reads."""
    folder.mkdir(parents=True)
    tokenizer.write(folder)
    (folder / "config.json").write_text(json.dumps(shape.config(shape.NetworkShape())))
    (folder / "model.safetensors").write_bytes(weights * 100)
    seal(folder, name=name, version=version, held_out=held_out, targets=targets)
    return folder


@pytest.fixture
def store(tmp_path: Path) -> PolicyStore:
    return PolicyStore(tmp_path / "data", packaged=tmp_path / "package")


def installed(store: PolicyStore, tmp_path: Path, *checks: HeldOut) -> None:
    for number, check in enumerate(checks, 1):
        store.install(checkpoint(tmp_path / f"made{number}", str(number), check))


@pytest.mark.parametrize("how", ["a pipe", "without end", "of 5 MB"])
def test_a_manifest_that_would_never_be_read_is_refused(
    how: str, store: PolicyStore, tmp_path: Path
) -> None:
    folder = checkpoint(tmp_path / "made")
    file = folder / manifest.NAME
    file.unlink()
    if how == "a pipe":
        os.mkfifo(file)
    elif how == "without end":
        file.symlink_to("/dev/zero")
    else:
        file.write_text('{"name": "' + "a" * 5_000_000 + '"}')
    with pytest.raises(ModelError, match="cannot be read"):
        store.install(folder)


def test_without_any_policy_the_rule_plans(store: PolicyStore) -> None:
    assert store.used() is None
    assert store.models() == ()


def test_the_packages_own_is_used_until_something_is_chosen(
    store: PolicyStore, tmp_path: Path
) -> None:
    checkpoint(tmp_path / "package" / "plan-small-9", "9")
    checkpoint(tmp_path / "package" / "plan-small-10", "10")
    used = store.used()
    assert used is not None and (used.id, used.packaged) == ("plan-small@10", True)
    assert used.manifest is not None
    assert used.proposer == f"policy:plan-small@10#{used.manifest.digest}"
    store.use("rule")
    assert store.used() is None
    back = store.rollback()
    assert back is not None and back.id == "plan-small@10"


def test_a_packaged_one_that_is_not_clearly_better_is_there_to_be_chosen(
    store: PolicyStore, tmp_path: Path
) -> None:
    close = replace(CHECK, value=0.90, low=0.87)  # the rule's 0.88 is within its interval
    checkpoint(tmp_path / "package" / "plan-small-1", "1", close)
    assert store.used() is None
    chosen = store.use("plan-small@1")
    assert chosen is not None and store.used() is not None


def test_what_comes_with_the_package_is_whole() -> None:
    for model in PolicyStore(Path("nowhere")).models():
        assert model.packaged and model.problem is None and model.manifest is not None
        manifest.verify(model.folder, model.manifest)
        assert model.manifest.held_out is not None and model.manifest.notes
        assert sum(file.stat().st_size for file in model.folder.iterdir()) < 60e6


def test_a_packaged_one_that_is_no_better_than_the_rule_is_passed_over(
    store: PolicyStore, tmp_path: Path
) -> None:
    checkpoint(tmp_path / "package" / "a", "1")
    checkpoint(tmp_path / "package" / "b", "2", replace(CHECK, value=0.80))
    used = store.used()
    assert used is not None and used.id == "plan-small@1"


def test_switching_and_going_back(store: PolicyStore, tmp_path: Path) -> None:
    installed(store, tmp_path, CHECK, replace(CHECK, value=0.96))
    store.use("plan-small@1")
    store.use("plan-small")  # the last version of that name
    assert store.used().id == "plan-small@2"  # type: ignore[union-attr]
    assert store.rollback().id == "plan-small@1"  # type: ignore[union-attr]
    assert store.rollback() is None  # the rule planned before
    with pytest.raises(ModelError, match="nothing was used before"):
        store.rollback()


@pytest.mark.parametrize(
    ("check", "words"),
    [
        (None, "never checked"),
        (replace(CHECK, value=0.88), "no better than the rule: first/best 0.880 .*rule 0.880"),
        (
            replace(CHECK, value=0.90),
            r"worse than plan-small@1.*0.900 \(0.930 to 0.970\) against 0.950",
        ),
        (replace(CHECK, value=float("nan")), "is no result"),
        (replace(CHECK, tasks=0), "is no result"),
    ],
)
def test_a_worse_one_is_refused_with_its_numbers(
    store: PolicyStore, tmp_path: Path, check: HeldOut | None, words: str
) -> None:
    installed(store, tmp_path, CHECK)
    store.use("plan-small@1")
    store.install(checkpoint(tmp_path / "worse", "2", check))
    with pytest.raises(ModelError, match=words):
        store.use("plan-small@2")
    assert store.used().id == "plan-small@1"  # type: ignore[union-attr]


def test_numbers_of_another_suite_are_not_compared(store: PolicyStore, tmp_path: Path) -> None:
    installed(store, tmp_path, CHECK, replace(CHECK, value=0.90, suite="other"))
    store.use("plan-small@1")
    assert store.use("plan-small@2").id == "plan-small@2"  # type: ignore[union-attr]


def ids(store: PolicyStore) -> tuple[str | None, str | None]:
    """What plans graphs and kernels."""
    graphs, kernels = store.used(GRAPH), store.used(KERNEL)
    return graphs and graphs.id, kernels and kernels.id


def test_a_choice_counts_for_what_it_plans_until_the_next_one_about_that(
    store: PolicyStore, tmp_path: Path
) -> None:
    checkpoint(tmp_path / "package" / "graphs", name="graphs")
    checkpoint(tmp_path / "package" / "kernels", name="kernels", targets=(KERNEL,))
    assert ids(store) == ("graphs@1", "kernels@1")
    assert store.used() == store.used(GRAPH)
    store.install(checkpoint(tmp_path / "graphs", "2", name="graphs"))
    store.install(checkpoint(tmp_path / "kernels", "2", name="kernels", targets=(KERNEL,)))
    store.install(checkpoint(tmp_path / "both", name="both", targets=TARGETS))
    store.use("kernels@2")
    assert ids(store) == ("graphs@1", "kernels@2")
    store.use("graphs@2")
    assert ids(store) == ("graphs@2", "kernels@2")  # who plans kernels was chosen before
    store.use("both")
    assert ids(store) == ("both@1", "both@1")
    store.use("rule")
    assert ids(store) == (None, None)
    for expected in ("both@1", "both@1"), ("graphs@2", "kernels@2"), ("graphs@1", "kernels@2"):
        store.rollback()
        assert ids(store) == expected
    store.rollback()
    assert ids(store) == ("graphs@1", "kernels@1")  # as before anything was chosen
    store.use("rule")
    store.use("graphs@2")
    # The rule was chosen for all, and another for graphs alone.
    assert ids(store) == ("graphs@2", None)


def test_going_back_to_the_packages_own_for_kernels_alone(
    store: PolicyStore, tmp_path: Path
) -> None:
    checkpoint(tmp_path / "package" / "kernels", name="kernels", targets=(KERNEL,))
    store.use("rule")
    assert ids(store) == (None, None)
    store.rollback()
    assert ids(store) == (None, "kernels@1")


def test_a_packaged_one_for_kernels_that_is_not_clearly_better_is_not_used(
    store: PolicyStore, tmp_path: Path
) -> None:
    close = replace(CHECK, value=0.90, low=0.87)
    checkpoint(tmp_path / "package" / "kernels", held_out=close, name="kernels", targets=(KERNEL,))
    assert ids(store) == (None, None)
    store.use("kernels")
    assert ids(store) == (None, "kernels@1")


def test_a_packaged_one_may_want_to_be_chosen_however_good_it_is(
    store: PolicyStore, tmp_path: Path
) -> None:
    folder = checkpoint(tmp_path / "package" / "kernels", name="kernels", targets=(KERNEL,))
    assert ids(store) == (None, "kernels@1")
    seal(folder, name="kernels", version="1", held_out=CHECK, targets=(KERNEL,), unasked=False)
    assert ids(store) == (None, None)
    store.use("kernels")
    assert ids(store) == (None, "kernels@1")


def test_it_is_compared_with_what_plans_the_same(store: PolicyStore, tmp_path: Path) -> None:
    installed(store, tmp_path, CHECK)
    store.use("plan-small@1")
    less = replace(CHECK, value=0.90)
    store.install(checkpoint(tmp_path / "kernels", "1", less, "kernels", targets=(KERNEL,)))
    store.install(checkpoint(tmp_path / "both", "1", less, "both", targets=TARGETS))
    with pytest.raises(ModelError, match="worse than plan-small@1"):
        store.use("both")
    store.use("kernels")  # of graphs it says nothing
    store.install(
        checkpoint(tmp_path / "worse", "2", replace(less, value=0.89), "kernels", targets=(KERNEL,))
    )
    with pytest.raises(ModelError, match="worse than kernels@1"):
        store.use("kernels@2")
    assert ids(store) == ("plan-small@1", "kernels@1")


def test_what_is_gone_leaves_the_rule_for_both(store: PolicyStore, tmp_path: Path) -> None:
    store.install(checkpoint(tmp_path / "made", name="kernels", targets=(KERNEL,)))
    store.use("kernels")
    shutil.rmtree(tmp_path / "data" / "models" / "kernels-1")
    for target in TARGETS:  # what it planned cannot be read any more
        with pytest.raises(ModelError, match="no policy is called kernels@1"):
            store.used(target)


def test_manifests_without_targets_plan_graphs_and_unknown_ones_nothing(
    store: PolicyStore, tmp_path: Path
) -> None:
    folder = checkpoint(tmp_path / "made")
    told = json.loads((folder / "manifest.json").read_text())
    del told["targets"]
    (folder / "manifest.json").write_text(json.dumps(told))
    assert store.install(folder).manifest.targets == (GRAPH,)  # type: ignore[union-attr]
    for other in ((), ("loop",)):
        with pytest.raises(
            ModelError, match=r"plans (nothing|loop), this version graph and kernel"
        ):
            store.install(checkpoint(tmp_path / f"made{len(other)}", "2", targets=other))


def test_what_was_chosen_and_is_gone_is_said(store: PolicyStore, tmp_path: Path) -> None:
    installed(store, tmp_path, CHECK)
    store.use("plan-small")
    shutil.rmtree(tmp_path / "data" / "models" / "plan-small-1")
    with pytest.raises(ModelError, match="no policy is called plan-small@1"):
        store.used()
    (tmp_path / "data" / "models" / "used.json").write_text("{")
    with pytest.raises(ModelError, match=r"used.json cannot be read"):
        store.used()
    assert store.use("rule") is None
    assert store.used() is None


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("model.safetensors", b"other", "model.safetensors changed"),
        ("config.json", b'{"model_type": "llama"}', "cannot be used"),
        ("manifest.json", b"{", "cannot be read"),
        (
            "manifest.json",
            b'{"name": "../../x", "version": "1", "vocabulary": "", "files": {}}',
            "must be of",
        ),
        ("manifest.json", None, "no finished policy"),
        ("model.safetensors", None, "cannot be used"),
    ],
)
def test_a_damaged_checkpoint_is_not_installed(
    store: PolicyStore, tmp_path: Path, name: str, content: bytes | None, words: str
) -> None:
    folder = checkpoint(tmp_path / "made")
    (folder / name).unlink() if content is None else (folder / name).write_bytes(content)
    with pytest.raises(ModelError, match=words):
        store.install(folder)
    assert store.models() == ()


@pytest.mark.parametrize(
    "name", ["../escaped", "a/../../escaped", "/tmp/escaped", "..", ".bashrc", "a\x1b[2J", ""]
)
def test_a_manifest_that_names_files_elsewhere_writes_nothing_there(
    store: PolicyStore, tmp_path: Path, name: str
) -> None:
    folder = checkpoint(tmp_path / "in" / "made")
    (tmp_path / "in" / "escaped").write_text("content of the attacker")
    told = json.loads((folder / "manifest.json").read_text())
    told["files"][name] = manifest.sha256(tmp_path / "in" / "escaped")
    (folder / "manifest.json").write_text(json.dumps(told))
    before = {path for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(ModelError, match="names the file"):
        store.install(folder)
    assert {path for path in tmp_path.rglob("*") if path.is_file()} == before


def test_a_checkpoint_of_pipes_and_devices_is_refused_at_once(
    store: PolicyStore, tmp_path: Path
) -> None:
    """Nobody writes into the pipe, and /dev/zero has no end."""
    for number, place in enumerate((os.mkfifo, lambda path: path.symlink_to("/dev/zero"))):
        folder = checkpoint(tmp_path / f"made{number}", str(number))
        told = json.loads((folder / "manifest.json").read_text())
        told["files"]["notes.txt"] = ""
        (folder / "manifest.json").write_text(json.dumps(told))
        place(folder / "notes.txt")
        with pytest.raises(ModelError, match=r"notes.txt is no regular file"):
            store.install(folder)
    assert store.models() == ()


def test_another_vocabulary_or_tokenizer_is_refused(store: PolicyStore, tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "made")
    told = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps({**told, "vocabulary": "compact/0"}))
    with pytest.raises(ModelError, match="speaks compact/0, this version compact/1"):
        store.install(folder)
    vocabulary = json.loads((folder / "tokenizer.json").read_text())
    vocabulary["model"]["vocab"]["relu "] = 5
    (folder / "tokenizer.json").write_text(json.dumps(vocabulary))
    seal(folder, name="plan-small", version="1", held_out=CHECK)
    with pytest.raises(ModelError, match="another tokenizer"):
        store.install(folder)


def test_one_version_has_one_content(store: PolicyStore, tmp_path: Path) -> None:
    first = store.install(checkpoint(tmp_path / "made"))
    assert store.install(tmp_path / "made").folder == first.folder
    with pytest.raises(ModelError, match="with other weights"):
        store.install(checkpoint(tmp_path / "other", weights=b"x"))


def test_a_full_disk_leaves_nothing_behind(
    store: PolicyStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed(store, tmp_path, CHECK)
    store.use("plan-small")
    folder = checkpoint(tmp_path / "more", "2")

    def full(source: Path, target: Path) -> None:
        target.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shutil, "copyfile", full)
    with pytest.raises(ModelError, match="No space left"):
        store.install(folder)
    assert [model.id for model in store.models()] == ["plan-small@1"]
    assert sorted(p.name for p in (tmp_path / "data" / "models").iterdir()) == [
        "plan-small-1",
        "used.json",
    ]
    monkeypatch.setattr(
        "kernel_lsp.models.store.replace_file",
        lambda path, content: full(path, path.with_name("x")),
    )
    with pytest.raises(ModelError, match="cannot be kept"):
        store.use("rule")
    assert store.used() is not None


def test_a_checkpoint_is_finished_when_its_manifest_is_there(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "made")
    told = manifest.read(folder)
    manifest.verify(folder, told)
    assert set(told.files) == {p.name for p in folder.iterdir()} - {"manifest.json"}
    assert told.digest == manifest.read(folder).digest


def test_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNEL_LSP_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setattr("kernel_lsp.models.store.PACKAGED", tmp_path / "package")
    monkeypatch.setattr(PolicyStore.__init__, "__defaults__", (tmp_path / "package",))
    run = CliRunner()
    assert "rule" in run.invoke(app, ["models", "list"]).stdout
    good, bad = (
        checkpoint(tmp_path / "good", "1"),
        checkpoint(tmp_path / "bad", "2", replace(CHECK, value=0.5)),
    )
    made = run.invoke(app, ["models", "use", str(good)])
    assert made.exit_code == 0 and "plan-small@1 plans from now on: first/best 0.950" in made.stdout
    refused = run.invoke(app, ["models", "use", str(bad)])
    assert refused.exit_code == 2 and "no better than the rule" in " ".join(refused.stderr.split())
    listed = run.invoke(app, ["models", "list"]).stdout.splitlines()
    assert [line.split()[:2] for line in listed[1:3]] == [
        ["*", "plan-small@1"],
        ["plan-small@2", "installed"],
    ]
    told = json.loads(run.invoke(app, ["models", "list", "--json"]).stdout)
    assert told["used"] == "plan-small@1" and len(told["models"]) == 2
    assert told["targets"][KERNEL] == {"used": "rule", "trouble": None}
    assert "graphs: plan-small@1; kernels: rule" in listed
    kernels = checkpoint(tmp_path / "kernels", name="kernels", targets=(KERNEL,))
    made = run.invoke(app, ["models", "use", str(kernels)])
    assert "kernels@1 plans from now on" in made.stdout
    assert "graphs: plan-small@1; kernels: kernels@1" in made.stdout
    assert "plans graphs, trained for cuda, cpu" in run.invoke(app, ["models", "show"]).stdout
    run.invoke(app, ["models", "rollback"])
    assert "held-out check: first/best 0.950" in run.invoke(app, ["models", "show"]).stdout
    assert "the rule plans" in run.invoke(app, ["models", "rollback"]).stdout
    assert run.invoke(app, ["models", "show", "nobody"]).exit_code == 2
