"""The random model itself: the same every time, and a Qwen3 to `transformers` too."""

import shutil
import subprocess
from pathlib import Path

import pytest

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]

ROOT = Path(__file__).resolve().parents[2]
LOAD = """
import sys
from transformers import AutoModelForCausalLM, AutoTokenizer
folder = sys.argv[1]
model, found = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
assert not any(found.values()), found
tokenizer = AutoTokenizer.from_pretrained(folder)
assert len(tokenizer) == model.config.vocab_size == 4096
prompt = tokenizer.apply_chat_template(
    [{"role": "user", "content": "hello"}], add_generation_prompt=True, return_tensors="pt", return_dict=True
)
written = model.generate(**prompt, max_new_tokens=5, min_new_tokens=5)
print(type(model).__name__, model.num_parameters(), written.shape[1] - prompt["input_ids"].shape[1])
"""


def test_the_same_seed_makes_the_same_files_and_another_does_not(
    vllm_environment: Path, tmp_path: Path
) -> None:
    # A copy, since the tokenizer is trained on sources that somebody may be editing.
    shutil.copytree(
        ROOT / "kernel_lsp", tmp_path / "kernel_lsp", ignore=shutil.ignore_patterns("__pycache__")
    )
    maker = (
        shutil.copytree(ROOT / "tests" / "models", tmp_path / "tests" / "models") / "tiny_qwen3.py"
    )
    for name, seed in (("first", "0"), ("again", "0"), ("other", "1")):
        subprocess.run(
            [vllm_environment / "python", maker, tmp_path / name, "--seed", seed], check=True
        )

    made = contents(tmp_path / "first")
    assert len(made) == 6
    assert contents(tmp_path / "again") == made
    assert contents(tmp_path / "other")["model.safetensors"] != made["model.safetensors"]


def test_transformers_loads_it_with_no_weight_missing_or_left_over(
    vllm_environment: Path, tiny_model: Path
) -> None:
    done = subprocess.run(
        [vllm_environment / "python", "-c", LOAD, tiny_model],
        check=False,
        text=True,
        capture_output=True,
    )

    assert done.stdout.split() == ["Qwen3ForCausalLM", "5245440", "5"], done.stderr


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}
