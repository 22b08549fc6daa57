"""What all attacks share: threads that wait for work sleep, so that judge and worker leave each
other the cores."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "escapes"))


@pytest.fixture(scope="module", autouse=True)
def sleeping_threads(request: pytest.FixtureRequest) -> Iterator[None]:
    """OpenMP's threads spin while they wait, by default. Where judge and worker, and other tests,
    want the same cores, an honest candidate took 2.6 s of CPU time so and takes 0.6 s; what is
    computed stays the same. Not where times are judged (`alone`): those are taken as users have
    them."""
    items = [item for item in request.session.items if item.path == request.path]
    with pytest.MonkeyPatch.context() as patch:
        if not any(item.get_closest_marker("alone") for item in items):
            patch.setenv("OMP_WAIT_POLICY", "passive")
        yield
