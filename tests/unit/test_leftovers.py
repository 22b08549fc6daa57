"""What confined code leaves in a folder leads nobody anywhere, and goes however deep it is."""

import os
from pathlib import Path

import pytest

from kernel_lsp import leftovers
from kernel_lsp.evaluator.processes.compiled import CompiledKernels
from kernel_lsp.leftovers import TooMuch, bytes_below, files, open_folder, remove, write

DEEP = 4000


def nested(folder: Path, depth: int = DEEP) -> None:
    """Folders in folders, as a candidate makes them: no path is that long."""
    here = os.open(folder, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("d", dir_fd=here)
        inner = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=here))
    os.close(here)


def content(folder: Path, top: str = "triton", most: int = 1000) -> dict[tuple[str, ...], bytes]:
    with open_folder(folder) as descriptor:
        return {left.names: left.content for left in files(descriptor, top, most_bytes=most)}


@pytest.mark.parametrize("planted", ["triton", "triton/HASH"])
def test_laying_kernels_out_writes_through_no_link(planted: str, tmp_path: Path) -> None:
    one, two, home = tmp_path / "one", tmp_path / "two", tmp_path / "home"
    for folder in (one / "triton" / "HASH", two, home):
        folder.mkdir(parents=True)
    (one / "triton/HASH/authorized_keys").write_text("ssh-ed25519 attacker")
    (one / "triton/authorized_keys").write_text("ssh-ed25519 attacker")
    (two / planted).parent.mkdir(exist_ok=True)
    (two / planted).symlink_to(home)
    store = CompiledKernels(tmp_path / "store")
    store.take_in("key", one)
    assert store.holds("key")
    store.lay_out("key", two)
    assert os.listdir(home) == []


def test_a_file_is_not_written_over_nor_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "folder" / "kept").write_text("old")
    with open_folder(tmp_path) as folder:
        assert not write(folder, ("folder", "link"), b"x", 0o644)
        assert not write(folder, ("folder", "kept"), b"x", 0o644)
        assert write(folder, ("folder", "deep", "new"), b"x", 0o755)
        for bad in (("..", "x"), ("a/b", "x"), ("", "x")):
            with pytest.raises(OSError):
                write(folder, bad, b"x", 0o644)
    assert not (tmp_path / "elsewhere").exists() and (tmp_path / "folder/kept").read_text() == "old"
    assert (tmp_path / "folder/deep/new").stat().st_mode & 0o777 == 0o755


def test_only_regular_files_of_one_name_are_read(tmp_path: Path) -> None:
    folder, secret = tmp_path / "scratch", tmp_path / "secret"
    secret.write_text("secret")
    (folder / "triton" / "HASH").mkdir(parents=True)
    (folder / "triton/HASH/code").write_bytes(b"code")
    (folder / "triton/HASH/link").symlink_to(secret)
    (folder / "triton/folder").symlink_to(tmp_path)
    os.link(secret, folder / "triton/hard")
    os.mkfifo(folder / "triton/pipe")  # reading it would never end
    assert content(folder) == {("triton", "HASH", "code"): b"code"}
    (folder / "inductor").symlink_to(tmp_path)
    assert content(folder, "inductor") == {}


def test_a_scratch_folder_that_is_a_link_is_not_entered(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(OSError), open_folder(tmp_path / "link"):
        pass


def test_size_depth_and_number_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "triton").mkdir()
    (tmp_path / "triton" / "large").write_bytes(bytes(2000))
    with pytest.raises(TooMuch):
        content(tmp_path, most=1999)
    assert len(content(tmp_path, most=2000)) == 1
    with (tmp_path / "triton" / "sparse").open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(TooMuch):
        content(tmp_path, most=10_000)
    (tmp_path / "triton" / "sparse").unlink()
    nested(tmp_path / "triton", 20)
    with pytest.raises(TooMuch):
        content(tmp_path, most=10_000)
    with pytest.raises(TooMuch, match="16 deep"):
        bytes_below(tmp_path)
    monkeypatch.setattr(leftovers, "MAX_ENTRIES", 2)
    with pytest.raises(TooMuch, match="more than 2 files"):
        bytes_below(tmp_path)


def test_thousands_of_nested_folders_are_removed(tmp_path: Path) -> None:
    nested(tmp_path)
    assert remove(tmp_path) and not tmp_path.exists()


def test_what_its_owner_may_not_enter_is_removed_too(tmp_path: Path) -> None:
    folder = tmp_path / "scratch"
    (folder / "closed" / "inner").mkdir(parents=True)
    (folder / "closed" / "inner" / "file").write_text("x")
    (folder / "closed" / "inner").chmod(0)
    (folder / "closed").chmod(0)
    folder.chmod(0o500)
    assert remove(folder) and os.listdir(tmp_path) == []


def test_removing_touches_nothing_that_links_lead_to(tmp_path: Path) -> None:
    kept, folder = tmp_path / "kept", tmp_path / "scratch"
    for made in (kept, folder / "inner"):
        made.mkdir(parents=True)
    (kept / "file").write_text("x")
    (folder / "link").symlink_to(kept)
    (folder / "inner" / "link").symlink_to(kept)
    assert remove(folder) and (kept / "file").read_text() == "x"
    folder.symlink_to(kept)
    assert remove(folder) and (kept / "file").read_text() == "x"
    assert remove(folder), "there is nothing, so nothing is left"
