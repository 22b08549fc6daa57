"""How benchmarks end: what a record says of when and where it was made, and that it is kept whole."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import reporting


def test_a_record_says_when_and_where_it_was_made() -> None:
    found = reporting.circumstances()
    assert {"date", "machine", "cores", "python", "load"} == found.keys()
    assert "device" in reporting.circumstances("cpu")
    assert reporting.device_name("cpu") == "cpu"


def test_packages_that_are_not_there_are_left_out() -> None:
    assert reporting.versions("pytest", "no-such-package").keys() == {"pytest"}


def test_a_record_replaces_the_one_before(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "record.json"
    reporting.write_record(out, {"rows": [1]})
    reporting.print_record(out, {"rows": ["\u00d7"]})
    assert (
        json.loads(out.read_text()) == json.loads(capsys.readouterr().out) == {"rows": ["\u00d7"]}
    )
    assert [one.name for one in tmp_path.iterdir()] == ["record.json"]
    reporting.write_record(None, {})


def test_a_benchmark_without_torch_stays_one() -> None:
    code = "import sys; from benchmarks import reporting; reporting.circumstances('cuda')"
    subprocess.run([sys.executable, "-c", f"{code}; assert 'torch' not in sys.modules"], check=True)
