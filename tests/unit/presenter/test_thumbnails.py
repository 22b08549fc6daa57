"""Pictures in hovers: what they show, to whom, and that they hold nothing but themselves."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
import pytest_lsp
from lsprotocol import types

from kernel_lsp.positions import LineIndex
from kernel_lsp.presenter import lsp, thumbnails
from kernel_lsp.records import (
    Candidate,
    EvalStatus,
    Evaluation,
    KernelTime,
    Profile,
    Proposal,
    Span,
    Timing,
    Verdict,
    Workload,
    WorkloadOrigin,
)
from kernel_lsp.server import abilities
from kernel_lsp.server.protocol import strict_converter

SVG = "{http://www.w3.org/2000/svg}"


def timing(provider: str, ms: float) -> Timing:
    return Timing(
        provider=provider, median_ms=ms, p20_ms=ms, p80_ms=ms, num_reps=10, cold_cache=True
    )


def profile(provider: str, *kernels: tuple[str, float]) -> Profile:
    rows = tuple(KernelTime(name=name, count=1.0, us=us, own=False) for name, us in kernels)
    return Profile(
        provider=provider, kernels=rows, us=sum(row.us for row in rows), busy_us=None, gaps_us=None
    )


def proposal(*timings: Timing, profiles: tuple[Profile, ...] = ()) -> Proposal:
    found = Evaluation(status=EvalStatus.PASSED, device="cuda", timings=timings, profiles=profiles)
    return Proposal(
        id="p",
        fingerprint="f",
        fingerprint_after="g",
        qualname="Model",
        workload=Workload(name="w", origin=WorkloadOrigin.GET_INPUTS),
        candidate=Candidate(id="c", edit=None, program="", entry="Model"),
        evaluation=found,
        verdict=Verdict.FASTER,
        created="2026-11-26T00:00:00.000+00:00",
    )


TIMED = timing("eager", 2.0), timing("compile", 1.5), timing("candidate", 0.5)
PROFILES = (
    profile("eager", ("mul<float>&", 1500.0), ("add", 500.0)),
    profile("candidate", ("fused", 500.0)),
)


def test_bars_are_as_long_as_times_and_parts_fill_them() -> None:
    drawn = thumbnails.svg(proposal(*TIMED, profiles=PROFILES))
    assert drawn is not None
    bars = [
        (one[0].text, float(one.attrib["width"]))
        for one in ElementTree.fromstring(drawn).iter(f"{SVG}rect")
        if len(one)
    ]
    assert bars == [
        ("2 ms", 250.0), ("mul<float>& 75%", 187.5), ("add 25%", 62.5), ("1.5 ms", 187.5),
        ("500 µs", 62.5), ("fused 100%", 62.5),
    ]  # fmt: skip
    words = [one.text for one in ElementTree.fromstring(drawn).iter(f"{SVG}text")]
    assert words == ["now", "2 ms", "torch.compile", "1.5 ms", "rewrite", "500 µs",
                     "mul<float>&", "add", "fused"]  # fmt: skip


def test_what_was_not_timed_has_no_picture() -> None:
    assert thumbnails.markdown(proposal()) is None
    assert thumbnails.markdown(proposal(timing("candidate", 1.0))) is None
    assert thumbnails.svg(proposal(*TIMED, profiles=(profile("eager"),))) is not None


def test_a_picture_is_whole_in_its_text_and_small() -> None:
    many = profile("eager", *((f"kernel {n} " + "x" * 500, 1.0) for n in range(20)))
    image = thumbnails.markdown(proposal(*TIMED, profiles=(many,)))
    found = re.fullmatch(r"!\[[^]]*\]\(data:image/svg\+xml;base64,([A-Za-z0-9+/=]+)\)", image or "")
    assert found is not None and len(found[1]) < 6_000
    assert base64.b64decode(found[1]).startswith(b"<svg")


def test_a_text_of_others_makes_no_picture() -> None:
    positions, span = LineIndex("x", "utf-16"), Span(start=0, end=1)
    theirs, ours = "![a](https://evil.example)", "![b](data:image/svg+xml;base64,AA==)"
    shown = lsp.hover(theirs, span, positions, plain=False, picture=ours).contents
    assert isinstance(shown, types.MarkupContent)
    assert shown.value.count("](") == 1 and shown.value.endswith(ours)


@pytest.mark.parametrize("client", ["visual_studio_code_v1.65.2", "emacs_v29.1", "neovim_v0.11.0"])
def test_only_editors_that_show_them_get_pictures(client: str) -> None:
    captured = json.loads(
        (Path(pytest_lsp.__file__).parent / "clients" / f"{client}.json").read_text()
    )
    given = {"processId": None, "rootUri": None, "capabilities": captured["capabilities"]}
    given["clientInfo"] = captured["clientInfo"]
    params = strict_converter().structure(given, types.InitializeParams)
    assert abilities.of(params).pictures is client.startswith("visual")
