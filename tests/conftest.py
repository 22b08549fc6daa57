"""What every test shares: hypothesis looks at behavior, never at how long a busy machine took, and
what one test unloads is there again for the next."""

import os
import sys
from collections.abc import Generator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("behavior", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("behavior")
os.environ.pop("CI", None)  # what nobody has signed is refused there; tests that mean it set it


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
