"""Who made a skill, a policy, a recording or accepted evidence: signatures by OpenSSH's own tool.

A statement lies beside what it speaks of (`folder/kernel-lsp.signed`, `file.signed`): its kind,
name, release and the hash of every file; `ssh-keygen -Y sign` makes `….signed.sig` of it. Whose
keys are trusted says a file in OpenSSH's format of allowed signers, in the user's data folder or
where KERNEL_LSP_SIGNERS points; revoked keys lie beside it. Releases only rise: an older one, or
another content under the same number, is refused unless it is asked for. A signature says who made
something, never what it does: what is signed is confined as all else. Standard library only. Not
covered: how keys are kept (OpenSSH's business)."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernel_lsp import foreign
from kernel_lsp.errors import SignatureError, Unsigned
from kernel_lsp.files import replace_file

NAMESPACE = "kernel-lsp"
"""What our signatures are good for: one that was made for git or for a file is none of ours."""
STATEMENT, SUFFIX, SIG = "kernel-lsp.signed", ".signed", ".sig"
KINDS = ("skill", "policy", "recording", "evidence")
SCHEMA = 1
MAX_STATEMENT_BYTES = 2**20
MAX_FILE_BYTES = 2**28
MAX_FILES = 2_000
TIMEOUT_S = 20.0
SIGNERS, REVOKED, SEEN = "allowed_signers", "revoked_keys", "releases.json"
_PRINCIPAL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+-]{0,99}")
_PUBLIC_KEY = re.compile(r"((?:sk-)?(?:ssh|ecdsa)-[a-z0-9@.-]+) ([A-Za-z0-9+/=]{20,20000})(?: .*)?")
_INSTALL = "install OpenSSH's client (Debian: apt install openssh-client)"
_IGNORED = frozenset(["__pycache__"])


@dataclass(frozen=True, kw_only=True, slots=True)
class Signed:
    """A signature that holds."""

    path: str
    kind: str
    name: str
    release: int
    signer: str
    """The name that the key is trusted under."""
    digest: str
    """Of the statement: of all that was signed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Signer:
    """A line of the allowed signers."""

    name: str
    key: str
    fingerprint: str
    revoked: bool


def refuses_unsigned() -> bool:
    """Whether what is unsigned is refused, because in CI nobody can be asked.
    KERNEL_LSP_UNSIGNED=yes says that it was."""
    in_ci = os.environ.get("CI", "").lower() not in ("", "0", "false", "no")
    return in_ci and os.environ.get("KERNEL_LSP_UNSIGNED", "").lower() not in ("1", "true", "yes")


class Keyring:
    """The signers that one user trusts, and the releases that were seen of each thing."""

    def __init__(self, data_dir: Path | str) -> None:
        self._folder = Path(data_dir) / "signers"
        named = os.environ.get("KERNEL_LSP_SIGNERS")
        self.signers_file = Path(named) if named else self._folder / SIGNERS
        self.revoked_file = self.signers_file.with_name(REVOKED)

    # --- keys ----------------------------------------------------------------------------------

    def signers(self) -> list[Signer]:
        """All signers that this user believes. Raises SignatureError where the file cannot be
        read."""
        revoked = set(_lines(self.revoked_file))
        found = []
        for line in _lines(self.signers_file):
            words = line.split()
            key = next(
                (
                    " ".join(words[n : n + 2])
                    for n in (1, 2)
                    if _PUBLIC_KEY.fullmatch(" ".join(words[n : n + 2]))
                ),
                "",
            )
            found.append(
                Signer(
                    name=words[0], key=key, fingerprint=_fingerprint(key), revoked=key in revoked
                )
            )
        return found

    def trust(self, name: str, public_key: Path) -> Signer:
        """Believe from now on what this key signs. Raises SignatureError: no name, no public key,
        revoked."""
        if not _PRINCIPAL.fullmatch(name):
            raise SignatureError(
                f"{name!r} is no name of a signer", "take letters, digits and . _ @ + -"
            )
        key = _public_key(public_key)
        if key in _lines(self.revoked_file):
            raise SignatureError(
                f"the key of {public_key} was revoked", f"take it out of {self.revoked_file}"
            )
        if not any((one.name, one.key) == (name, key) for one in self.signers()):
            _append(self.signers_file, f'{name} namespaces="{NAMESPACE}" {key}')
        return Signer(name=name, key=key, fingerprint=_fingerprint(key), revoked=False)

    def revoke(self, name: str) -> list[Signer]:
        """Believe none of a signer's keys any more, also for what was signed before. ``name``: of
        the signer, or a fingerprint. Raises SignatureError."""
        found = [one for one in self.signers() if name in (one.name, one.fingerprint)]
        if not found:
            raise SignatureError(
                f"nobody is trusted as {name}", "`kernel-lsp keys list` shows the names"
            )
        for one in found:
            if not one.revoked:
                _append(self.revoked_file, one.key)
        return found

    # --- signatures ----------------------------------------------------------------------------

    def verify(
        self, path: Path, *, kind: str | None = None, allow_rollback: bool = False
    ) -> Signed:
        """Who has signed what lies here, unchanged. Raises Unsigned where nobody did,
        SignatureError where the signature does not hold: changed, unknown or revoked key, an older
        release than was seen."""
        statement_file = _statement_of(path)
        if not os.path.lexists(statement_file):
            raise Unsigned(
                f"{path} is signed by nobody",
                "`kernel-lsp keys sign` signs it; or look at it and allow it",
            )
        try:
            content = foreign.read_bytes(statement_file, most=MAX_STATEMENT_BYTES)
            signature = foreign.read_bytes(
                statement_file.with_name(statement_file.name + SIG), most=MAX_STATEMENT_BYTES
            )
        except OSError as error:
            raise SignatureError(
                f"the signature of {path} cannot be read: {error.strerror}", _AGAIN
            ) from error
        signer = self._signer_of(content, signature, path)
        statement = _statement(content, path)
        if kind is not None and statement["kind"] != kind:
            raise SignatureError(f"{path} was signed as {statement['kind']}, not as {kind}", _AGAIN)
        _compare(path, statement["files"])
        signed = Signed(
            path=str(path),
            kind=statement["kind"],
            name=statement["name"],
            release=statement["release"],
            signer=signer,
            digest=hashlib.sha256(content).hexdigest(),
        )
        self._rise(signed, allow_rollback=allow_rollback)
        return signed

    def vouches(self, path: Path) -> bool:
        """Whether `verify` holds; nothing is said of why not."""
        try:
            self.verify(path)
        except SignatureError:
            return False
        return True

    def _signer_of(self, content: bytes, signature: bytes, path: Path) -> str:
        if not self.signers_file.is_file():
            cause = f"{path} is signed, and no signer is trusted here"
            raise SignatureError(
                cause, "`kernel-lsp keys trust NAME KEY.pub`, or KERNEL_LSP_SIGNERS=FILE"
            )
        with tempfile.TemporaryDirectory(prefix="kernel-lsp-signature-") as folder:
            file = Path(folder) / "sig"
            file.write_bytes(signature)
            allowed = str(self.signers_file.absolute())
            found = _ssh_keygen("-Y", "find-principals", "-s", str(file), "-f", allowed)
            names = [
                name
                for name in found.stdout.decode(errors="replace").split()
                if _PRINCIPAL.fullmatch(name)
            ]
            if found.returncode != 0 or not names:
                raise SignatureError(
                    f"{path} is signed by a key that is not trusted",
                    "`kernel-lsp keys trust` trusts one",
                )
            command = [
                "-Y",
                "verify",
                "-f",
                allowed,
                "-I",
                names[0],
                "-n",
                NAMESPACE,
                "-s",
                str(file),
            ]
            checked = _ssh_keygen(*command, given=content)
            if checked.returncode == 0 and self.revoked_file.is_file():
                revoked = str(self.revoked_file.absolute())
                if _ssh_keygen(*command, "-r", revoked, given=content).returncode != 0:
                    raise SignatureError(f"{path}: the key of {names[0]} was revoked", _AGAIN)
        if checked.returncode != 0:
            why = checked.stderr.decode(errors="replace").strip()[:200]
            raise SignatureError(f"{path}: the signature does not hold: {why}", _AGAIN)
        return names[0]

    def _rise(self, signed: Signed, *, allow_rollback: bool) -> None:
        """Remember the highest release of each thing; refuse what lies below."""
        file = self._folder / SEEN
        try:
            table = foreign.json_value(foreign.read_bytes(file, most=2**24))
        except FileNotFoundError:
            table = {}
        except (OSError, ValueError) as error:
            raise SignatureError(
                f"{file} cannot be read: {error}", "restore it, or delete it"
            ) from error
        table = table if isinstance(table, dict) else {}
        key = f"{signed.kind}:{signed.name}"
        before = table.get(key)
        if isinstance(before, dict) and not allow_rollback:
            release, digest = int(before.get("release", 0)), before.get("digest")
            if signed.release < release:
                cause = f"{signed.name} is release {signed.release}, and {release} was here before"
                raise SignatureError(cause, "take the newer one; --allow-rollback takes the older")
            if signed.release == release and signed.digest != digest:
                cause = f"{signed.name} has another content than release {release} had before"
                raise SignatureError(
                    cause, "have it signed with a higher --release; --allow-rollback takes it"
                )
        if before != (now := {"release": signed.release, "digest": signed.digest}):
            with contextlib.suppress(OSError):
                # A data folder that cannot be written remembers nothing.
                self._folder.mkdir(parents=True, exist_ok=True)
                replace_file(
                    file, json.dumps({**table, key: now}, indent=1, sort_keys=True).encode()
                )


_AGAIN = "take it anew from whoever made it"


def sign(
    path: Path, *, key: Path, kind: str, name: str | None = None, release: int | None = None
) -> Path:
    """Write statement and signature beside what they speak of; returns the statement's file.

    ``release``: default one more than the statement that is there. Raises SignatureError.
    """
    if kind not in KINDS:
        raise SignatureError(f"{kind} is nothing that is signed", f"allowed: {', '.join(KINDS)}")
    statement_file = _statement_of(path)
    before = 0
    with contextlib.suppress(OSError, SignatureError):
        content = foreign.read_bytes(statement_file, most=MAX_STATEMENT_BYTES)
        before = int(_statement(content, path)["release"])
    record = {
        "schema": SCHEMA,
        "kind": kind,
        "name": name or path.resolve().name,
        "release": before + 1 if release is None else release,
        "files": dict(sorted(_hashes(path))),
    }
    content = (json.dumps(record, indent=1) + "\n").encode()
    _statement(content, path)  # nothing is signed that nobody would take
    with tempfile.TemporaryDirectory(prefix="kernel-lsp-signature-") as folder:
        file = Path(folder) / "statement"
        file.write_bytes(content)
        made = _ssh_keygen(
            "-Y", "sign", "-f", str(key.absolute()), "-n", NAMESPACE, str(file), asks=True
        )
        signature = file.with_name(file.name + SIG)
        if made.returncode != 0 or not signature.is_file():
            why = made.stderr.decode(errors="replace").strip()[-300:]
            raise SignatureError(
                f"{key} signs nothing: {why}", "name a private key, or a public one of your agent"
            )
        try:
            replace_file(
                statement_file.with_name(statement_file.name + SIG), signature.read_bytes()
            )
            replace_file(statement_file, content)
        except OSError as error:
            raise SignatureError(
                f"{statement_file} cannot be written: {error.strerror}", "mend the folder"
            ) from error
    return statement_file


def _statement_of(path: Path) -> Path:
    return path / STATEMENT if path.is_dir() else path.with_name(path.name + SUFFIX)


def _statement(content: bytes, path: Path) -> dict[str, Any]:
    """A statement's fields, checked one by one: who signs may be wrong too."""
    try:
        data = foreign.json_value(content)
        files = data["files"]
        fits = (
            data["schema"] == SCHEMA
            and data["kind"] in KINDS
            and isinstance(data["name"], str)
            and 0 < len(data["name"]) <= 200
            and type(data["release"]) is int
            and 0 < data["release"] < 2**53
            and all(
                isinstance(one, str) and isinstance(digest, str) for one, digest in files.items()
            )
        )
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise SignatureError(f"the statement about {path} cannot be read", _AGAIN) from error
    if not fits:
        raise SignatureError(f"the statement about {path} is none of this version", _AGAIN)
    return dict(data)


def _hashes(path: Path) -> Iterator[tuple[str, str]]:
    """Each file and its hash. Raises SignatureError for links, devices, and too many or too large
    files."""
    try:
        for count, (name, file) in enumerate(_files(path)):
            if count >= MAX_FILES:
                raise SignatureError(
                    f"{path} has more than {MAX_FILES} files", "name a smaller folder"
                )
            if file.is_symlink():
                raise SignatureError(f"{file} is a link", "put the file itself there")
            yield name, hashlib.sha256(foreign.read_bytes(file, most=MAX_FILE_BYTES)).hexdigest()
    except OSError as error:
        raise SignatureError(
            f"{path} cannot be read: {error.strerror}", "mend or leave out the file"
        ) from error


def _files(path: Path) -> Iterator[tuple[str, Path]]:
    if not path.is_dir():
        yield path.name, path
        return
    for folder, folders, names in os.walk(path):
        folders[:] = sorted(set(folders) - _IGNORED)
        linked = [name for name in folders if (Path(folder) / name).is_symlink()]
        for name in [*names, *linked]:
            file = Path(folder) / name
            text = file.relative_to(path).as_posix()
            if text not in (STATEMENT, STATEMENT + SIG):
                yield text, file


def _compare(path: Path, statement: dict[str, str]) -> None:
    here = dict(_hashes(path))
    for name in sorted(statement.keys() | here.keys()):
        if name not in here:
            raise SignatureError(f"{path}: {name[:100]} was signed and is not there", _AGAIN)
        if name not in statement:
            raise SignatureError(f"{path}: {name[:100]} is there and was not signed", _AGAIN)
        if statement[name] != here[name]:
            raise SignatureError(f"{path}: {name[:100]} changed since it was signed", _AGAIN)


def _public_key(file: Path) -> str:
    try:
        text = foreign.read_text(file, most=2**16).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise SignatureError(
            f"{file} cannot be read: {error}", "name a public key (.pub)"
        ) from error
    found = _PUBLIC_KEY.fullmatch(text)
    if found is None or _ssh_keygen("-l", "-f", "-", given=text.encode()).returncode != 0:
        raise SignatureError(
            f"{file} is no public key of OpenSSH's", "name the .pub file of the signer"
        )
    return f"{found[1]} {found[2]}"


def _fingerprint(key: str) -> str:
    """As `ssh-keygen -l` tells it: SHA256:…"""
    import base64

    try:
        digest = hashlib.sha256(base64.b64decode(key.split()[1], validate=True)).digest()
    except (ValueError, IndexError):
        return "unknown"
    return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")


def _lines(file: Path) -> list[str]:
    try:
        text = foreign.read_text(file, most=2**20)
    except FileNotFoundError:
        return []
    except (OSError, UnicodeDecodeError) as error:
        raise SignatureError(
            f"{file} cannot be read: {error}", "mend the file, or name another"
        ) from error
    return [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]


def _append(file: Path, line: str) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        replace_file(file, "".join(f"{one}\n" for one in [*_lines(file), line]).encode())
    except OSError as error:
        raise SignatureError(
            f"{file} cannot be written: {error.strerror}", "mend the folder"
        ) from error


def _ssh_keygen(
    *arguments: str, given: bytes = b"", asks: bool = False
) -> subprocess.CompletedProcess[bytes]:
    """OpenSSH's tool, from the machine's folders, in a neutral place. ``asks``: for a
    passphrase."""
    program = shutil.which("ssh-keygen", path=_MACHINE_PATH) or shutil.which("ssh-keygen")
    if program is None:
        raise SignatureError("signatures need ssh-keygen, which is not here", _INSTALL)
    kept = ("HOME", "SSH_AUTH_SOCK", "SSH_ASKPASS", "DISPLAY", "TERM") if asks else ("HOME",)
    environment = {name: os.environ[name] for name in kept if name in os.environ}
    try:
        return subprocess.run(
            [program, *arguments],
            input=given,
            capture_output=True,
            timeout=None if asks else TIMEOUT_S,
            cwd="/",
            env={**environment, "PATH": _MACHINE_PATH, "LC_ALL": "C"},
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SignatureError(f"ssh-keygen cannot be run: {error}", _INSTALL) from error


_MACHINE_PATH = os.pathsep.join(["/usr/bin", "/bin", "/usr/local/bin", "/opt/homebrew/bin"])
