"""The processes that tests of generated code ask."""

import pytest
from codegen_helpers import Child, child


@pytest.fixture(scope="session")
def interpreter() -> Child:
    """Runs two programs, their kernels interpreted, and compares both with float64."""
    return child("run")


@pytest.fixture(scope="session")
def compiler() -> Child:
    """Compiles kernels for sm_80 and sm_90."""
    return child("compile")


@pytest.fixture(scope="session")
def trainer() -> Child:
    """As ``interpreter``, with the gradients of both programs."""
    return child("train")
