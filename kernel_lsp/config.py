"""One frozen tree of settings, and where each value comes from. Standard library only.

Order, later wins: defaults < pyproject.toml ``[tool.kernel-lsp]`` < environment ``KERNEL_LSP_*`` <
editor settings < command-line flags. A value that cannot be used never stops anything: it becomes a
ConfigError in the returned problems, and the next lower source counts instead.
Not covered: which interpreter a project has (interpreter/) and who allowed what (consent/).
"""

from __future__ import annotations

import dataclasses
import os
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import platformdirs

from kernel_lsp import foreign
from kernel_lsp.errors import ConfigError

PREFIX = "KERNEL_LSP_"
SECTION = "kernel-lsp"
OPENAI_URL, OPENAI_KEY = "OPENAI_BASE_URL", "OPENAI_API_KEY"
"""As the clients of OpenAI's interface name them."""
SEVERITIES = ("hint", "information", "warning", "error")
"""How a finding can be reported, the mildest first."""


def default_data_dir() -> str:
    """Where this user's data lies when nothing else is set."""
    return platformdirs.user_data_dir("kernel-lsp", appauthor=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class FileIgnores:
    """One line of ``per-file-ignores``."""

    pattern: str
    """As in .gitignore, from the folder of the settings on."""
    rules: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """Everything a user can set. In TOML and in editors, names may use dashes instead of
    underscores."""

    device: str = field(default="auto", metadata={"choices": ("auto", "cuda", "cpu")})
    """Where rewrites are measured; auto takes CUDA when the project's torch has it."""
    judge_on: str | None = None
    """Another machine that judges and measures: ssh://HOST/PYTHON, slurm://PARTITION/PYTHON or
    slurm+ssh://LOGIN-HOST/PYTHON (docs/how-to/remote-gpu.md); None: this one. Source text of what
    is judged goes there."""
    budget: int = field(default=8, metadata={"low": 1, "high": 1000})
    """Candidates that may be evaluated per job."""
    threshold: float = field(default=1.05, metadata={"low": 1.0, "high": 100.0})
    """A rewrite is offered when the lower bound of its speedup reaches this."""
    minimum_saved_us: float = field(default=2.0, metadata={"low": 0.0, "high": 1e6})
    """... and when it saves at least this many microseconds per call."""
    torch_compile: bool = True
    """Offer torch.compile, and never a kernel that is slower than it. False where it cannot be
    used: a target's report still has its time, a whole program runs without it."""
    python: str | None = None
    """The project's interpreter, absolute or relative to the folder; None searches for it. Never
    read from pyproject.toml: it is a program that is started."""
    consent: str = field(default="ask", metadata={"choices": ("ask", "always", "never")})
    """May workspace code run: ask once per folder, always, or never. Never read from
    pyproject.toml, because a cloned repository must not be able to grant itself permission."""
    background: bool = True
    """Measure targets of open files without being asked, once the folder has consent."""
    keep_source: bool = False
    """Keep source text in the journal (needed only when the journal shall feed training)."""
    training: bool = False
    """What is measured here, and what becomes of offers, may be learned from; of source text only
    what ``keep_source`` keeps."""
    max_hints_per_file: int = field(default=10, metadata={"low": 0, "high": 1000})
    """Hints per file, best first; the rest is listed by kernel-lsp.listKernels."""
    skill_folders: tuple[str, ...] = ()
    """Further folders of skills, absolute or relative to the workspace folder."""
    data_dir: str = field(default_factory=default_data_dir)
    """Journal, cache and consent records of this user."""
    policy: str = field(
        default="plan", metadata={"choices": ("plan", "openai", "vllm", "transformers")}
    )
    """Who proposes rewrites: plan is the deterministic planner, which needs no language model;
    openai is any OpenAI-compatible endpoint, vllm one that is started and stopped here,
    transformers a small model in a child process."""
    endpoint: str | None = None
    """Of policy openai, e.g. http://127.0.0.1:8000/v1; unset: ``OPENAI_BASE_URL``. Another
    machine's needs leave, per folder."""
    model: str | None = None
    """Its name at the endpoint (None: what that serves); for vllm and transformers an id or a
    folder."""
    api_key_env: str = "KERNEL_LSP_API_KEY"
    """Name of the environment variable with the key; where it is empty, ``OPENAI_API_KEY`` for the
    server that ``OPENAI_BASE_URL`` names (unset: OpenAI's own), then the system's keyring."""
    model_python: str | None = None
    """Interpreter that has vllm or transformers; None: the project's."""
    model_device: str = field(default="auto", metadata={"choices": ("auto", "cpu", "cuda")})
    """Where a model of our own runs."""
    model_memory_share: float = field(default=0.3, metadata={"low": 0.05, "high": 0.95})
    """Share of the GPU's memory that a vLLM of our own may take."""
    model_idle_s: float = field(default=600.0, metadata={"low": 1.0, "high": 86400.0})
    """A model of our own is stopped after so long without a question."""
    model_timeout_s: float = field(default=120.0, metadata={"low": 1.0, "high": 3600.0})
    """Wall time for one reply, repeated tries included."""
    model_temperature: float = field(default=1.0, metadata={"low": 0.0, "high": 2.0})
    """How freely a reply is sampled; 0: always the likeliest."""
    model_top_p: float = field(default=0.95, metadata={"low": 0.01, "high": 1.0})
    """Only the likeliest tokens that have this much of the probability are sampled from."""
    model_reply_tokens: int | None = field(default=None, metadata={"low": 64, "high": 131072})
    """Tokens of one reply at most; None: a third of the context, and never more than 8192."""
    model_samples: int = field(default=4, metadata={"low": 1, "high": 64})
    """Prompts in flight at a time."""
    model_requests_per_minute: int | None = field(default=None, metadata={"low": 1, "high": 100000})
    """None: as many as the endpoint takes."""
    search_candidates: int = field(default=64, metadata={"low": 1, "high": 100000})
    """Candidates that a deeper search may judge."""
    search_turns: int = field(default=4, metadata={"low": 1, "high": 64})
    """Turns of one rollout of a language model; each reads how the one before ended."""
    search_seconds: float = field(default=1800.0, metadata={"low": 1.0, "high": 604800.0})
    """Wall time of a deeper search, resumed parts included."""
    search_tokens: int | None = field(default=None, metadata={"low": 1, "high": 10**12})
    """Tokens of prompts and replies that a deeper search may use; None: no limit."""
    search_gpu_seconds: float | None = field(default=None, metadata={"low": 1.0, "high": 604800.0})
    """GPU time that a deeper search may take; None: no limit."""
    code_lens: bool = True
    """One lens above each target."""
    inlay_hints: bool = False
    """Measured time after the ``def`` line."""
    hover: bool = True
    """Evidence in the hover of a target's name, when there is any."""
    static_hints: bool = True
    """Findings of the static rules, which are no claims of speed."""
    workspace_diagnostics: bool = False
    """Findings of files that are not open too, in editors that ask for them."""
    select: tuple[str, ...] = ()
    """Rules that are reported, by id or by its beginning (``KL2``); empty: all."""
    ignore: tuple[str, ...] = ()
    """Rules that are not reported, likewise. Where several fit, the longest counts, and of equals
    this."""
    disabled_rules: tuple[str, ...] = ()
    """Rule ids that are never reported, e.g. KL101."""
    per_file_ignores: tuple[FileIgnores, ...] = field(default=(), metadata={"table_of": "lists"})
    """By pattern of paths (as in .gitignore, from the folder on): rules that are not reported
    there."""
    severity: tuple[tuple[str, str], ...] = field(default=(), metadata={"table_of": SEVERITIES})
    """By rule, or by the beginning of its id: hint, information, warning or error, not the rule's
    own."""
    exclude: tuple[str, ...] = ()
    """Files and folders that are not checked: patterns as in .gitignore, from the folder on."""
    respect_gitignore: bool = True
    """What .gitignore files name is not checked."""
    evaluate_timeout_s: float = field(default=120.0, metadata={"low": 1.0, "high": 86400.0})
    """Wall time for judging one candidate."""
    capture_timeout_s: float = field(default=120.0, metadata={"low": 1.0, "high": 86400.0})
    """Wall time for turning one target into a graph."""
    job_timeout_s: float = field(default=600.0, metadata={"low": 1.0, "high": 86400.0})
    """Wall time for a whole job; what was found until then is kept."""
    memory_mb: int = field(default=16384, metadata={"low": 256, "high": 2**24})
    """Memory limit of a process that runs candidate code."""
    gpu_when_busy: str = field(default="wait", metadata={"choices": ("wait", "skip", "ignore")})
    """When another process is busy on the GPU: wait until it is done and repeat what it disturbed,
    give up at once, or measure beside it (and say so in the evidence)."""
    gpu_wait_s: float = field(default=300.0, metadata={"low": 0.0, "high": 86400.0})
    """How long to wait for a busy GPU before giving up."""
    gpu_minutes_per_hour: float = field(default=20.0, metadata={"low": 0.0, "high": 60.0})
    """GPU time that measuring in the background may take; 60 is no limit. Jobs that somebody waits
    for count, but are never refused."""
    gpu_memory_mb: int | None = field(default=None, metadata={"low": 256, "high": 2**24})
    """GPU memory that one process of ours may allocate; None: 80 % of what is free when its turn
    begins."""


_HINTS = typing.get_type_hints(Settings)
_FIELDS = {f.name: f for f in dataclasses.fields(Settings)}
NOT_FROM_PROJECT = frozenset(
    {
        "consent",
        "judge_on",
        "python",
        "training",
        "data_dir",
        "gpu_when_busy",
        "gpu_wait_s",
        "gpu_minutes_per_hour",
        "gpu_memory_mb",
    }
    | {name for name in _FIELDS if name.startswith(("model", "search_"))}
    | {"policy", "endpoint", "api_key_env"}  # where source text and keys go, and what is started
    | {"skill_folders"}  # whose code runs
    | {"evaluate_timeout_s", "capture_timeout_s", "job_timeout_s"}  # how long a runner may be held
)
"""What a cloned repository may not decide for its reader."""


def load(
    folder: Path | str | None,
    *,
    editor: Mapping[str, Any] | None = None,
    flags: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
) -> tuple[Settings, list[ConfigError]]:
    """The settings of one workspace folder, and every value that could not be used. Never
    raises."""
    problems: list[ConfigError] = []
    values: dict[str, Any] = {}
    for where, table in (
        ("pyproject.toml [tool.kernel-lsp]", _project_table(folder, problems)),
        ("environment", _environment_table(os.environ if environ is None else environ)),
        ("editor settings", editor or {}),
        ("command line", flags or {}),
    ):
        _merge(values, where, table, problems)
    return Settings(**values), problems


def _merge(
    values: dict[str, Any], where: str, table: Mapping[str, Any], problems: list[ConfigError]
) -> None:
    for key, value in table.items():
        name = key.replace("-", "_")
        if value is None:
            continue
        if name not in _FIELDS:
            known = ", ".join(sorted(_FIELDS))
            problems.append(
                ConfigError(f"{where}: unknown setting {key!r}", f"known settings: {known}")
            )
        elif where.startswith("pyproject") and name in NOT_FROM_PROJECT:
            remedy = (
                "set it in the editor or the environment; a project may not decide this for its "
                "readers"
            )
            problems.append(ConfigError(f"{where}: {key} is ignored here", remedy))
        else:
            _take(values, where, name, value, problems)


def _take(
    values: dict[str, Any], where: str, name: str, value: Any, problems: list[ConfigError]
) -> None:
    try:
        values[name] = _convert(name, value)
    except ValueError as error:
        used = values.get(name, getattr(_DEFAULTS, name))
        problems.append(
            ConfigError(
                f"{where}: {name} = {value!r} cannot be used", f"allowed: {error}; {used!r} is used"
            )
        )


def _convert(name: str, value: Any) -> Any:
    """``value`` as the field's type. Raises ValueError whose text says what is allowed."""
    limits = _FIELDS[name].metadata
    if choices := limits.get("choices"):
        if value in choices:
            return value
        raise ValueError(", ".join(choices))
    converted = _CONVERTERS[_HINTS[name]](value)
    if "low" in limits and not limits["low"] <= converted <= limits["high"]:
        raise ValueError(f"{limits['low']} to {limits['high']}")
    return converted


def _integer(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise ValueError("a whole number")
    try:
        return int(value)
    except ValueError:
        raise ValueError("a whole number") from None


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise ValueError("a number")
    try:
        return float(value)
    except (ValueError, OverflowError):
        raise ValueError("a number") from None


def _boolean(value: Any) -> bool:
    words = {
        "1": True,
        "true": True,
        "yes": True,
        "on": True,
        "0": False,
        "false": False,
        "no": False,
    }
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in (*words, "off"):
        return words.get(value.lower(), False)
    raise ValueError("true or false")


def _text(value: Any) -> str:
    if isinstance(value, str) and value.strip():
        return value
    raise ValueError("a text that is not empty")


def _texts(value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        return tuple(part for part in value.split(os.pathsep) if part)
    if isinstance(value, (list, tuple)) and all(isinstance(item, str) for item in value):
        return tuple(value)
    raise ValueError(f"a list of texts (in the environment: separated by {os.pathsep!r})")


def _file_ignores(value: Any) -> tuple[FileIgnores, ...]:
    if not isinstance(value, Mapping):
        raise ValueError('a table of lists of rules, e.g. {"tests/" = ["KL1"]}')
    return tuple(
        FileIgnores(pattern=str(name), rules=_texts(rules)) for name, rules in value.items()
    )


def _severities(value: Any) -> tuple[tuple[str, str], ...]:
    if isinstance(value, Mapping) and all(word in SEVERITIES for word in value.values()):
        return tuple((str(rule), str(word)) for rule, word in value.items())
    raise ValueError(f'a table of {", ".join(SEVERITIES)}, e.g. {{KL2 = "error"}}')


_CONVERTERS: dict[Any, Callable[[Any], Any]] = {
    int: _integer,
    int | None: _integer,
    float: _number,
    float | None: _number,
    bool: _boolean,
    str: _text,
    str | None: _text,
    tuple[str, ...]: _texts,
    tuple[FileIgnores, ...]: _file_ignores,
    tuple[tuple[str, str], ...]: _severities,
}
_DEFAULTS = Settings()


def has_section(folder: Path) -> bool:
    """Whether the folder's pyproject.toml says anything to us; one that cannot be read does not."""
    return bool(_project_table(folder, []))


def _project_table(folder: Path | str | None, problems: list[ConfigError]) -> Mapping[str, Any]:
    if folder is None:
        return {}
    path = Path(folder) / "pyproject.toml"
    try:
        text = foreign.read_text(path, most=foreign.MAX_TOML_BYTES, within=Path(folder))
        table = foreign.toml(text).get("tool", {}).get(SECTION, {})
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, AttributeError) as error:
        problems.append(
            ConfigError(
                f"{path} cannot be read: {error}", "its settings are ignored until it parses"
            )
        )
        return {}
    if isinstance(table, dict):
        return table
    problems.append(ConfigError(f"{path}: tool.{SECTION} is no table", f"write [tool.{SECTION}]"))
    return {}


def _environment_table(environ: Mapping[str, str]) -> dict[str, Any]:
    """Only names of settings: KERNEL_LSP_* also holds switches of our own processes. Where other
    programs find their language model, ours does too, unless a setting says otherwise."""
    names = {PREFIX + name.upper(): name for name in _FIELDS}
    common = {"endpoint": url} if (url := environ.get(OPENAI_URL, "").strip()) else {}
    return common | {names[key]: value for key, value in environ.items() if key in names}
