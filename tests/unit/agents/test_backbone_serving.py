"""A model server of our own ends when we end, when it is told to, and when nobody asks.

Stand-ins are kept here; the real one is in tests/vllm.
"""

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from kernel_lsp import process
from kernel_lsp.agents import backbones
from kernel_lsp.agents.backbones import serving, vllm
from kernel_lsp.config import Settings
from kernel_lsp.errors import BackboneError
from kernel_lsp.evaluator.sharing import nvml
from kernel_lsp.records import Message, Progress, Prompt, Role

ROOT = Path(__file__).resolve().parents[3]
HELPERS = ROOT / "tests" / "helpers"
PROMPT = Prompt(messages=(Message(role=Role.USER, text="Hello?"),))


LONG_S = 60.0
"""What takes a second or two may take so long on a busy machine; the stand-ins would live for ten
minutes."""
MARK = f"model-server-of-test-{os.getpid()}-"


@pytest.fixture(autouse=True)
def nothing_stays(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Of what these tests start, under a mark of their own: others may keep servers meanwhile."""
    monkeypatch.setattr(serving, "MARK", MARK)
    yield
    serving.stop_all()
    assert not list(serving._find_marked())


def silent(progress: Progress) -> None:
    pass


def order(folder: Path, *argv: str, port: int = 1, idle_s: float = 600.0) -> serving.ServerOrder:
    environment = {"PATH": os.environ["PATH"]}
    log = folder / "logs" / "server.log"
    return serving.ServerOrder(
        name="stand-in",
        argv=argv,
        environment=environment,
        log=log,
        origin=f"http://127.0.0.1:{port}",
        idle_s=idle_s,
    )


def files(folder: Path, **more: float) -> serving.ServerOrder:
    """A server of files, whose folder has one named health."""
    (folder / "logs").mkdir()
    (folder / "logs" / "health").touch()
    port = vllm.free_port()
    argv = (sys.executable, "-m", "http.server", "--bind", "127.0.0.1", str(port))
    return order(folder, *argv, port=port, **more)


def script(code: str) -> tuple[str, ...]:
    return sys.executable, "-c", textwrap.dedent(code)


def living(pids: set[int]) -> set[int]:
    found = set[int]()
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            if psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                found.add(pid)
    return found


def of(mark: str) -> set[int]:
    return {pid for pid, other in serving._find_marked() if other == mark}


async def until(true: Callable[[], bool], within_s: float = LONG_S) -> None:
    end = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < end, "it did not happen in time"
        await asyncio.sleep(0.01)


async def test_it_is_well_then_stopped_and_its_port_is_free(tmp_path: Path) -> None:
    asked = files(tmp_path)
    server = serving.running("files", lambda: asked)
    await server.well(silent)
    assert serving.running("files", lambda: asked) is server
    pids = of(server.mark)
    assert len(pids) == 2  # it and its keeper
    await server.stop("the test ends")
    assert not server.alive
    await until(lambda: not living(pids))
    await server.stop("again")
    again = serving.running("files", lambda: asked)
    assert again is not server
    await again.well(silent)  # on the same port


async def test_after_a_kill_of_this_process_the_server_is_gone(tmp_path: Path) -> None:
    code = f"""
        import sys, time
        sys.path[:0] = [{str(HELPERS)!r}, {str(Path(__file__).parent)!r}, {str(ROOT)!r}]
        from pathlib import Path
        from test_backbone_serving import files, serving
        serving.MARK = {MARK!r}
        print(serving.ModelServer(files(Path({str(tmp_path)!r}))).mark, flush=True)
        time.sleep(600)
    """
    host = await asyncio.create_subprocess_exec(*script(code), stdout=subprocess.PIPE)
    assert host.stdout is not None
    mark = (await host.stdout.readline()).decode().strip()
    await until(lambda: len(of(mark)) == 2)
    pids = of(mark)
    host.kill()
    await host.wait()
    await until(lambda: not living(pids))


async def test_what_a_killed_keeper_leaves_is_ended_at_the_next_start(tmp_path: Path) -> None:
    server = serving.ModelServer(files(tmp_path))
    await server.well(silent)
    pids = of(server.mark)
    server._keeper.kill()
    server._keeper.wait()
    await asyncio.sleep(0.2)
    left = living(pids)
    assert len(left) == 1
    assert all(nvml.is_ours(pid) for pid in left)  # by its mark: it is no descendant any more
    other = serving.ModelServer(order(tmp_path, *script("import time; time.sleep(600)")))
    serving.end_leftovers()
    await until(lambda: not living(left))
    assert other.alive  # its keeper lives
    await other.stop("the test ends")
    await server.stop("the test ends")


async def test_what_a_killed_keeper_leaves_is_ended_with_children_that_lost_their_mark(
    tmp_path: Path,
) -> None:
    """vLLM's engine and worker write their titles over the environment."""
    code = """
        import subprocess, sys, time
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], env={})
        print("child", child.pid, flush=True)
        time.sleep(600)
    """
    server = serving.ModelServer(order(tmp_path, *script(code)))
    await until(lambda: "child" in server.tail())
    child = int(server.tail().split()[-1])
    assert child not in of(server.mark)
    left = of(server.mark) | {child}
    server._keeper.kill()
    server._keeper.wait()
    serving.end_leftovers()
    await until(lambda: not living(left))
    await server.stop("the test ends")


async def test_a_server_that_does_not_go_and_its_children_are_killed(tmp_path: Path) -> None:
    code = """
        import os, signal, time
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.fork()
        os.fork()
        time.sleep(600)
    """
    server = serving.ModelServer(order(tmp_path, *script(code)))
    await until(lambda: len(of(server.mark)) == 5)
    pids = of(server.mark)
    await server.stop("the test ends")
    await until(lambda: not living(pids))


async def test_children_of_a_server_that_was_killed_go_with_it(tmp_path: Path) -> None:
    code = """
        import os, time
        if os.fork() == 0: print("child", os.getpid(), flush=True)
        time.sleep(600)
    """
    server = serving.ModelServer(order(tmp_path, *script(code)))
    await until(lambda: "child" in server.tail())
    child = int(server.tail().split()[-1])
    parent = psutil.Process(child).ppid()
    os.kill(parent, signal.SIGKILL)
    await until(lambda: not living({child, parent}))
    assert "it was ended by SIGKILL" in str(server.ended("in the middle of its work"))
    await server.stop("the test ends")


async def test_one_that_ends_while_it_loads_says_why_with_its_last_lines(tmp_path: Path) -> None:
    code = (
        "for i in range(30): print('line', i)\nprint('token = ghp_' + 'aB3' * 12)\nraise "
        "SystemExit(3)"
    )
    server = serving.running("failing", lambda: order(tmp_path, *script(code)))
    with pytest.raises(
        BackboneError, match="stand-in ended while it loaded the model: exit code 3"
    ) as caught:
        await server.well(silent)
    remedy = str(caught.value.remedy)
    assert "server.log" in remedy
    assert re.findall(r"line (\d+)", remedy) == [str(i) for i in range(11, 30)]
    assert "ghp_" not in remedy


async def test_a_program_that_is_not_there(tmp_path: Path) -> None:
    server = serving.running("missing", lambda: order(tmp_path, "/nowhere/python"))
    with pytest.raises(BackboneError, match="cannot be started: /nowhere/python: No such file"):
        await server.well(silent)


async def test_loading_is_reported_and_can_be_cancelled(tmp_path: Path) -> None:
    said: list[str] = []
    server = serving.running(
        "slow", lambda: order(tmp_path, *script("import time; time.sleep(600)"))
    )
    waiting = asyncio.create_task(server.well(lambda progress: said.append(progress.message)))
    await until(lambda: bool(said))
    assert re.fullmatch(r"stand-in loads the model, \d+ s", said[0])
    begun = time.monotonic()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert time.monotonic() - begun < LONG_S


async def test_an_idle_server_is_stopped_but_not_one_in_use(tmp_path: Path) -> None:
    server = serving.running(
        "idle", lambda: order(tmp_path, *script("import time; time.sleep(600)"), idle_s=0.5)
    )
    with server.used():
        await asyncio.sleep(1.0)
        assert server.alive
    used = time.monotonic()
    await until(lambda: not server.alive)
    assert time.monotonic() - used >= 0.5
    assert "nobody asked it for 0.5 s" in str(server.ended("now"))


# --- vLLM's command line and environment ----------------------------------------------------------


def test_vllm_is_told_what_was_measured(tmp_path: Path) -> None:
    (tmp_path / "tiny").mkdir()
    settings = Settings(model=str(tmp_path / "tiny"), model_device="cpu")
    words = vllm.command(settings, "/venv/bin/python", 4711)
    text = " ".join(words)
    assert words[:4] == ["/venv/bin/python", "-m", "vllm.entrypoints.cli.main", "serve"]
    assert words[4] == str(tmp_path / "tiny")
    assert "--host 127.0.0.1 --port 4711 --served-model-name tiny" in text
    assert '"disable_any_whitespace":true' in text
    assert "--enforce-eager" in text
    assert "trust-remote-code" not in text
    assert "api-key" not in text
    on_gpu = " ".join(
        vllm.command(Settings(model="Qwen/Qwen3-8B", model_device="cuda"), "python", 1)
    )
    assert "--gpu-memory-utilization 0.3" in on_gpu
    assert "--enforce-eager" not in on_gpu
    assert "serve Qwen/Qwen3-8B " in on_gpu


def test_vllm_sees_its_own_key_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (
        "KERNEL_LSP_API_KEY",
        "OPENAI_API_KEY",
        "HF_TOKEN",
        "VLLM_API_KEY",
        "MY_PASSWORD",
        "OTHER",
    ):
        monkeypatch.setenv(name, f"secret-{name}")
    monkeypatch.setenv("HF_HOME", "/models")
    offline = vllm.environment(
        Settings(model=str(tmp_path), model_device="cpu"), "/venv/bin/python"
    )
    assert not [value for value in offline.values() if value.startswith("secret-")]
    assert len(offline["VLLM_API_KEY"]) > 30
    assert (offline["HF_HOME"], offline["HF_HUB_OFFLINE"], offline["TORCH_COMPILE_DISABLE"]) == (
        "/models",
        "1",
        "1",
    )
    assert offline["PATH"].startswith("/venv/bin:")
    public = vllm.environment(
        Settings(model="Qwen/Qwen3-8B", model_device="cuda"), "/venv/bin/python"
    )
    assert [value for value in public.values() if value.startswith("secret-")] == [
        "secret-HF_TOKEN"
    ]
    assert not {"HF_HUB_OFFLINE", "TORCH_COMPILE_DISABLE", "VLLM_CPU_KVCACHE_SPACE"} & public.keys()
    assert public["VLLM_API_KEY"] != offline["VLLM_API_KEY"]
    made = vllm.order(Settings(model=str(tmp_path)), "python", str(tmp_path))
    assert made.environment["VLLM_API_KEY"] not in repr(made)


def test_vllm_without_a_model_is_refused() -> None:
    with pytest.raises(BackboneError, match=r"needs a model .*--model"):
        backbones.make(
            Settings(policy="vllm"), python="python", allowed_origin=None, data_dir="/nowhere"
        )
    option = Settings(policy="vllm", model="--trust-remote-code")
    with pytest.raises(BackboneError, match="is no model but an option"):
        backbones.make(option, python="python", allowed_origin=None, data_dir="/nowhere")


async def test_a_vllm_that_dies_is_an_error_with_its_log_and_the_next_question_starts_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def scripted(settings: Settings, python: str, port: int) -> list[str]:
        code = f"""
            import asyncio, os, sys
            sys.path.insert(0, {str(HELPERS)!r})
            from scripted_model import *
            says = [Say("one"), Say("slow", delay_s=600)]
            def script(body):
                print("asked", flush=True)
                return says.pop(0)
            async def main():
                options = Options(models=("a-model",), vllm=True, key=os.environ["VLLM_API_KEY"])
                server = ScriptedModel(script, options)
                server.port = {port}
                async with server:
                    print("serving", flush=True)
                    await asyncio.sleep(600)
            asyncio.run(main())
        """
        return list(script(code))

    monkeypatch.setattr(vllm, "command", scripted)
    settings = Settings(
        policy="vllm", model="a-model", model_device="cuda", model_requests_per_minute=1
    )
    first, second = (
        backbones.make(settings, python=sys.executable, allowed_origin=None, data_dir=str(tmp_path))
        for _ in range(2)
    )
    infos = await asyncio.gather(first.open(silent), second.open(silent))
    assert infos[0] == infos[1]  # one server for both
    assert infos[0].name == "vllm:a-model@0.32.0"
    assert infos[0].on_measured_gpu
    assert (await first.reply(PROMPT)).text == "one"
    asking = asyncio.create_task(second.reply(PROMPT))
    await until(lambda: sum(log.read_text().count("asked") for log in tmp_path.rglob("*.log")) == 2)
    (mark,) = {other for _, other in serving._find_marked()}
    for pid in of(mark):
        # Some end with the one that was killed before them.
        with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
            if str(serving.KEEPER) not in psutil.Process(pid).cmdline():
                os.kill(pid, signal.SIGKILL)
    with pytest.raises(
        BackboneError, match="vLLM ended in the middle of its work: it was ended by SIGKILL"
    ) as caught:
        await asking
    assert "serving" in str(caught.value.remedy)
    assert (await first.reply(PROMPT)).text == "one"
    await first.close()
    await second.close()
    await second.close()
    assert process.MARK not in os.environ
