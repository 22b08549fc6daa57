"""Two files in, one request out; and the refusals."""

import pytest

from kernel_lsp.errors import EvaluationError
from kernel_lsp.evaluator.verify import request_from_files
from kernel_lsp.records import TargetKind

REFERENCE = "class Model: ...\ndef get_inputs(): return []\n"


def test_the_convention_names_both_classes() -> None:
    request = request_from_files(REFERENCE, "class ModelNew: ...")
    assert (request.reference.entry, request.candidate_entry) == ("Model", "ModelNew")
    assert request.reference.kind is TargetKind.MODULE
    assert request_from_files(REFERENCE, "class Model: ...").candidate_entry == "Model"


def test_a_single_class_of_any_name_is_found() -> None:
    request = request_from_files(REFERENCE.replace("Model", "Block"), "class BlockNew: ...")
    assert (request.reference.entry, request.candidate_entry) == ("Block", "BlockNew")


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
    assert request_from_files(REFERENCE, candidate, device=asked, has_cuda=has_cuda).device == device


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
