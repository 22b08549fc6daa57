"""Large values travel as files: what a candidate leaves is its own file or nothing."""

import os
from pathlib import Path
from typing import Any, cast

import pytest

torch = pytest.importorskip("torch")

from kernel_lsp.errors import WorkerLost  # noqa: E402
from kernel_lsp.evaluator import tensors  # noqa: E402
from kernel_lsp.evaluator.processes.sandbox import FETCHED, InFile, Party, Sandbox, fetch_file  # noqa: E402
from kernel_lsp.evaluator.verify import request_from_files  # noqa: E402

pytestmark = pytest.mark.torch
NAME = "0123456789abcdef.bin"


class Child:
    """Answers what it was told to, and keeps what it was asked."""

    def __init__(self, reply: dict[str, Any], blobs: list[bytes]) -> None:
        self.reply, self.blobs = reply, blobs
        self.asked: dict[str, Any] = {}

    async def ask(self, message: dict[str, Any], blobs: list[bytes], timeout_s: float) -> Any:
        self.asked = message
        return self.reply, self.blobs


def folder(tmp_path: Path, name: str) -> Path:
    made = tmp_path / name
    made.mkdir(parents=True)
    return made


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.bool, torch.complex64, torch.int8]
)
def test_values_come_back_bit_for_bit(dtype: torch.dtype, tmp_path: Path) -> None:
    value = torch.randn(3000, 2003).to(dtype).T
    out = tensors.DeferredOutbox(tmp_path)
    spec = tensors.encode([value, torch.ones(3)], out)
    assert out.blobs[0] == b"" and set(out.left) == {"0"} and "file" not in str(spec)
    big, small = tensors.decode_values(spec, [tmp_path / out.left["0"], out.blobs[1]])
    assert tensors.same_bits(big, value) and torch.equal(small, torch.ones(3))


def test_what_is_too_much_for_the_folder_goes_through_the_pipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensors, "LEFT_BYTES", 9 * 2**20)
    out = tensors.DeferredOutbox(tmp_path)
    tensors.encode([torch.zeros(5, 2**20, dtype=torch.int8)] * 2, out)
    assert set(out.left) == {"0"} and len(out.blobs[1]) == 5 * 2**20


def test_a_file_of_another_size_or_no_values_at_all_are_refused(tmp_path: Path) -> None:
    spec = {"kind": "tensor", "dtype": "float32", "shape": [4], "stride": [1], "blob": 0}
    (tmp_path / NAME).write_bytes(bytes(12))
    for blob in (tmp_path / NAME, b""):
        with pytest.raises(ValueError):
            tensors.decode_values(spec, [blob])


@pytest.mark.asyncio
async def test_what_a_worker_leaves_reaches_the_judge_and_nobody_else(tmp_path: Path) -> None:
    scratch, other = folder(tmp_path, "one/worker"), folder(tmp_path, "two/judge")
    (scratch / NAME).write_bytes(b"values")
    worker = Party(Child({"outputs": 1, "left": {"0": NAME}}, [b"", b"x"]), "worker", scratch)  # type: ignore[arg-type]
    reply, blobs = await worker.ask("run", 1.0)
    assert reply == {"outputs": 1} and os.listdir(scratch) == []
    hearing = Child({}, [])
    await Party(hearing, "judge", other).ask("compare", 1.0, blobs)  # type: ignore[arg-type]
    (name,) = hearing.asked["left"].values()
    assert set(hearing.asked["left"]) == {"0"} and (other / name).read_bytes() == b"values"
    assert not os.listdir(tmp_path / "one" / FETCHED)


@pytest.mark.parametrize(
    "left",
    [
        {"0": "../" + NAME},
        {"0": "other.txt"},
        {"7": NAME},
        {"x": NAME},
        {"0": 3},
        ["0"],
        {"0": "f" * 16 + ".bin"},
    ],
)
@pytest.mark.asyncio
async def test_other_names_are_the_end_of_the_child(left: Any, tmp_path: Path) -> None:
    scratch = folder(tmp_path, "one/worker")
    (scratch / NAME).write_bytes(b"values")
    worker = Party(Child({"left": left}, [b""]), "worker", scratch)  # type: ignore[arg-type]
    with pytest.raises(WorkerLost, match="no such files"):
        await worker.ask("run", 1.0)


@pytest.mark.parametrize("kind", ["symbolic", "hard", "pipe"])
def test_a_link_or_a_pipe_is_no_answer(kind: str, tmp_path: Path) -> None:
    scratch, secret = folder(tmp_path, "one/worker"), tmp_path / "secret"
    secret.write_bytes(b"key")
    if kind == "symbolic":
        (scratch / NAME).symlink_to(secret)
    elif kind == "hard":
        (scratch / NAME).hardlink_to(secret)
    else:
        os.mkfifo(scratch / NAME)
    with pytest.raises(ValueError):
        fetch_file(scratch, NAME)
    assert secret.read_bytes() == b"key" and not os.listdir(tmp_path / "one" / FETCHED)


def test_a_file_in_place_of_a_blob_is_empty_on_the_wire() -> None:
    assert InFile() == b"" and len(memoryview(InFile())) == 0


@pytest.mark.asyncio
async def test_a_sandbox_with_thousands_of_nested_folders_is_closed_and_gone() -> None:
    source = "class Model:\n    pass\n\ndef get_inputs():\n    return []\n"
    sandbox = Sandbox(request_from_files(source, source, device="cpu"))
    here = os.open(folder(sandbox.root, "worker"), os.O_RDONLY)
    for _ in range(4000):
        os.mkdir("d", dir_fd=here)
        here, outer = os.open("d", os.O_RDONLY, dir_fd=here), here
        os.close(outer)
    os.close(here)
    await sandbox.close()
    assert not sandbox.root.exists()


class Dies:
    """A child that ends before it is ready."""

    def __init__(self, because: str) -> None:
        self.ended_because = because

    async def ask(self, message: dict[str, Any], blobs: list[bytes], timeout_s: float) -> Any:
        raise WorkerLost("exited with 1")


@pytest.mark.asyncio
@pytest.mark.parametrize(("ended_by_us", "started"), [(False, 2), (True, 1)])
async def test_a_process_that_ends_before_it_is_ready_is_started_once_more(
    *, ended_by_us: bool, started: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = "class Model:\n    pass\n\ndef get_inputs():\n    return []\n"
    parties = [
        Party(cast("Any", Dies("it took too much memory" if ended_by_us else "")), "worker"),
        Party(cast("Any", Child({"ok": True}, [])), "worker"),
    ]
    asked = []

    async def start(self: Sandbox, name: str, key: str) -> Party:
        asked.append(name)
        return parties[len(asked) - 1]

    monkeypatch.setattr(Sandbox, "_start_candidates", start)
    async with Sandbox(request_from_files(source, source, device="cpu")) as sandbox:
        if ended_by_us:
            with pytest.raises(WorkerLost):
                await sandbox.worker()
        else:
            assert await sandbox.worker() is parties[1]
    assert asked == ["worker"] * started
