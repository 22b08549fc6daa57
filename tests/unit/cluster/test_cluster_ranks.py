"""What a process of a run on several nodes finds around it."""

from dataclasses import replace

from kernel_lsp.cluster import ranks
from kernel_lsp.cluster.connection import reserved_gpus
from trainer.rollouts.serving import apart_from_ranks

ORDER = ranks.RankOrder(
    argv=("-m", "trainer.rl"),
    folder="/",
    path="..",
    logs="/logs",
    first=4,
    ranks=2,
    world=6,
    master=("10.0.0.1", 29500),
    environment={"KERNEL_LSP_TRAIN_TICKET": "t"},
)


def test_each_process_sees_its_gpu_and_the_rest_is_for_what_the_first_one_starts() -> None:
    around = {"RAY_RAYLET_PID": "3", "HOME": "/home", "CUDA_VISIBLE_DEVICES": "2,3,5,7"}
    found = ranks.environment(ORDER, 1, ["2", "3", "5", "7"], around)
    assert found["CUDA_VISIBLE_DEVICES"] == "3" and found["KERNEL_LSP_VLLM_GPUS"] == "5,7"
    assert (found["RANK"], found["LOCAL_RANK"], found["WORLD_SIZE"]) == ("5", "0", "6")
    assert found["MASTER_ADDR"] == "10.0.0.1" and "RAY_RAYLET_PID" not in found
    alone = ranks.environment(replace(ORDER, world=1, first=0, ranks=1), 0, [], around)
    assert "RANK" not in alone and alone["KERNEL_LSP_TRAIN_TICKET"] == "t"
    served = apart_from_ranks(found, 2)
    assert served["CUDA_VISIBLE_DEVICES"] == "5,7" and "RANK" not in served


def test_vllm_has_other_gpus_than_the_processes_of_one_machine() -> None:
    by_torchrun = {"LOCAL_WORLD_SIZE": "4", "RANK": "0", "TORCHELASTIC_RUN_ID": "x"}
    assert apart_from_ranks(by_torchrun, 2) == {"CUDA_VISIBLE_DEVICES": "4,5"}
    some = by_torchrun | {"CUDA_VISIBLE_DEVICES": "1,2,3,4,5,6"}
    assert apart_from_ranks(some, 2) == {"CUDA_VISIBLE_DEVICES": "5,6"}
    assert apart_from_ranks({"HOME": "/h"}, 1) == {"HOME": "/h"}


def test_gpus_that_a_placement_group_has_are_not_free() -> None:
    bundles = {0: {"GPU": 6.0, "CPU": 1.0}, 1: {"CPU": 1.0}}
    made = {"state": "CREATED", "bundles": bundles, "bundles_to_node_id": {0: "a", 1: "b"}}
    gone = {**made, "state": "REMOVED"}
    assert reserved_gpus([made, gone, made]) == {"a": 12, "b": 0}
