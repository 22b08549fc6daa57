"""What won before: kept by kind of site, read back only where it fits, never in the way."""

import json
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from kernel_lsp.interpreter import Probe
from kernel_lsp.pipeline import known
from kernel_lsp.pipeline.known import KnownWinners
from kernel_lsp.records import Site

PROBE = Probe(python="python", torch="2.11", triton="3.6.0", capability="sm_90")
SITE = Site(
    skill="fused-matmul",
    site="linear+relu",
    summary="",
    proofs=(),
    parameters={"tile": [64, 128], "warps": [4, 8]},
    kind="abc",
)


def test_what_is_kept_is_found_by_another_process_of_the_same_machine(tmp_path: Path) -> None:
    KnownWinners(tmp_path, PROBE, "cuda").keep(SITE, {"tile": 128, "warps": 8})
    assert KnownWinners(tmp_path, PROBE, "cuda").best(SITE) == {"tile": 128, "warps": 8}
    assert known.count(tmp_path) == 1


@pytest.mark.parametrize(
    ("probe", "device"),
    [
        (replace(PROBE, triton="3.9.0"), "cuda"),
        (replace(PROBE, torch="2.13"), "cuda"),
        (replace(PROBE, capability="sm_80"), "cuda"),
        (PROBE, "cpu"),
    ],
)
def test_another_machine_or_version_knows_nothing(
    tmp_path: Path, probe: Probe, device: str
) -> None:
    KnownWinners(tmp_path, PROBE, "cuda").keep(SITE, {"tile": 128, "warps": 8})
    assert KnownWinners(tmp_path, probe, device).best(SITE) is None


def test_another_kind_of_site_knows_nothing_and_no_kind_keeps_nothing(tmp_path: Path) -> None:
    store = KnownWinners(tmp_path, PROBE, "cuda")
    store.keep(SITE, {"tile": 128, "warps": 8})
    assert store.best(replace(SITE, kind="other")) is None
    store.keep(replace(SITE, kind=""), {"tile": 64, "warps": 4})
    assert store.best(replace(SITE, kind="")) is None and known.count(tmp_path) == 1


@pytest.mark.parametrize(
    "parameters",
    [{"tile": 256, "warps": 8}, {"tile": 128}, {"tile": 128, "warps": 8, "more": 1}, {}],
)
def test_what_is_no_choice_of_the_site_is_not_used(
    tmp_path: Path, parameters: dict[str, int]
) -> None:
    store = KnownWinners(tmp_path, PROBE, "cuda")
    store.keep(SITE, parameters)
    assert store.best(SITE) is None and not store.notes


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", '{"parameters": 3, "schema": 1}', '{"schema": 1}', "\x00"]
)
def test_a_corrupt_file_is_ignored_with_a_note_and_mended_by_the_next_result(
    tmp_path: Path, text: str
) -> None:
    store = KnownWinners(tmp_path, PROBE, "cuda")
    store.keep(SITE, {"tile": 64, "warps": 4})
    (file,) = store.folder.iterdir()
    file.write_text(text)
    assert store.best(SITE) is None
    assert len(store.notes) == 1 and str(file) in store.notes[0]
    store.keep(SITE, {"tile": 128, "warps": 4})
    assert store.best(SITE) == {"tile": 128, "warps": 4}


def test_another_schema_is_unknown(tmp_path: Path) -> None:
    store = KnownWinners(tmp_path, PROBE, "cuda")
    store.keep(SITE, {"tile": 64, "warps": 4})
    (file,) = store.folder.iterdir()
    file.write_text(json.dumps({**json.loads(file.read_text()), "schema": known.SCHEMA + 1}))
    assert store.best(SITE) is None


def test_many_writers_leave_one_whole_file(tmp_path: Path) -> None:
    choices = [{"tile": tile, "warps": warps} for tile in (64, 128) for warps in (4, 8)]

    def write(number: int) -> None:
        store = KnownWinners(tmp_path, PROBE, "cuda")
        store.keep(SITE, choices[number % 4])
        assert store.best(SITE) in choices and not store.notes

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(write, range(64)))
    assert [file.suffix for file in (tmp_path / known.FOLDER).iterdir()] == [".json"]


def test_the_longest_unused_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known, "MAX_FILES", 3)
    store = KnownWinners(tmp_path, PROBE, "cuda")
    for number in range(3):
        store.keep(replace(SITE, kind=str(number)), {"tile": 64, "warps": 4})
        (newest,) = (f for f in store.folder.iterdir() if f.stat().st_mtime > 1000)
        os.utime(newest, (number, number))
    assert store.best(replace(SITE, kind="0")) is not None  # used: now it is the youngest
    store.keep(replace(SITE, kind="3"), {"tile": 64, "warps": 4})
    kept = [n for n in range(4) if store.best(replace(SITE, kind=str(n)))]
    assert kept == [0, 2, 3]


def test_a_folder_that_cannot_be_written_costs_nothing(tmp_path: Path) -> None:
    (tmp_path / known.FOLDER).write_text("a file where the folder should be")
    store = KnownWinners(tmp_path, PROBE, "cuda")
    store.keep(SITE, {"tile": 64, "warps": 4})
    assert store.best(SITE) is None and known.count(tmp_path) == 0
