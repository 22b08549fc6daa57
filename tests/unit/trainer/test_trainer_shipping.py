"""From a trainer's checkpoint to what can be installed."""

import json
import stat
from pathlib import Path

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")
pytest.importorskip("safetensors")
import tiny_policy  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402

from kernel_lsp.errors import ConfigError  # noqa: E402
from kernel_lsp.models import HeldOut, PolicyStore, manifest  # noqa: E402
from trainer.policies import shipping  # noqa: E402

CHECK = HeldOut(
    metric="first/best", tasks=9, value=0.9, low=0.8, high=0.95, rule=0.8, device="H200"
)


def test_a_checkpoint_is_packed_sealed_and_taken(tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint"
    tiny_policy.write(checkpoint, dtype=torch.float32, **tiny_policy.TINY)
    weights = load_file(checkpoint / "model.safetensors")
    tied = weights | {"lm_head.weight": weights["model.embed_tokens.weight"].clone()}
    save_file(tied, checkpoint / "model.safetensors")
    made = shipping.pack(checkpoint, tmp_path / "out", name="tiny", version="1", held_out=CHECK)
    packed = load_file(tmp_path / "out" / "model.safetensors")
    assert packed.keys() == weights.keys()
    assert all(torch.equal(packed[name], weights[name].bfloat16()) for name in weights)
    assert made.devices == ("cuda",)
    assert all(stat.S_IMODE(file.stat().st_mode) == 0o644 for file in (tmp_path / "out").iterdir())
    store = PolicyStore(tmp_path / "data")
    store.install(tmp_path / "out")
    assert store.use("tiny") is not None
    with pytest.raises(ConfigError, match="holds a policy already"):
        shipping.pack(checkpoint, tmp_path / "out", name="tiny", version="2", held_out=CHECK)


def test_what_is_no_checkpoint_or_holds_nan_is_not_packed(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no checkpoint"):
        shipping.pack(tmp_path, tmp_path / "out", name="tiny", version="1", held_out=CHECK)
    tiny_policy.write(tmp_path / "made", **tiny_policy.TINY)
    weights = load_file(tmp_path / "made" / "model.safetensors")
    weights["model.norm.weight"][0] = float("nan")
    save_file(weights, tmp_path / "made" / "model.safetensors")
    with pytest.raises(ConfigError, match="holds NaN"):
        shipping.pack(tmp_path / "made", tmp_path / "out", name="tiny", version="1", held_out=CHECK)
    assert not (tmp_path / "out").exists()


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tiny_policy.write(tmp_path / "made", **tiny_policy.TINY)
    (tmp_path / "check.json").write_text(json.dumps({"metric": "m"}))
    pack = [str(tmp_path / "made"), str(tmp_path / "out"), "--name", "tiny", "--version", "1"]
    assert shipping.main([*pack, "--held-out", str(tmp_path / "check.json")]) == 2
    assert "no held-out check" in capsys.readouterr().err
    assert shipping.main([*pack, "--weighs", "--device", "cuda", "--device", "cpu"]) == 0
    assert "never checked" in capsys.readouterr().out
    assert manifest.read(tmp_path / "out").weighs
