"""Which layers hold is tried, by a child that attempts what they forbid; `doctor` shows the same."""

from dataclasses import replace
from pathlib import Path

import pytest
from confined_helpers import in_a_container

from kernel_lsp.commands import doctor
from kernel_lsp.confinement import layers


async def test_where_everything_is_permitted_nothing_is_left_open() -> None:
    held = await layers.tried()
    if "mounts" not in held.layers:
        pytest.skip("this machine permits no mounts")
    assert held.problem is None and held.left_open == ()
    assert {"network", "proc", layers.REPLACED, layers.SECCOMP, layers.PRIVILEGES} <= held.layers


async def test_a_container_without_namespaces_is_told_from_a_machine_with_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layers.sys, "executable", in_a_container(tmp_path))
    held = await layers.tried()
    assert held.problem is None and layers.SECCOMP in held.layers
    assert not {layers.MOUNTS, layers.OVERLAYS, layers.REPLACED, "network"} & held.layers
    assert held.words.startswith("no namespaces")


async def test_what_cannot_be_tried_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layers.sys, "executable", str(tmp_path / "none"))
    held = await layers.tried()
    assert held.problem is not None and held.layers == frozenset()


def test_doctor_names_what_is_left_open() -> None:
    held = layers.Held(layers=frozenset({"seccomp"}), words="no namespaces, seccomp")
    assert doctor._sandbox(held).ok and doctor._sandbox(held).found == "no namespaces, seccomp"
    opened = doctor._sandbox(replace(held, left_open=("the network can be reached",)))
    assert not opened.ok and "left open: the network can be reached" in opened.found
    assert not doctor._sandbox(layers.Held(problem="nothing starts")).ok
