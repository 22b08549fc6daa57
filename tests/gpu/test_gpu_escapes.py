"""What confined code could take from a GPU: memory of other processes, device files beside it.

The cases are tests/adversarial/escapes/cases.py's, in a child that may use the GPU, with the layers
that hold on this machine. The first shows that it can be used there."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
sys.path.insert(0, str(TESTS / "adversarial" / "escapes"))

import cases  # noqa: E402
import world  # noqa: E402
from confined_helpers import AS  # noqa: E402

from kernel_lsp.confinement import visible  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not visible.gpu_devices(), reason="needs a GPU"),
]
OWN, *ATTACKS = cases.GPU_CASES
OWNER = TESTS / "adversarial" / "escapes" / "gpu_owner.py"
TAKEN = 2**30
LIMITS = {"processes": 500}


@pytest.fixture(params=AS, scope="module")
def found(request: pytest.FixtureRequest) -> Iterator[world.World]:
    with world.world(request.param) as made:
        python, drop = sys.executable, {}
        if made.uid is not None:
            python = world.SYSTEM_PYTHON
            drop = {"user": made.uid, "group": made.uid, "extra_groups": ()}
            if not world.usable(python):
                pytest.skip("a user of this machine has no Python 3.11")
        source = OWNER.read_text()
        given_back = [python, "-c", source, world.SECRET, str(TAKEN)]
        subprocess.run(given_back, check=True, stdout=subprocess.DEVNULL, **drop)
        staying = subprocess.Popen(
            [python, "-c", source, world.SECRET, str(2**26), "stay"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            **drop,
        )
        assert staying.stdin and staying.stdout
        made.names["GPU"] = {**json.loads(staying.stdout.readline()), "taken": TAKEN}
        yield made
        staying.stdin.close()
        staying.wait(20)


def asked(
    found: world.World, case: cases.Case, without: tuple[str, ...]
) -> tuple[bool, dict[str, object]]:
    """Whether it got out and what it said. A child for each case: under Landlock the driver refuses
    what a confined process has forked, whose thread it cannot name through /proc."""
    got_out, layers, results = world.escaped(found, [case], without=without, limits=LIMITS)
    result = results[case.name]
    print(os.geteuid(), found.who, layers, case.name, json.dumps(result)[:300])
    return case.name in got_out, result


@pytest.mark.parametrize(
    "without", [(), ("namespaces",), ("landlock",)], ids=lambda off: "-".join(off) or "all"
)
def test_nothing_of_another_process_is_taken_from_a_gpu(
    without: tuple[str, ...], found: world.World
) -> None:
    can_compute, result = asked(found, OWN, without)
    assert can_compute, result
    got_out = {case.name for case in ATTACKS if asked(found, case, without)[0]}
    assert got_out <= {case.name for case in ATTACKS if case.remains}


def test_shared_memory_is_opened_where_nothing_confines(found: world.World) -> None:
    (shown,) = [case for case in ATTACKS if case.shown]
    got_out, result = asked(found, shown, shown.off)
    assert got_out, result
