"""``kernel-lsp models``: the trained policies on this machine, and which one plans what."""

from __future__ import annotations

from collections.abc import Container, Iterable
from pathlib import Path

import typer

from kernel_lsp import config, wire
from kernel_lsp.commands import console, keys
from kernel_lsp.errors import KernelLspError, ModelError
from kernel_lsp.models import GRAPH, KERNEL, RULE, TARGETS, PolicyStore, StoredPolicy

app = typer.Typer(help="Trained policies, and which one plans.", no_args_is_help=True)
AS_JSON = typer.Option(False, "--json", help="One JSON object on standard output.")
COLUMNS = ("", "policy", "from", "plans", "trained for", "held-out check")
PLURAL = {GRAPH: "graphs", KERNEL: "kernels"}


@app.command("list")
def list_models(as_json: bool = AS_JSON) -> None:
    """Every policy, the rule, which of them plans (*) and what, and how each did on held-out
    tasks."""
    store = _store()
    used = {target: _describe_use(store, target) for target in TARGETS}
    if as_json:
        entries = [_as_json(model) for model in store.models()]
        name, trouble = used[GRAPH]  # as it was listed before there was one for kernels
        by_target = {target: {"used": name, "trouble": why} for target, (name, why) in used.items()}
        console.print_json(models=entries, used=name, trouble=trouble, targets=by_target)
        return
    names = {name for name, _ in used.values()}
    rows = [COLUMNS, *(_row(model, names) for model in store.models()), _rule_row(names)]
    widths = [max(len(row[place]) for row in rows) for place in range(len(COLUMNS) - 1)]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
        console.write("  ".join([*cells, row[-1]]).rstrip() + "\n")
    console.write(_describe_planner(store))
    for trouble in dict.fromkeys(why for _, why in used.values() if why):
        console.err.print(f"the rule plans: {trouble}", markup=False)


@app.command()
def show(
    name: str | None = typer.Argument(
        None, help="A policy; default: the one that plans graphs, else kernels."
    ),
    as_json: bool = AS_JSON,
) -> None:
    """One policy: its files, its held-out check, what was noted of its training."""
    store = _store()
    try:
        model = store.used(GRAPH) or store.used(KERNEL) if name is None else store.get(name)
        if model is None:
            console.write("the rule plans: deterministic, needs no model\n")
            return
        if model.problem is not None:
            raise model.problem
    except ModelError as error:
        console.fail(error)
    console.write((wire.dumps(_as_json(model)) if as_json else _card(model)) + "\n")


@app.command()
def use(
    name: str = typer.Argument(
        ..., help="A policy, `rule`, or the folder of a checkpoint to install."
    ),
    unsigned: bool = keys.UNSIGNED,
    allow_rollback: bool = keys.ALLOW_ROLLBACK,
) -> None:
    """Switch: the next request about what it plans is planned by it, any other as the package has
    it.

    One that did worse on held-out tasks is refused. Whose folder it is says its signature
    (`kernel-lsp keys`); what nobody has signed is asked about, and refused in CI.
    """
    store = _store()
    try:
        place = Path(name)
        chosen = name
        if name != RULE and place.is_dir():
            keys.require(place, keys.Kind.POLICY, unsigned=unsigned, allow_rollback=allow_rollback)
            chosen = store.install(place).id
        model = store.use(chosen)
    except KernelLspError as error:
        console.fail(error)
    _say(store, model)


@app.command()
def rollback() -> None:
    """Go back to what planned before the last switch."""
    store = _store()
    try:
        model = store.rollback()
    except ModelError as error:
        console.fail(error)
    _say(store, model)


def _store() -> PolicyStore:
    return PolicyStore(Path(config.load(Path.cwd())[0].data_dir))


def _describe_use(store: PolicyStore, target: str) -> tuple[str, str | None]:
    """What plans such targets, and why it is the rule although something else was chosen."""
    try:
        model = store.used(target)
    except ModelError as error:
        return RULE, str(error)
    return (model.id, None) if model else (RULE, None)


def _describe_planner(store: PolicyStore) -> str:
    """One line: what plans which kind of target."""
    return (
        "; ".join(f"{PLURAL[target]}: {_describe_use(store, target)[0]}" for target in TARGETS)
        + "\n"
    )


def _say(store: PolicyStore, model: StoredPolicy | None) -> None:
    if model is None:
        console.write("the rule plans from now on\n")
    else:
        assert model.manifest is not None
        console.write(f"{model.id} plans from now on: {model.manifest.held_out}\n")
        console.write(_describe_planner(store))


def _row(model: StoredPolicy, used: Container[str]) -> tuple[str, ...]:
    origin = "package" if model.packaged else "installed"
    mark = "*" if model.id in used else ""
    if model.manifest is None:
        return (mark, model.id, origin, "-", "-", str(model.problem))
    return (
        mark,
        model.id,
        origin,
        _kinds(model.manifest.targets),
        ", ".join(model.manifest.devices),
        str(model.manifest.held_out or "never checked"),
    )


def _rule_row(used: Container[str]) -> tuple[str, ...]:
    mark = "*" if RULE in used else ""
    return (mark, RULE, "package", _kinds(TARGETS), "cuda, cpu", "what policies are compared with")


def _kinds(targets: Iterable[str]) -> str:
    return ", ".join(PLURAL.get(target, target) for target in targets)


def _as_json(model: StoredPolicy) -> dict[str, object]:
    return {
        "id": model.id,
        "folder": str(model.folder),
        "packaged": model.packaged,
        "digest": model.manifest.digest if model.manifest else None,
        "manifest": wire.to_json(model.manifest),
        "problem": str(model.problem) if model.problem else None,
    }


def _card(model: StoredPolicy) -> str:
    manifest = model.manifest
    assert manifest is not None
    size = sum(
        (model.folder / name).stat().st_size
        for name in manifest.files
        if (model.folder / name).exists()
    )
    lines = [
        f"# {manifest.id}",
        f"- {'came with the package' if model.packaged else 'installed'}: {model.folder}",
        f"- {size / 1e6:.1f} MB, hash {manifest.digest}, {manifest.vocabulary}"
        + (f", {manifest.created}" * bool(manifest.created)),
        f"- plans {_kinds(manifest.targets)}, trained for {', '.join(manifest.devices)}",
        f"- held-out check: {manifest.held_out or 'none'}",
    ]
    return "\n".join([*lines, *(["", manifest.notes] if manifest.notes else [])])
