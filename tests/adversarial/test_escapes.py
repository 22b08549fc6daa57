"""Nothing gets out: a corpus of small programs, run as root and as an ordinary user in every way
to confine.

Each is first shown to get out with its layer switched off (escapes/cases.py says which), so that
none of them is harmless. The table of what held on a machine is benchmarks/escapes.py's."""

import os
import shutil
import sys
from collections.abc import Iterator

import cases
import pytest
import world
from confined_helpers import AS, launcher_without

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or os.uname().machine != "x86_64",
    reason="numbers of Linux's calls on x86-64",
)
OPEN = {"fork without end"}
"""What docs/security.md says is open to root where a process tree has no bound of its own."""
WITHOUT = [(), ("namespaces",), ("landlock",)]
"""A plain machine; a default container; a kernel without Landlock. All of them must work."""
WAYS = {
    "namespaces": (),
    "bubblewrap": ("namespaces",),
    "Landlock alone": ("namespaces", "bubblewrap"),
}


@pytest.fixture(params=AS, scope="module")
def found(request: pytest.FixtureRequest) -> Iterator[world.World]:
    with world.world(request.param) as made:
        yield made


def test_there_are_enough_of_them_and_each_is_one() -> None:
    names = [case.name for case in cases.CASES]
    assert len(names) == len(set(names)) >= 220
    assert sum(case.shown for case in cases.CASES) >= 190
    assert all(case.why for case in cases.CASES if not case.shown)


@pytest.mark.parametrize("off", world.groups(), ids=" and ".join)
def test_each_gets_out_where_its_layer_is_switched_off(
    off: tuple[str, ...], found: world.World
) -> None:
    chosen = [
        case
        for case in world.groups()[off]
        if world.possible(case, found) and not (case.root and found.who == "user")
    ]
    if not chosen:
        pytest.skip("only root can do these")
    got_out, _, results = world.escaped(found, chosen, without=off)
    assert {name: said for name, said in results.items() if name not in got_out} == {}


@pytest.mark.parametrize("without", WITHOUT, ids=lambda off: " and ".join(off) or "nothing")
def test_none_gets_out_of_a_forked_child(without: tuple[str, ...], found: world.World) -> None:
    got_out, layers, _ = world.escaped(found, cases.CASES, without=without)
    assert got_out <= (OPEN if found.who == "root" and "namespaces" in without else set())
    assert {"seccomp", "no privileges"} <= set(layers)
    assert ("mounts" in layers) == ("namespaces" not in without) or found.who == "user"


@pytest.mark.parametrize("way", WAYS)
def test_none_gets_out_of_a_started_child(way: str, found: world.World) -> None:
    """By the entry: with namespaces of our own, behind bubblewrap, and where there is neither."""
    if way == "bubblewrap" and shutil.which("bwrap") is None:
        pytest.skip("bubblewrap is not installed")
    python = world.SYSTEM_PYTHON if found.uid is not None else sys.executable
    if found.uid is not None and not world.usable(python):
        pytest.skip("a user of this machine has no Python 3.11")
    off = WAYS[way]
    launcher = launcher_without(found.scratch.parent, *off, python=python) if off else ""
    got_out, layers, _ = world.escaped(
        found, cases.CASES, how="launch", without=off, launcher=launcher
    )
    assert got_out <= (OPEN if found.who == "root" and way != "namespaces" else set())
    assert {"Landlock", "seccomp", "no privileges"} <= set(layers)
    assert ("mounts" in layers) == (way != "Landlock alone")
