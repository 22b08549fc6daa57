"""What an interpreter said is believed only as long as nothing has changed that it said it of."""

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kernel_lsp import interpreter
from kernel_lsp.interpreter import answers


class World:
    """An environment whose interpreter counts how often it is asked, and another process each
    time."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root, self.data, self.packages = root, root / "data", root / "env/lib/site-packages"
        self.monkeypatch = monkeypatch
        self.calls = 0
        ask = interpreter._ask_interpreter

        async def count(python: str, data_dir: Path | None, neutral: Path) -> interpreter.Probe:
            # Not by the interpreter itself: it is confined and writes nothing here.
            self.calls += 1
            return await ask(python, data_dir, neutral)

        monkeypatch.setattr(interpreter, "_ask_interpreter", count)
        self.python = root / "env/bin/python"
        self.driver, self.devices = root / "proc/driver/nvidia", root / "dev"
        for folder in (self.python.parent, self.packages / "torch", self.devices, root / "cwd"):
            folder.mkdir(parents=True)
        (self.packages / "torch/__init__.py").write_text("")
        (self.packages / "own.pth").write_text("/somewhere")
        (root / "env/pyvenv.cfg").write_text("home = /usr/bin")
        (root / "boot_id").write_text("first")
        monkeypatch.setattr(answers, "DRIVER", self.driver)
        monkeypatch.setattr(answers, "BOOT", root / "boot_id")
        monkeypatch.setattr(answers, "DEVICES", self.devices)
        monkeypatch.chdir(root / "cwd")
        self.says()

    def says(self, **more: object) -> None:
        facts = {
            "version": "3.12.1", "torch": "2.9", "cuda": False, **more,
            "places": ["", str(self.packages)], "files": [str(self.packages / "torch/__init__.py")],
        }  # fmt: skip
        text = f"#!/bin/sh\nprintf '%s' \"$4\"\necho '{json.dumps(facts)}'\n"
        if not self.python.exists() or self.python.read_text() != text:
            self.python.write_text(text)
            self.python.chmod(0o755)

    def with_gpu(self) -> None:
        (self.driver / "gpus/0000:01:00.0").mkdir(parents=True)
        (self.driver / "version").write_text("580.1")
        (self.devices / "nvidia0").touch()
        self.says(cuda=True, device="H200", capability="sm_90")

    def dated(self, seconds: float) -> None:
        """What is kept is so much younger."""
        for file in (self.data / "probes").iterdir():
            os.utime(file, (0, time.time() + seconds))

    async def asked(self) -> int:
        """How often the interpreter was run for one more question of a new process."""
        self.monkeypatch.setattr(interpreter, "_probes", {})
        before = self.calls
        probe = await interpreter.probe(str(self.python), self.data)
        assert probe.torch == "2.9" and probe.python == str(self.python)
        return self.calls - before


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return World(tmp_path, monkeypatch)


async def test_another_process_does_not_ask_again(world: World) -> None:
    assert await world.asked() == 1
    assert await world.asked() == 0


async def test_a_gpu_is_remembered_with_its_name(world: World) -> None:
    world.with_gpu()
    assert await world.asked() == 1
    assert await world.asked() == 0
    world.monkeypatch.setattr(interpreter, "_probes", {})
    assert (await interpreter.probe(str(world.python), world.data)).device == "H200"


CHANGES: dict[str, Callable[[World], object]] = {
    "torch itself": lambda w: (w.packages / "torch/__init__.py").write_text("new"),
    "a package was installed": lambda w: (w.packages / "triton").mkdir(),
    "a .pth file was edited": lambda w: (w.packages / "own.pth").write_text("/somewhere/else"),
    "the interpreter": lambda w: w.says(triton="3.5"),
    "the virtual environment": lambda w: (w.root / "env/pyvenv.cfg").write_text("home = /opt/bin"),
    "a variable of CUDA": lambda w: w.monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1"),
    "where modules come from": lambda w: w.monkeypatch.setenv("PYTHONPATH", "/elsewhere"),
    "what the loader finds": lambda w: w.monkeypatch.setenv("LD_LIBRARY_PATH", "/elsewhere"),
    "a GPU was put in": lambda w: (w.devices / "nvidia0").touch(),
    "a start of the machine": lambda w: (w.root / "boot_id").write_text("second"),
    "a day": lambda w: w.dated(-90_000),
    "a clock that was set back": lambda w: w.dated(90_000),
    "a torn file": lambda w: [f.write_text("{") for f in (w.data / "probes").glob("*")],
    "a file of another kind": lambda w: [f.write_text("[]") for f in (w.data / "probes").glob("*")],
}


@pytest.mark.parametrize("change", CHANGES)
async def test_what_has_changed_is_asked_again(change: str, world: World) -> None:
    assert await world.asked() == 1
    CHANGES[change](world)
    assert await world.asked() == 1


OF_A_GPU: dict[str, Callable[[World], object]] = {
    "its driver": lambda w: (w.driver / "version").write_text("590.2"),
    "another GPU": lambda w: (w.driver / "gpus/0000:02:00.0").mkdir(),
    "its partitions": lambda w: (w.driver / "capabilities/gpu0/mig/gi1").mkdir(parents=True),
    "its device file": lambda w: (w.devices / "nvidia0").unlink(),
    "the driver is gone": lambda w: (w.driver / "version").unlink(),
}


@pytest.mark.parametrize("change", OF_A_GPU)
async def test_what_has_changed_about_a_gpu_is_asked_again(change: str, world: World) -> None:
    world.with_gpu()
    assert await world.asked() == 1
    OF_A_GPU[change](world)
    assert await world.asked() == 1


async def test_a_torch_that_sees_no_gpu_where_one_is_may_see_it_soon(world: World) -> None:
    world.with_gpu()
    world.says(cuda=False)
    assert [await world.asked(), await world.asked()] == [1, 1]


async def test_a_gpu_without_a_driver_that_can_be_read_is_asked_about(world: World) -> None:
    world.says(cuda=True, device="AMD")
    (world.devices / "kfd").touch()
    assert [await world.asked(), await world.asked()] == [1, 1]


async def test_without_a_torch_or_a_start_of_the_machine_nothing_is_kept(world: World) -> None:
    answers.keep(world.data, str(world.python), {"version": "3.12.1"}, [str(world.packages)], [])
    assert not (world.data / "probes").exists()
    (world.root / "boot_id").unlink()
    assert [await world.asked(), await world.asked()] == [1, 1]


async def test_who_keeps_nothing_asks(world: World) -> None:
    """`doctor` does."""
    await world.asked()
    world.monkeypatch.setattr(interpreter, "_probes", {})
    await interpreter.probe(str(world.python))
    assert world.calls == 2


async def test_a_folder_that_cannot_be_written_only_means_asking(world: World) -> None:
    world.data.write_text("in the way")
    assert [await world.asked(), await world.asked()] == [1, 1]


@pytest.mark.torch
@pytest.mark.skipif(
    any(Path("/dev").glob("nvidia*")), reason="the devices of the test are not the machine's"
)
async def test_our_own_interpreter_says_the_same_twice(world: World) -> None:
    found = []
    for _ in range(2):
        world.monkeypatch.setattr(interpreter, "_probes", {})
        found.append(await interpreter.probe(sys.executable, world.data))
    assert found[0] == found[1] and found[0].torch
    assert len(list((world.data / "probes").iterdir())) == 1
