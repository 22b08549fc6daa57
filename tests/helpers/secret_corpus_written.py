"""A fifth corpus: secrets that the writers of formats have put where they put values (json, csv,
configparser, shlex, urllib, xml, ast, email, plist …), under names that a grammar makes; harmless
are lines of installed packages.

No form is typed here, and no list of names is kept. Values come from `secrets`' and `uuid`'s
makers as programs use them, and from words as people join them. None was ever real."""

import ast
import base64
import configparser
import csv
import html
import http.cookies
import io
import json
import pickletools
import plistlib
import pprint
import random
import re
import shlex
import string
import textwrap
import urllib.parse
import uuid
import xml.etree.ElementTree as ET
from collections.abc import Callable
from email.message import EmailMessage
from functools import cache
from pathlib import Path

Draw = random.Random
Sample = tuple[str, str]
"""Text and the secret in it."""

OWNERS = (
    "db", "postgres", "smtp", "stripe", "github", "internal", "prod", "s3", "grafana", "kafka",
    "model_hub", "billing", "admin", "ci", "search", "jira", "vpn", "backup", "", "",
)  # fmt: skip
CORES = (
    "password", "passwd", "secret", "token", "api_key", "access_key", "secret_key", "auth_token",
    "client_secret", "private_key", "passphrase", "access_token", "pwd", "credentials",
)  # fmt: skip
WORDS = (
    "copper", "violet", "harbor", "Falcon", "Pepper", "Summer", "bicycle", "Thunder", "maple",
    "Orion", "biscuit", "Rocket", "canyon", "walnut", "Ginger", "Comet",
)  # fmt: skip
SETTINGS = {"host": "db-1", "port": 5432, "timeout_s": 30, "retries": 3, "debug": False}


def name_of(draw: Draw) -> str:
    """A telling name in one of the ways that languages write names."""
    parts = [part for part in (draw.choice(OWNERS), *draw.choice(CORES).split("_")) if part]
    parts = [word for part in parts for word in part.split("_")]
    camel = parts[0] + "".join(word.capitalize() for word in parts[1:])
    return draw.choice(
        ["_".join(parts), "_".join(parts).upper(), camel, "-".join(parts), ".".join(parts)]
    )


def value_of(draw: Draw) -> str:
    words, digits = [draw.choice(WORDS) for _ in range(3)], str(draw.randrange(100, 99999))
    symbols = string.ascii_letters + string.digits + "!@#$%^&*+=?-_"
    made: tuple[Callable[[], str], ...] = (
        lambda: draw.randbytes(16).hex(),
        lambda: draw.randbytes(24).hex(),
        lambda: base64.urlsafe_b64encode(draw.randbytes(24)).decode(),
        lambda: base64.b64encode(draw.randbytes(32)).decode(),
        lambda: str(uuid.UUID(int=draw.getrandbits(128), version=4)),
        lambda: "".join(draw.choices(string.ascii_letters + string.digits, k=20)),
        lambda: "".join(draw.choices(string.ascii_lowercase + string.digits, k=26)),
        lambda: "".join(draw.choices(symbols, k=16)),
        lambda: words[0] + digits + draw.choice("!?$&"),
        lambda: "-".join([*words, digits]),
        lambda: words[0].capitalize() + draw.choice("@#_") + words[1] + digits,
        lambda: f"{draw.choice(['acme', 'zx', 'tok', 'pk9', 'nvx'])}_{draw.randbytes(20).hex()}",
    )
    while True:
        value = draw.choice(made)()
        if re.search(r"\d", value) and re.search(r"[A-Za-z]", value):
            return value


def _settings(draw: Draw, name: str, value: str) -> dict[str, object]:
    items = [*draw.sample([*SETTINGS.items()], 3), (name, value)]
    draw.shuffle(items)
    return dict(items)


def _ini(name: str, value: str, draw: Draw) -> str:
    parser, file = configparser.RawConfigParser(), io.StringIO()
    parser[draw.choice(["service", "default", name.partition("_")[0]])] = {
        key: str(item) for key, item in _settings(draw, name, value).items()
    }
    parser.write(file, space_around_delimiters=draw.random() < 0.5)
    return file.getvalue()


def _csv(name: str, value: str, draw: Draw) -> str:
    file = io.StringIO()
    writer = csv.writer(file, quoting=draw.choice([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]))
    writer.writerow([name, value])
    return file.getvalue()


def _xml(name: str, value: str, draw: Draw) -> str:
    root = ET.Element("configuration")
    tag = re.sub(r"[^\w.-]", "_", name)
    if draw.random() < 0.5:
        ET.SubElement(root, tag).text = value
    else:
        ET.SubElement(root, "add", {"key": name, "value": value})
    return ET.tostring(root, encoding="unicode")


def _yaml(name: str, value: str, draw: Draw) -> str:
    import yaml

    settings = _settings(draw, name, value)
    styles: list[object] = [settings, {"env": [{"name": name, "value": value}]}, {"x": settings}]
    return str(
        yaml.safe_dump(
            draw.choice(styles),
            default_flow_style=draw.choice([False, None]),
            sort_keys=False,
            default_style=draw.choice([None, None, '"']),
        )
    )


def _python(name: str, value: str, draw: Draw) -> str:
    """Statements that `ast` writes."""
    simple = re.sub(r"\W", "_", name)
    it = ast.Constant(value)
    call = ast.Call(ast.Name("connect"), [ast.Constant("db-1")], [ast.keyword(simple, it)])
    wrap = ast.Call(ast.Name("SecretStr"), [it], [])
    store = ast.Attribute(ast.Name("os"), "environ")
    trees: list[ast.stmt] = [
        ast.Assign([ast.Name(simple)], it, lineno=1),
        ast.Assign([ast.Name(simple)], wrap, lineno=1),
        ast.AnnAssign(ast.Name(simple), ast.Name("str"), it, 1),
        ast.Assign([ast.Attribute(ast.Name("self"), simple)], it, lineno=1),
        ast.Assign([ast.Subscript(store, ast.Constant(name))], it, lineno=1),
        ast.Expr(call),
        ast.Expr(ast.Call(ast.Attribute(store, "setdefault"), [ast.Constant(name), it], [])),
        ast.Assign([ast.Name("x")], ast.Dict([ast.Constant(name)], [it]), lineno=1),
        ast.If(ast.Compare(ast.Name(simple), [ast.Eq()], [it]), [ast.Pass()], []),
        ast.Return(ast.Dict([ast.Constant(name), ast.Constant("port")], [it, ast.Constant(3)])),
        ast.Assign(
            [ast.Name(simple)],
            ast.BoolOp(
                ast.Or(), [ast.Call(ast.Attribute(store, "get"), [ast.Constant(name)], []), it]
            ),
            lineno=1,
        ),
        ast.Assign([ast.Name(simple)], ast.Constant(value.encode()), lineno=1),
    ]
    return ast.unparse(ast.fix_missing_locations(draw.choice(trees)))


def _shell(name: str, value: str, draw: Draw) -> str:
    simple = re.sub(r"\W", "_", name)
    assigned = f"{simple}={shlex.quote(value)}"
    option = "--" + name.replace("_", "-").replace(".", "-").lower()
    run = ["docker", "run", "-e", f"{simple}={value}", "img"]
    commands = [
        f"export {assigned}", f"{assigned} ./run.sh", shlex.join(run),
        shlex.join(["deploy", option, value, "--yes"]),
        shlex.join(["deploy", f"{option}={value}", "--yes"]),
        f"declare -x {assigned}", f"env {assigned} python train.py",
    ]  # fmt: skip
    return draw.choice(commands)


def _address(name: str, value: str, draw: Draw) -> str:
    quoted = urllib.parse.quote(value, safe="")
    kinds = ("postgresql", "mysql+pymysql", "https", "redis", "amqps", "mongodb", "sftp")
    return f"{draw.choice(kinds)}://{draw.choice(WORDS)}:{quoted}@host-3:5432/x"


def _query(name: str, value: str, draw: Draw) -> str:
    query = urllib.parse.urlencode(_settings(draw, re.sub(r"\W", "_", name), value))
    return draw.choice([f"https://api.service.io/v2?{query}", query])


def _header(name: str, value: str, draw: Draw) -> str:
    message = EmailMessage()
    kind = draw.choice(["Authorization", "X-" + name.replace("_", "-").replace(".", "-")])
    message["Host"] = "api.service.io"
    message[kind] = f"Bearer {value}" if kind == "Authorization" else value
    return message.as_string(maxheaderlen=0)


def _cookie(name: str, value: str, draw: Draw) -> str:
    cookie = http.cookies.SimpleCookie()
    cookie["auth_token"] = base64.urlsafe_b64encode(value.encode()).decode().rstrip("=")
    return cookie.output()


def _basic(name: str, value: str, draw: Draw) -> str:
    pair = base64.b64encode(f"{draw.choice(WORDS)}:{value}".encode()).decode()
    headers = {"Authorization": f"Basic {pair}"}
    return draw.choice([json.dumps(headers), f"headers = {headers!r}"])


def _log(name: str, value: str, draw: Draw) -> str:
    """A line of a log in which a settings object is shown."""
    shown = draw.choice([repr(_settings(draw, name, value)), f"Settings({name}={value!r})"])
    return f"2026-11-02 10:11:12,345 DEBUG loaded {shown}"


def _in_a_string(name: str, value: str, draw: Draw) -> str:
    return "body = " + json.dumps(json.dumps({name: value}))


def _commented(name: str, value: str, draw: Draw) -> str:
    inner = draw.choice([_json, _python, _shell, _ini])(name, value, draw)
    return textwrap.indent(inner, draw.choice(["# ", "// ", "    # "]))


def _json(name: str, value: str, draw: Draw) -> str:
    return json.dumps(_settings(draw, name, value), indent=draw.choice([None, 2]))


def _toml(name: str, value: str, draw: Draw) -> str:
    lines = [f"{key} = {json.dumps(item)}" for key, item in _settings(draw, name, value).items()]
    return "\n".join(["[service]", *lines])


def _plist(name: str, value: str, draw: Draw) -> str:
    return plistlib.dumps({name: value}).decode()


def _printed(name: str, value: str, draw: Draw) -> str:
    return pprint.pformat(_settings(draw, name, value), width=draw.choice([20, 100]))


WRITERS = (
    _json, _json, _yaml, _yaml, _yaml, _toml, _ini, _ini, _csv, _xml, _plist, _python, _python,
    _python, _python, _shell, _shell, _shell, _address, _query, _header, _cookie, _basic, _log,
    _in_a_string, _commented, _printed,
)  # fmt: skip


def secrets(seed: int = 0, count: int = 400) -> list[Sample]:
    draw, found = random.Random(f"written {seed}"), list[Sample]()
    while len(found) < count:
        value = value_of(draw)
        text = draw.choice(WRITERS)(name_of(draw), value, draw)
        forms = (
            value,
            urllib.parse.quote(value, safe=""),
            urllib.parse.quote_plus(value),
            html.escape(value),
        )
        secret = next((form for form in forms if form in text), None)
        if secret is None and ("Cookie" in text or "Basic" in text):
            secret = max(re.findall(r"[A-Za-z0-9+/_-]{8,}={0,2}", text), key=len)
        if secret is not None:
            found.append((text, secret))
    return found


@cache
def _lines() -> tuple[str, ...]:
    """Lines of installed packages in which something like a name of a key stands, and any others,
    half and half: what a detector could stumble over. Nothing of a person (those are hidden)."""
    site = Path(pickletools.__file__).parent
    draw, named, others = random.Random(1), list[str](), list[str]()
    files = sorted(site.glob("*.py")) + sorted(site.glob("[a-z]*/*.py"))
    for file in draw.sample(files, min(len(files), 300)):
        for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
            if len(line.strip()) > 8 and "@" not in line:
                telling = re.search(r"(?i)key|token|passw|secret|auth|pwd|credential", line)
                (named if telling else others).append(line)
    half = min(len(named), 4000)
    return (*draw.sample(named, half), *draw.sample(others, half))


def harmless(seed: int = 0, count: int = 400) -> list[str]:
    return random.Random(f"harmless {seed}").sample(_lines(), count)
