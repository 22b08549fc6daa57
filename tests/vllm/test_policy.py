"""The shipped policy's checkpoint served by vLLM: the same greedy answers as our own runtime's."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest
import talks
import tiny_policy

from kernel_lsp.agents.backbones.small.runtime import ModelReply, Runtime
from kernel_lsp.agents.prompt_encoding import Dialog

pytestmark = [pytest.mark.vllm, pytest.mark.torch, pytest.mark.timeout(900)]

QUESTIONS = 40
SIZES = {**tiny_policy.TINY, "heads": 2, "key_heads": 1, "head": 64}
"""vLLM has kernels for heads of 32 and more on the CPU; 64 is the shipped one's."""
SERVE = """
import json, sys
from vllm import LLM, SamplingParams
from vllm.sampling_params import StructuredOutputsParams

folder, asked, answered = sys.argv[1:]
questions = json.load(open(asked))
model = LLM(
    folder, dtype="float32", max_model_len=4096, enforce_eager=True, max_num_seqs=8,
    structured_outputs_config={"backend": "xgrammar"},
)
held = [StructuredOutputsParams(grammar=one["grammar"]) for one in questions]
parameters = [SamplingParams(temperature=0.0, max_tokens=256, structured_outputs=one) for one in held]
outputs = model.generate([one["text"] for one in questions], parameters)
told = [
    {"text": o.outputs[0].text, "tokens": list(o.prompt_token_ids), "reason": o.outputs[0].finish_reason}
    for o in outputs
]
json.dump(told, open(answered, "w"))
"""


def test_vllm_says_what_our_runtime_says(vllm_environment: Path, tmp_path: Path) -> None:
    import torch

    folder = tmp_path / "policy"
    tiny_policy.write(folder, dtype=torch.float32, **SIZES)
    spoken = [talks.spoken(seed, replies=seed % 7) for seed in range(QUESTIONS)]
    questions = [{"text": talk.text, "grammar": talks.ebnf(talk.offer)} for talk in spoken]
    (tmp_path / "asked.json").write_text(json.dumps(questions))
    files = [folder, tmp_path / "asked.json", tmp_path / "answered.json"]
    environment = {
        "PATH": f"{vllm_environment}:/usr/bin:/bin",
        "HOME": str(tmp_path),
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "TORCH_COMPILE_DISABLE": "1",
    }
    command = [vllm_environment / "python", "-c", SERVE, *files]
    done = subprocess.run(command, env=environment, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    theirs = json.loads((tmp_path / "answered.json").read_text())

    mine = asyncio.run(replies(folder, spoken))
    assert [one["tokens"] for one in theirs] == [talk.tokens for talk in spoken]
    assert {one["reason"] for one in theirs} == {"stop"}
    assert [one["text"] for one in theirs] == [
        "".join(f"{word} " for word in said.words) for said in mine
    ]
    # or the same answer everywhere would pass
    assert len({said.words for said in mine}) > QUESTIONS / 4


async def replies(folder: Path, spoken: list[Dialog]) -> list[ModelReply]:
    runtime = Runtime(folder, sys.executable, reply_s=60.0)
    try:
        return [await runtime.reply(talk) for talk in spoken]
    finally:
        await runtime.close()
