"""A vLLM that dies under a run: a stub with its routes that ends itself, since what is tested is
the trainer's side. A real one: tests/vllm/test_trainer_rollouts.py."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kernel_lsp.agents.backbones import vllm

pytestmark = pytest.mark.torch
STUB = """
import http.server, json, os, sys
from pathlib import Path

deaths = Path(sys.argv[1], "deaths")
port = int(sys.argv[sys.argv.index("--port") + 1])


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.answer({})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])) or "{}")
        left = int(deaths.read_text())
        if self.path == "/v1/completions" and left and body["seed"] % 4 == 3:
            deaths.write_text(str(left - 1))
            os._exit(9)
        choice = {"text": "so", "token_ids": [5, 6], "finish_reason": "stop"}
        self.answer({"choices": [{**choice, "logprobs": {"token_logprobs": [-0.5, -0.25]}}]})

    def answer(self, what):
        text = json.dumps(what).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)


http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[object]:
    from trainer.config import ModelConfig, Recipe, Rl, RolloutsConfig
    from trainer.policies import models
    from trainer.rollouts.serving import Served
    from trainer.rollouts.worlds import TableWorld
    from trainer.tasks import spaces

    (tmp_path / "stub.py").write_text(STUB)
    monkeypatch.setattr(vllm, "program", lambda python: [sys.executable, str(tmp_path / "stub.py")])
    texts = TableWorld(spaces.synthetic(2, 0)).texts()
    shape = ModelConfig(
        hidden=16, layers=1, heads=1, key_heads=1, head=16, inner=16, vocabulary=300, context=256
    )
    model, tokenizer = models.load(Recipe(name="t", model=shape, rl=Rl()), texts)
    (tmp_path / "deaths").write_text("0")
    found = Served(model.config, tokenizer, tmp_path, RolloutsConfig(engine="vllm", gpus=0), 0)
    try:
        found.refresh(model.state_dict(), 0)
        yield found
    finally:
        found.close()


def asked(served: object, tmp_path: Path, deaths: int) -> list[str]:
    from kernel_lsp.records import Message, Role
    from trainer.rollouts.generation import Ask
    from trainer.rollouts.serving import Served

    assert isinstance(served, Served)
    (tmp_path / "deaths").write_text(str(deaths))
    asks = [Ask(messages=(Message(role=Role.USER, text="so"),), choices=None)] * 8
    return [one.text for one in served.generate(asks, seed=0)]


def test_a_server_that_dies_is_started_again_and_no_reply_is_lost(
    served: object, tmp_path: Path
) -> None:
    assert asked(served, tmp_path, deaths=1) == ["so"] * 8
    assert (tmp_path / "deaths").read_text() == "0"


def test_one_that_dies_for_ever_ends_the_run_in_words(served: object, tmp_path: Path) -> None:
    from trainer.rollouts.serving import MAX_REVIVALS, ServingError

    with pytest.raises(ServingError, match=f"started again {MAX_REVIVALS} times") as error:
        asked(served, tmp_path, deaths=99)
    assert "vllm.log" in str(error.value)


def test_one_that_lives_and_does_not_answer_is_not_started_again(
    served: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import httpx2

    from trainer.rollouts import serving

    monkeypatch.setattr(serving, "DEATH_S", 0.2)
    assert isinstance(served, serving.Served)
    lost = httpx2.ReadTimeout("no answer within 600 s")
    with pytest.raises(serving.ServingError, match="does not answer: no answer within"):
        served._revive(0, lost)
