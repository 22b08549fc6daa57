"""``kernel-lsp team``: skills, policies and measurements that colleagues share by one address."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import typer

from kernel_lsp import config, membership, wire
from kernel_lsp.commands import console, journaling, keys
from kernel_lsp.errors import KernelLspError, TeamAway, TeamError
from kernel_lsp.library import SkillLibrary
from kernel_lsp.membership import Membership
from kernel_lsp.models import PolicyStore
from kernel_lsp.teams import syncing
from kernel_lsp.teams.registry import Registry, TeamInfo
from kernel_lsp.teams.releases import (
    DEFAULT_SHARE,
    KINDS,
    MIN_OWNERS,
    MIN_PAIRS,
    POLICY,
    DecisionKind,
    PooledUplift,
    Release,
    ReleaseStanding,
    chosen,
    pool,
)

app = typer.Typer(
    help="Share skills, policies and measured parameters with colleagues.", no_args_is_help=True
)
AS_JSON = typer.Option(False, "--json", help="One JSON object on standard output.")
ADDRESS = typer.Argument(
    ..., help="postgresql+psycopg://ROLE@HOST/NAME; passwords belong into ~/.pgpass."
)
RELEASE = typer.Argument(..., help="KIND:NAME#NUMBER, or KIND:NAME for the newest; see `status`.")
REASON = typer.Option("", "--reason", help="What `status` will say.")


@dataclass(frozen=True, kw_only=True, slots=True)
class ReleaseRow:
    """One release as `status` shows it."""

    release: Release
    standing: ReleaseStanding
    here: bool
    """In use on this machine."""
    uplift: PooledUplift | None


@app.command()
def init(
    address: str = ADDRESS,
    files: str = typer.Option(
        ..., help="Folder for packed releases that all can write: a path, s3://, gs://, sftp:// …"
    ),
    name: str = typer.Option("team", help="What the team is called."),
    coordinator: list[str] = typer.Option(
        [],
        help="Roles of the server that review; you are one. Reviews take another than the maker.",
    ),
    member: list[str] = typer.Option(
        [], help="Roles of the server that get what members need of its tables."
    ),
) -> None:
    """Make a team in a PostgreSQL: journal, registry, who may decide. Then join it."""
    data_dir = _data_dir()
    try:
        with Registry(address, data_dir) as registry:
            place = files if "://" in files else str(Path(files).absolute())
            registry.found(address, data_dir, name, place, coordinator)
            registry.admit([*coordinator, *member])
    except KernelLspError as error:
        console.fail(error)
    console.write(f"{name} is made; files lie in {place}\n")
    join(address)


@app.command()
def join(address: str = ADDRESS) -> None:
    """Become a member on this machine: its journal goes there, releases and measurements come."""
    data_dir = _data_dir()
    try:
        with Registry(address, data_dir) as registry:
            info = registry.info()
        membership.write_membership(data_dir, Membership(address=address, team=info.name))
    except KernelLspError as error:
        console.fail(error)
    console.write(f"joined {info.name} as {info.role}\n")
    sync(as_json=False)


@app.command()
def admit(
    roles: list[str] = typer.Argument(..., help="Roles of the server, which exist already."),
) -> None:
    """Give roles of the server what members need of the tables. For who made the team."""
    with _registry(_data_dir()) as registry:
        registry.admit(roles)
    console.write(f"{', '.join(roles)} can join: kernel-lsp team join ADDRESS\n")


@app.command()
def leave() -> None:
    """Use nothing of the team any more; what you sent it stays (`kernel-lsp team forget` first)."""
    data_dir = _data_dir()
    try:
        joined = syncing.required_membership(data_dir)
        membership.leave(data_dir)
    except KernelLspError as error:
        console.fail(error)
    console.write(f"left {joined.team}; the journal is on this machine again\n")


@app.command()
def sync(as_json: bool = AS_JSON) -> None:
    """Bring what counts for you, and tell what this machine has measured. Editors do it every
    hour.

    While the registry is away, what was here before stays in use (exit code 2)."""
    data_dir = _data_dir()
    try:
        done = syncing.sync(data_dir)
    except KernelLspError as error:
        _say_last_good(data_dir, error)
        console.fail(error)
    if as_json:
        console.print_json(synced=wire.to_json(done))
        return
    for problem in done.state.problems:
        console.err.print(problem, markup=False, soft_wrap=True)
    names = ", ".join(done.state.releases) or "no releases"
    console.write(f"in use: {names}; parameters of {done.tuning} kinds of sites")
    console.write(f", {done.sent} of them new from here\n" if done.sent else "\n")


@app.command()
def status(as_json: bool = AS_JSON) -> None:
    """The team, every release with its standing and what it is worth, and what counts here."""
    data_dir = _data_dir()
    state = membership.read_state(data_dir)
    try:
        joined = syncing.required_membership(data_dir)
        with Registry(joined.address, data_dir) as registry:
            info, releases = registry.info(), registry.releases()
            rows = [
                ReleaseRow(
                    release=one,
                    standing=one.standing,
                    here=one.id in state.releases,
                    uplift=pool(registry.usage(one)),
                )
                for one in releases
            ]
            excluded = registry.exclusions()
            waiting = {one.id for one in chosen(releases, registry.owner)} - set(state.releases)
    except TeamAway as error:
        if as_json:
            console.print_json(away=str(error), here=wire.to_json(state))
        else:
            _say_last_good(data_dir, error)
            console.err.print(str(error), markup=False, soft_wrap=True)
        raise typer.Exit(console.EXIT_CANNOT) from None
    except KernelLspError as error:
        console.fail(error)
    if as_json:
        console.print_json(
            team=wire.to_json(info), releases=wire.to_json(rows), excluded=excluded,
            here=wire.to_json(state), waiting=sorted(waiting),
        )  # fmt: skip
        return
    console.write(_status_text(info, rows, excluded))
    for problem in state.problems:
        console.write(f"not used here: {problem}\n")
    if waiting:
        console.write(f"`kernel-lsp team sync` brings {', '.join(sorted(waiting))}\n")


@app.command()
def push(
    what: str = typer.Argument(
        ..., help="A folder (a skill with its SKILL.md, a policy), or a name in your own library."
    ),
    key: Path = typer.Option(
        keys.DEFAULT_KEY, "--key", help="Your private key, or the public one of one in the agent."
    ),
) -> None:
    """Propose a skill or a policy to the team, signed by you. A coordinator reviews it."""
    data_dir = _data_dir()
    try:
        kind, name, folder = _find(data_dir, what)
        release = syncing.push(data_dir, folder, kind=kind, name=name, key=key.expanduser())
    except KernelLspError as error:
        console.fail(error)
    console.write(f"{release.id} is proposed: `kernel-lsp team review {release.id}`\n")


@app.command()
def review(
    release: str = RELEASE,
    approve: bool = typer.Option(False, "--approve", help="Give it to a share of the users."),
    refuse: bool = typer.Option(False, "--refuse", help="It goes to nobody."),
    share: float = typer.Option(
        DEFAULT_SHARE, min=0.01, max=1.0, help="Of users who try it, always the same ones."
    ),
    reason: str = REASON,
) -> None:
    """Look at a proposal: its files and their signature; then approve or refuse it."""
    data_dir = _data_dir()
    with _decision(data_dir, release) as (registry, found):
        if approve == refuse:
            console.write(syncing.preview(data_dir, registry.info().files, found) + "\n")
            console.write("say --approve or --refuse\n")
            return
        if approve:
            syncing.preview(data_dir, registry.info().files, found)  # raises where it does not hold
            registry.decide(found, DecisionKind.APPROVE, share=share, reason=reason)
            console.write(f"{found.id} goes to {share:.0%} of the users with their next sync\n")
        else:
            registry.decide(found, DecisionKind.REFUSE, reason=reason)
            console.write(f"{found.id} is refused\n")


@app.command()
def promote(
    release: str = RELEASE,
    anyway: bool = typer.Option(
        False, "--anyway", help="Although no uplift was shown; --reason says why."
    ),
    reason: str = REASON,
) -> None:
    """Give a canary to everybody. A skill's uplift at work must hold, a policy's held-out check."""
    data_dir = _data_dir()
    with _decision(data_dir, release) as (registry, found):
        worth = pool(registry.usage(found))
        holds = found.better if found.kind == POLICY else worth is not None and worth.holds
        if not holds and not (anyway and reason):
            need = f"{MIN_PAIRS} pairs of {MIN_OWNERS} users whose interval is above 1 are needed"
            cause = f"no uplift of {found.id} was shown: {worth or 'nothing was measured'}"
            raise TeamError(cause, f"{need}; or --anyway with a --reason")
        why = reason or (found.evidence if found.kind == POLICY else f"uplift {worth}")
        registry.decide(found, DecisionKind.PROMOTE, reason=why)
        console.write(f"{found.id} goes to everybody with their next sync: {why}\n")


@app.command()
def rollback(release: str = RELEASE, reason: str = REASON) -> None:
    """Withdraw a release from everybody; the promoted one before it counts again."""
    data_dir = _data_dir()
    with _decision(data_dir, release, running=True) as (registry, found):
        registry.decide(found, DecisionKind.WITHDRAW, reason=reason)
        before = next(
            (
                one.id
                for one in reversed(registry.releases())
                if (one.kind, one.name) == (found.kind, found.name)
                and one.standing is ReleaseStanding.PROMOTED
            ),
            "none",
        )
        console.write(f"{found.id} is withdrawn; in use with the next sync: {before}\n")


@app.command()
def exclude(
    role: str = typer.Argument(..., help="A role of the server."), reason: str = REASON
) -> None:
    """What a member has measured counts for nobody any more, e.g. of a broken or poisoned
    machine."""
    with _registry(_data_dir()) as registry:
        registry.exclude(role, reason)
    console.write(f"measurements of {role} count no more\n")


@app.command()
def forget(as_json: bool = AS_JSON) -> None:
    """Erase what this machine sent the team: journal, measurements, proposals nobody approved.

    Training leaves out your rows of data sets that were exported before. What was released under
    your name stays until a coordinator withdraws it."""
    data_dir = _data_dir()
    settings, _ = config.load(Path.cwd())
    try:
        joined = syncing.required_membership(data_dir)
        with journaling.journal(settings) as journal:
            gone = journal.forget(everything=True)
        with Registry(joined.address, data_dir) as registry:
            rows = registry.forget()
            role = registry.info().role
            left = [
                one.id
                for one in registry.releases()
                if one.pushed_by == role and one.standing is not ReleaseStanding.WITHDRAWN
            ]
    except KernelLspError as error:
        console.fail(error)
    counts = {"events": gone.events, "proposals": gone.proposals, **rows}
    if as_json:
        console.print_json(forgotten=counts, released=left)
        return
    console.write(", ".join(f"{number} {name}" for name, number in counts.items()) + " erased\n")
    if left:
        console.write(f"released, so a coordinator withdraws it: {', '.join(left)}\n")


# --- parts ---------------------------------------------------------------------------------------


def _data_dir() -> Path:
    return Path(config.load(Path.cwd())[0].data_dir)


@contextmanager
def _registry(data_dir: Path) -> Iterator[Registry]:
    """Of the team that this machine has joined. What goes wrong ends the command."""
    try:
        joined = syncing.required_membership(data_dir)
        with Registry(joined.address, data_dir) as registry:
            yield registry
    except KernelLspError as error:
        console.fail(error)


@contextmanager
def _decision(
    data_dir: Path, named: str, *, running: bool = False
) -> Iterator[tuple[Registry, Release]]:
    """The registry and the release that is meant; ``running``: of a name without a number the
    newest that some user has."""
    with _registry(data_dir) as registry:
        yield registry, _named(registry.releases(), named, running=running)


def _named(releases: Iterable[Release], named: str, *, running: bool) -> Release:
    """Raises TeamError."""
    ends = (ReleaseStanding.CANARY, ReleaseStanding.PROMOTED)
    found = [
        one
        for one in releases
        if named == one.id
        or (named == f"{one.kind}:{one.name}" and (not running or one.standing in ends))
    ]
    if not found:
        raise TeamError(f"there is no {named}", "`kernel-lsp team status` lists the releases")
    return found[-1]


def _find(data_dir: Path, what: str) -> tuple[str, str, Path]:
    """Kind, name and folder. Raises KernelLspError."""
    folder = Path(what)
    if folder.is_dir():
        kind = keys.kind_of(folder).value
        if kind not in KINDS:
            raise TeamError(f"{what} is a {kind}", f"what is shared: {', '.join(KINDS)}")
        if kind != POLICY:
            return kind, folder.resolve().name, folder
        from kernel_lsp.models import manifest

        return kind, manifest.read(folder).name, folder
    learned = SkillLibrary(data_dir).find(what)
    if learned is not None:
        return "skill", what, Path(learned.skill.path)
    model = PolicyStore(data_dir).get(what)
    assert model.manifest is not None
    return POLICY, model.manifest.name, model.folder


def _say_last_good(data_dir: Path, error: KernelLspError) -> None:
    state = membership.read_state(data_dir)
    if isinstance(error, TeamAway) and state.time:
        when = datetime.fromtimestamp(state.time, UTC).isoformat(timespec="minutes")
        names = ", ".join(state.releases) or "no releases"
        console.err.print(f"in use since {when}: {names}", markup=False, soft_wrap=True)


def _status_text(info: TeamInfo, rows: Iterable[ReleaseRow], excluded: dict[str, str]) -> str:
    lines = [
        f"{info.name}: you are {info.role}; coordinators {', '.join(info.coordinators)}; files in "
        f"{info.files}"
    ]
    for row in rows:
        one = row.release
        where = f" to {one.share:.0%}" if row.standing is ReleaseStanding.CANARY else ""
        worth = f"; at work {row.uplift}" if row.uplift else ""
        here = "* " if row.here else "  "
        why = f"; {one.decisions[-1].reason}" if one.decisions and one.decisions[-1].reason else ""
        age = _age(one.time)
        lines.append(
            f"{here}{one.id}  {row.standing.value}{where}, by {one.pushed_by} {age}{worth}{why}"
        )
    lines += [f"excluded: {role} ({why or 'no reason given'})" for role, why in excluded.items()]
    return "\n".join(lines) + "\n"


def _age(when: float) -> str:
    days = math.floor((time.time() - when) / 86400)
    return "today" if days <= 0 else f"{days} days ago"
