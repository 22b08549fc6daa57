"""Outputs must be where the reference's are, and there when the next operator reads them."""

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from kernel_lsp.evaluator.callees import Callee  # noqa: E402
from kernel_lsp.evaluator.judging import matching  # noqa: E402
from kernel_lsp.evaluator.running.worker import Worker  # noqa: E402
from kernel_lsp.evaluator.tensors import TensorOutbox, encode  # noqa: E402

pytestmark = pytest.mark.torch


def trial() -> tuple[dict, list[bytes]]:
    """A message to run a function on four numbers, with its bytes."""
    out = TensorOutbox()
    arguments = encode([[torch.arange(4.0)], {}], out)
    fields = {"changed": [], "noise_seed": 1, "grad": False, "aliases": False}
    options = {"fresh": True, "switch": False, "update": "load_state_dict"}
    return {"state": encode({}, out), "arguments": arguments, **fields, **options}, out.blobs


def noticed(read_by_next) -> set[str]:
    """Names of what a worker notices when the device says this of unfinished outputs."""
    worker = Worker("cpu")  # loads nothing here: that would change this process for good
    worker.callee = Callee(lambda x: 2 * x)
    worker.device.read_by_next = read_by_next
    reply = worker.run(*trial(), TensorOutbox())
    return {note["name"] for note in reply["notes"]}


def test_an_output_that_is_written_after_the_next_operator_reads_it_is_noticed():
    late = noticed(lambda tensors: [(tensor, torch.zeros_like(tensor)) for tensor in tensors])
    in_time = noticed(lambda tensors: [(tensor, tensor.clone()) for tensor in tensors])
    assert late - in_time == {"output-in-order"}


def test_not_a_number_read_in_time_is_no_late_output():
    def read(tensors):
        return [(torch.tensor([float("nan")]), torch.tensor([float("nan")])) for _ in tensors]

    assert "output-in-order" not in noticed(read)


def test_an_output_on_another_device_than_the_references_is_another_output():
    output = torch.ones(3)
    ran = SimpleNamespace(output=output, strides=[output.stride()], carries_grad=[False])
    told = encode(output, TensorOutbox())
    assert matching.match_metadata(told, ran, as_given=True) == ""
    with pytest.raises(matching.Mismatch, match="output 0 is on cuda, the reference's on cpu"):
        matching.match_metadata({**told, "device": "cuda"}, ran, as_given=True)
