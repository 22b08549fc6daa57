"""Two files in, one request out; and the refusals."""

import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kernel_lsp.commands.verify import Require, conclusion
from kernel_lsp.config import Settings
from kernel_lsp.errors import EvaluationError
from kernel_lsp.evaluator import Gate
from kernel_lsp.evaluator.sharing.device_lock import DeviceSharing, SharingRules
from kernel_lsp.evaluator.verify import program_text, request_from_files
from kernel_lsp.records import EvalStatus, Evaluation, TargetKind

REFERENCE = "class Model: ...\ndef get_inputs(): return []\n"


def test_the_convention_names_both_classes() -> None:
    request = request_from_files(REFERENCE, "class ModelNew: ...")
    assert (request.reference.entry, request.candidate_entry) == ("Model", "ModelNew")
    assert request.reference.kind is TargetKind.MODULE
    assert request_from_files(REFERENCE, "class Model: ...").candidate_entry == "Model"


def test_a_single_class_of_any_name_is_found() -> None:
    request = request_from_files(REFERENCE.replace("Model", "Block"), "class BlockNew: ...")
    assert (request.reference.entry, request.candidate_entry) == ("Block", "BlockNew")


SWISH = """\
import torch


class Swish(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * torch.sigmoid(x)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(x)
        return grad * (s + x * s * (1 - s))


def get_inputs():
    return [torch.randn(16, 32, requires_grad=True)]
"""
OTHER = SWISH.replace("s + x * s * (1 - s)", "s * (1 + x * (1 - s))")


@pytest.mark.torch
@pytest.mark.parametrize(
    "candidate, status",
    [
        (OTHER, EvalStatus.PASSED),
        ("import torch\n\n\ndef Swish(x):\n    return x * torch.sigmoid(x)\n", EvalStatus.PASSED),
        (OTHER.replace("(1 + x", "(1 - x"), EvalStatus.WRONG_RESULT),
        (OTHER.replace("return x * torch", "return 1.01 * x * torch"), EvalStatus.WRONG_RESULT),
    ],
    ids=["a pair", "derived", "wrong backward", "wrong forward"],
)
async def test_an_autograd_function_is_judged_in_both_directions(
    candidate: str, status: EvalStatus, tmp_path: Path
) -> None:
    request = request_from_files(SWISH, candidate, device="cpu", require_speed=False)
    assert request.reference.entry == "apply_Swish"
    async with Gate(device_sharing=DeviceSharing(SharingRules(data_dir=str(tmp_path)))) as gate:
        found = await gate.evaluate(request)
    assert found.status is status, found.detail


@pytest.mark.parametrize(
    "asked, has_cuda, candidate, device",
    [
        ("auto", True, "class Model: ...", "cuda"),
        ("auto", False, "class Model: ...", "cpu"),
        ("auto", False, "import triton.language as tl\nclass Model: ...", "interpreter"),
        ("cpu", True, "class Model: ...", "cpu"),
        ("cuda", True, "class Model: ...", "cuda"),
    ],
)
def test_the_device_follows_the_machine_and_the_candidate(
    asked: str, has_cuda: bool, candidate: str, device: str
) -> None:
    assert (
        request_from_files(REFERENCE, candidate, device=asked, has_cuda=has_cuda).device == device
    )


def test_a_reference_with_triton_takes_a_candidate_without_it_to_the_interpreter() -> None:
    reference = "from triton import language as tl\n" + REFERENCE
    request = request_from_files(reference, "class Model: ...")
    assert (
        request.device == "interpreter" and not request.uses_triton and request.reference_has_triton
    )
    assert request_from_files(reference, "class Model: ...", has_cuda=True).device == "cuda"


@pytest.mark.parametrize(
    "status, device, require, code",
    [
        (EvalStatus.PASSED, "interpreter", Require.CORRECT, 0),
        (EvalStatus.PASSED, "interpreter", Require.FASTER, 2),
        (EvalStatus.PASSED, "cpu", Require.FASTER, 1),
        (EvalStatus.WRONG_RESULT, "interpreter", Require.FASTER, 1),
        (EvalStatus.NOT_RUN, "cpu", Require.CORRECT, 2),
    ],
)
def test_what_the_interpreter_judged_is_no_rejection_for_its_unknown_speed(
    status: EvalStatus, device: str, require: Require, code: int
) -> None:
    found, words = conclusion(Evaluation(status=status, device=device), require, Settings())
    assert found == code and ("speed is unknown" in words) == (
        status is EvalStatus.PASSED and code == 2
    )


@pytest.mark.parametrize(
    "reference, candidate, word",
    [
        ("class Model(: ...", "class Model: ...", "the reference does not parse: line 1"),
        (REFERENCE, "def f(:", "the candidate does not parse"),
        (REFERENCE, "class Other: ...", "neither Model nor ModelNew"),
        ("class A: ...\nclass B: ...", "class A: ...", "has 2 classes"),
        ("class Model: ...", "class Model: ...", "no get_inputs()"),
        (REFERENCE, "\0", "the candidate does not parse"),
    ],
)
def test_a_refusal_names_the_cause(reference: str, candidate: str, word: str) -> None:
    with pytest.raises(EvaluationError, match="could not judge") as caught:
        request_from_files(reference, candidate)
    assert word in str(caught.value)


def test_cuda_without_a_device_is_refused() -> None:
    with pytest.raises(EvaluationError, match="no CUDA device"):
        request_from_files(REFERENCE, REFERENCE, device="cuda", has_cuda=False)


# --- files and texts that are no programs ------------------------------------------------------


@given(st.text(max_size=200) | st.binary(max_size=200).map(lambda raw: raw.decode("latin-1")))
@example("\ud800")
@example("class Model: ...\x00")
@example("class Model: ...\n" + "(" * 500)
@example("class Model: ...\nx = " + "-" * 20_000 + "1")
@example("class Model: ...\nx" + ".a" * 20_000)
def test_any_text_gives_a_request_or_a_reason(text: str) -> None:
    for reference, candidate in ((REFERENCE, text), (text, REFERENCE), (text, text)):
        try:
            request_from_files(reference, candidate)
        except EvaluationError as error:
            assert "could not judge" in error.cause and error.remedy


@given(st.binary(max_size=200))
@example(b"\xff\xfe")
@example(b"# coding: nonsense\n")
@example(b"# coding: utf-7\n+2AA-")
@example(b"\x00" * 20)
@example(b"")
def test_any_file_gives_a_text_or_a_reason(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "program.py"
        path.write_bytes(content)
        try:
            assert isinstance(program_text(path), str)
        except EvaluationError as error:
            assert str(path) in error.cause and error.remedy


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: None, "No such file"),
        (lambda path: path.mkdir(), "no regular file"),
        (lambda path: os.mkfifo(path), "no regular file"),
        (lambda path: (path.touch(), os.truncate(path, 50 * 2**20)), "50.0 MiB"),
    ],
    ids=["missing", "folder", "pipe", "huge"],
)
def test_what_is_no_file_of_source_is_refused_at_once(
    tmp_path: Path, make: Any, words: str
) -> None:
    make(tmp_path / "program.py")
    with pytest.raises(EvaluationError, match=f"could not judge.*{words}") as caught:
        program_text(tmp_path / "program.py")
    assert caught.value.remedy


def test_a_huge_text_is_refused_without_parsing_it() -> None:
    with pytest.raises(EvaluationError, match=r"candidate has 50\.0 MiB"):
        request_from_files(REFERENCE, "x" * (50 * 2**20))
