"""Which recording of a target is opened: one's own, or one that is what its maker has signed."""

import json
import os
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from kernel_lsp import analysis, signatures
from kernel_lsp.errors import EvaluationError
from kernel_lsp.pipeline.kept import _argument_spec, find_call, own_home
from kernel_lsp.records import Home, Replay, Snapshot
from kernel_lsp.snapshots import format, store

TEXT = """import torch


class Model(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x) + 1
"""


@pytest.fixture
def key(tmp_path: Path) -> Path:
    path = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)], check=True)
    return path


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    """A program that called Model once."""
    (tmp_path / "model.py").write_text(TEXT)
    folder = store.begin(tmp_path / "data", tmp_path, "train.py")
    content = format.encode({"search_path": [], "tensors": []}, {})
    name = format.name_of(content)
    (folder / "calls" / name).write_bytes(content)
    way = {"target": "model.py::Model", "module": "model", "snapshot": name, "setting": {}}
    about = {"program": "train.py", "root": str(tmp_path), "created": "now", "command": []}
    store.finish(folder, {**about, "elapsed_s": 1.0, "seen": [], "ways": [way]})
    return folder


def call_of(recording: Path) -> Path:
    (path,) = (recording / "calls").iterdir()
    return path


def is_found(tmp_path: Path) -> bool:
    target = analysis.find_target(analysis.analyze(Snapshot(uri="", text=TEXT)), "Model")
    assert target is not None
    return find_call(tmp_path / "model.py", TEXT, target, tmp_path / "data") is not None


def test_ones_own_recording_is_signed_by_nobody(tmp_path: Path, recording: Path) -> None:
    assert is_found(tmp_path)


def test_what_was_signed_is_opened_as_long_as_it_is_that(
    tmp_path: Path, recording: Path, key: Path, caplog: pytest.LogCaptureFixture
) -> None:
    signatures.sign(recording, key=key, kind="recording")
    assert not is_found(tmp_path)  # nobody trusts that key
    signatures.Keyring(tmp_path / "data").trust("ada", key.with_suffix(".pub"))
    assert is_found(tmp_path)
    call_of(recording).write_bytes(format.encode({"search_path": ["/"], "tensors": []}, {}))
    assert not is_found(tmp_path)
    assert "changed since it was signed" in caplog.text


def test_a_document_does_not_say_what_a_confined_process_sees(
    tmp_path: Path, recording: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`verify --evidence` of somebody else's document had it show any folder to the candidate in
    it, keys of the user's included."""
    monkeypatch.setattr(Path, "home", lambda: tmp_path / "home")
    keys = tmp_path / "home" / ".ssh"
    keys.mkdir(parents=True)
    hostile = Home(
        module="model",
        path=str(tmp_path / "model.py"),
        snapshot=str(call_of(recording)),
        search_path=(str(keys), "../.ssh"),
        pickler=str(keys / "id_rsa"),
        replay=Replay(command=("python", "x.py"), root=str(keys)),
        others=(("/other.py", "x = 1"),),
    )
    own = own_home(hostile, tmp_path / "data")
    assert own.search_path == () and own.pickler == store.cloudpickle_file()
    assert own.replay is None and own.others == hostile.others
    planted = tmp_path / "clone" / "planted.call"
    planted.parent.mkdir()
    planted.write_bytes(call_of(recording).read_bytes())
    with pytest.raises(EvaluationError, match="in no recording of yours"):
        own_home(replace(hostile, snapshot=str(planted)), tmp_path / "data")


def test_a_search_path_does_not_show_hidden_folders_of_a_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    monkeypatch.setattr(Path, "home", lambda: home)
    shown = (
        "project",
        ".local/lib/python3.11/site-packages",
        ".pyenv/versions/3.12/lib/python3.12",
    )
    hidden = (".ssh", ".config/gcloud", ".aws")
    for name in (*shown, *hidden):
        (home / name).mkdir(parents=True)
    (home / "project" / "link").symlink_to(home / ".ssh")
    monkeypatch.chdir(home / "project")
    named = Home(
        module="m",
        path="m.py",
        snapshot="/data/calls/one",
        search_path=(
            *(str(home / one) for one in (*shown, *hidden, "project/link", "")),
            "../.aws",
        ),
        pickler="/code/cloudpickle.py",
    )
    found = store.folders_of(named)
    assert found == (*(home / one for one in shown), Path("/data/calls"), Path("/code"))


def test_a_signature_for_something_else_is_none(tmp_path: Path, recording: Path, key: Path) -> None:
    signatures.sign(recording, key=key, kind="skill")
    signatures.Keyring(tmp_path / "data").trust("ada", key.with_suffix(".pub"))
    assert not is_found(tmp_path)


def test_a_person_reads_what_a_kept_call_was_given() -> None:
    tensor = _argument_spec({"name": "x", "dtype": "float32", "shape": [2, 3], "stride": [3, 1]})
    assert (tensor.shape, tensor.stride, tensor.value) == ((2, 3), (3, 1), None)
    number = _argument_spec({"name": "n", "value": 3})
    assert (number.shape, number.stride, number.value) == (None, None, 3)
    assert _argument_spec({"name": "config", "unknown": "Config", "value": 3}).value == "Config"


def test_a_snapshot_that_was_replaced_is_not_opened(tmp_path: Path, recording: Path) -> None:
    """Between the look at a signature and the opening, say: its name is that of its content."""
    path = call_of(recording)
    path.write_bytes(format.encode({"search_path": ["/keys"], "tensors": []}, {}))
    with pytest.raises(format.Unreadable, match="was changed"):
        format.read(path)
    assert not is_found(tmp_path)


def a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def a_link(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize("make", [a_pipe, a_link])
@pytest.mark.parametrize("what", ["index.json", "call"])
def test_pipes_and_links_in_the_data_folder_are_no_recordings(
    tmp_path: Path, recording: Path, what: str, make: Callable[[Path], None]
) -> None:
    """The program that was recorded can put them there: a pipe was waited for without end."""
    make(recording / what if what == "index.json" else call_of(recording))
    assert not is_found(tmp_path)


ODD_ENTRIES = [
    {"target": 7},
    {"target": "a\0b::Model"},
    {"target": "\ud800::Model"},
    {"share": "much"},
    {"setting": {"matmul_precision": ["high"]}},
    {"setting": 1},
    {"arguments": [1]},
    {"arguments": [{"shape": 7}]},
    {"module": None, "snapshot": "../one"},
]


@pytest.mark.parametrize("odd", ODD_ENTRIES, ids=str)
def test_an_entry_that_no_recorder_writes_is_passed_over(
    tmp_path: Path, recording: Path, odd: dict[str, object]
) -> None:
    """Some ended `optimize` with a traceback."""
    index = json.loads((recording / "index.json").read_text())
    good = index["ways"][0]
    for ways, found in (([{**good, **odd}, None, "x"], False), ([{**good, **odd}, good], True)):
        (recording / "index.json").write_text(json.dumps({**index, "ways": ways}))
        assert is_found(tmp_path) is found


def test_a_data_folder_may_be_named_from_here(
    tmp_path: Path, recording: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A confined child has another folder, and found no call."""
    monkeypatch.chdir(tmp_path)
    (found,) = store.recordings(Path("data"))
    assert found.folder == recording
