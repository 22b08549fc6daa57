"""What doctor says of the language model: against a scripted server, and of models of our own."""

import sys
from pathlib import Path

import pytest
from scripted_model import Options, Say, ScriptedModel

from kernel_lsp.agents.backbones import probing
from kernel_lsp.agents.backbones.probing import ProbeResult, probe
from kernel_lsp.config import Settings

KEY = "sk-test-0123456789abcdefghij"


@pytest.fixture(autouse=True)
def no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("keyring.get_password", lambda service, user: None)
    monkeypatch.delenv("KERNEL_LSP_API_KEY", raising=False)


async def found(server: ScriptedModel | None = None, **more: str) -> ProbeResult:
    at = {"policy": "openai", "endpoint": server.endpoint} if server else {}
    return await probe(Settings(**at, **more), python=sys.executable, allowed_origin=None)  # type: ignore[arg-type]


async def test_without_a_model_nothing_is_missing() -> None:
    assert await found() == ProbeResult(ok=True, words="none: policy plan needs no model")


async def test_an_endpoint_is_asked_what_it_can_do(monkeypatch: pytest.MonkeyPatch) -> None:
    async with ScriptedModel([Say(tool="answer")], Options(context=4096)) as server:
        said = await found(server)
        assert said.ok
        where = f"openai:scripted at {server.origin}, 4096 tokens"
        assert said.words == f"{where}, every call held to its schema, key: none, and none needed"
    monkeypatch.setenv("KERNEL_LSP_API_KEY", KEY)
    async with ScriptedModel([Say(tool="answer")], Options(schema=False, key=KEY)) as server:
        said = await found(server)
        assert said.ok
        assert "tool calls, not held" in said.words
        assert said.words.endswith("key: environment variable KERNEL_LSP_API_KEY")
        assert KEY not in repr(said)


async def test_what_is_wrong_is_said_with_its_remedy() -> None:
    async with ScriptedModel(options=Options(key=KEY)) as server:
        said = await found(server)
        assert not said.ok
        assert "asks for a key" in said.words
        assert "keyring set" in str(said.remedy)
    remote = await found(policy="openai", endpoint="https://models.example.com/v1")
    assert not remote.ok
    assert "--remote https://models.example.com" in str(remote.remedy)


async def test_models_of_our_own_are_looked_up_and_not_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(probing.NEEDED, "vllm", ("json",))
    said = await found(policy="vllm", model=str(tmp_path))
    assert said == ProbeResult(
        ok=True, words=f"vllm: {tmp_path} (a folder here), by {sys.executable}"
    )
    monkeypatch.setitem(probing.NEEDED, "vllm", ("json", "no_such_module"))
    said = await found(policy="vllm", model="some/id")
    assert (said.ok, "no_such_module" in said.words) == (False, True)
    assert "pip install no_such_module" in str(said.remedy)
    said = await found(
        policy="transformers", model="some/id", model_python=str(tmp_path / "python")
    )
    assert not said.ok
    assert "cannot be started" in said.words
    said = await found(policy="vllm")
    assert "needs a model" in said.words
