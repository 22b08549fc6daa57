"""What every test shares: hypothesis looks at behavior, never at how long a busy machine took, what
one test unloads is there again for the next, and ``--quick`` leaves out what takes long."""

import gc
import os
import sys
from collections.abc import Generator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from slow_tests import SLOW

# The same examples in every run, until a test changes: a run says what a change did, and not what
# luck found. Whoever looks for more (KERNEL_LSP_EXAMPLES=10) draws others each time.
settings.register_profile(
    "behavior",
    deadline=None,
    derandomize="KERNEL_LSP_EXAMPLES" not in os.environ,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("behavior")
gc.set_threshold(10_000, 10, 10)  # looking for garbage took 6 % of a worker's time, now 3
if os.environ.pop("CI", None):  # what nobody has signed is refused there; who means it sets it
    os.environ["TESTS_IN_CI"] = "yes"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--quick", action="store_true", help="without those that tests/slow.txt names")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("quick"):
        return
    slow = frozenset(SLOW.read_text().splitlines())
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid in slow])
    items[:] = [item for item in items if item.nodeid not in slow]


def pytest_collection_finish() -> None:
    """Leaves modules and tests to no search for garbage: 2 % of the time of kernels' tests."""
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol() -> Generator[None, Any, Any]:
    """Some tests open programs in this process, which unloads what is not installed: the trainer
    and the tests' own modules too, whose dataclasses look their annotations up there."""
    before = dict(sys.modules)
    try:
        return (yield)
    finally:
        for name in before.keys() - sys.modules.keys():
            sys.modules[name] = before[name]
