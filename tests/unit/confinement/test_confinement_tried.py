"""Which layers hold is tried, by a child that attempts what they forbid; `doctor` shows the
same."""

import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from confined_helpers import in_a_container, permits_namespaces

from kernel_lsp.commands import doctor
from kernel_lsp.confinement import held, layers, visible


async def test_where_everything_is_permitted_nothing_is_left_open() -> None:
    if not permits_namespaces():
        pytest.skip("this machine permits no namespaces")
    found = await held.try_layers()
    assert found.problem is None and found.open == ()
    assert {
        "network",
        "proc",
        "mounts",
        layers.REPLACED,
        layers.SECCOMP,
        layers.PRIVILEGES,
    } <= found.layers


async def test_a_container_without_namespaces_is_told_from_a_machine_with_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held.sys, "executable", in_a_container(tmp_path))
    found = await held.try_layers()
    assert found.problem is None and layers.SECCOMP in found.layers
    assert not {layers.MOUNTS, layers.OVERLAYS, layers.REPLACED, "network"} & found.layers
    assert found.words.startswith("no namespaces")


async def test_what_cannot_be_tried_is_a_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held.sys, "executable", str(tmp_path / "none"))
    found = await held.try_layers()
    assert found.problem is not None and found.layers == frozenset()


def test_doctor_names_what_is_left_open() -> None:
    some = held.Held(layers=frozenset({"seccomp"}), words="no namespaces, seccomp")
    assert doctor._sandbox(some).ok and doctor._sandbox(some).found == "no namespaces, seccomp"
    opened = doctor._sandbox(replace(some, open=("the network can be reached",)))
    assert not opened.ok and "left open: the network can be reached" in opened.found
    assert not doctor._sandbox(held.Held(problem="nothing starts")).ok


def test_of_a_gpu_only_what_computing_needs_is_seen(tmp_path: Path) -> None:
    """nvidia-uvm-tools reads memory of other processes; what root alone reads divides a GPU."""
    names = ["nvidia0", "nvidia12", "nvidiactl", "nvidia-uvm"]
    others = [
        "nvidia-uvm-tools",
        "nvidia-modeset",
        "nvidia-nvswitch0",
        "nvidia-fs0",
        "nvidia",
        "sda",
    ]
    for name in (*names, *others):
        (tmp_path / name).touch()
    (tmp_path / "nvidia-caps").mkdir()
    for name, mode in (("nvidia-cap1", 0o400), ("nvidia-cap21", 0o444)):
        (tmp_path / "nvidia-caps" / name).touch()
        (tmp_path / "nvidia-caps" / name).chmod(mode)
    seen = [os.path.relpath(path, tmp_path) for path in visible.gpu_devices(str(tmp_path))]
    assert seen == sorted([*names, "nvidia-caps/nvidia-cap21"])


@pytest.mark.skipif(sys.platform != "linux", reason="nothing is tried elsewhere")
async def test_it_is_tried_below_a_folder_with_a_long_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A socket's name has at most 107 bytes; nobody was asked for consent, and doctor crashed."""
    long = tmp_path / ("x" * 120)
    long.mkdir()
    monkeypatch.setenv("TMPDIR", str(long))
    monkeypatch.setattr("tempfile.tempdir", None)
    found = await held.try_layers()
    assert found.problem is None and found.layers
