"""The processes that tests of generated code ask: one starts when a file first needs it, and ends
with it."""

from collections.abc import Iterator

import pytest
from codegen_helpers import Child
from training_helpers import Child as TrainingChild


@pytest.fixture(scope="module")
def interpreter() -> Iterator[Child]:
    """Runs two programs, their kernels interpreted, and compares both with float64."""
    child = Child("run")
    yield child
    child.close()


@pytest.fixture(scope="module")
def compiler() -> Iterator[Child]:
    """Compiles kernels for sm_80 and sm_90."""
    child = Child("compile")
    yield child
    child.close()


@pytest.fixture(scope="module")
def trainer() -> Iterator[TrainingChild]:
    """As ``interpreter``, with the gradients of both programs."""
    child = TrainingChild()
    yield child
    child.close()
