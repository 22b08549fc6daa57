"""The sixth to the eighteenth corpus: samples as people write them, in files beside this one.
Two of ten styles of repositories each were written before their writer had read a rule; the later
ones by somebody who had, before an answer to them was read (ninth, tenth: as prompts hold them).
The eleventh and the twelfth are halves, drawn by lot, of one that was written before its writer had
read a rule, an earlier corpus or a test; so are the thirteenth and the fourteenth, of every other
sample, and the fifteenth and the sixteenth, by lot. The seventeenth and the eighteenth are every
other sample of one whose writer had seen half of the second look. None is changed afterwards.

In a file ``⟪ ⟫`` stand around the secret, ``‹kind›`` is drawn, ``⏎`` is a new line, and a line that
begins with ``##`` names a style. No value was ever real."""

import base64
import json
import random
import re
import string
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).with_name("secret_texts")
ALNUM = string.ascii_letters + string.digits
LOWER = string.ascii_lowercase + string.digits
UPPER = string.ascii_uppercase + string.digits
URL = ALNUM + "-_"
HEX = "0123456789abcdef"
SALT = ALNUM + "!#$%^&*(-_=+)"
ALPHABETS = {
    "alnum": ALNUM, "alpha": string.ascii_letters, "lower": LOWER, "upper": UPPER, "url": URL,
    "hex": HEX, "digits": string.digits, "secret": ALNUM + "/+", "salt": SALT,
    "upperhex": HEX.upper(), "bcrypt": ALNUM + "./", "binary": "01",
    "base": string.ascii_uppercase + "234567",
}  # fmt: skip
WORDS = (
    "Autumn", "copper", "Falcon", "harbor", "Kernel", "lemon", "Meadow", "orange", "Pepper",
    "raven", "Summer", "tiger", "Velvet", "willow", "Zurich", "biscuit",
)  # fmt: skip
TAILS = ("!", "#", "$", "?", "*", "!!", "@", "%", "")
Draw = random.Random


@dataclass(frozen=True, kw_only=True, slots=True)
class MarkedSample:
    style: str
    text: str
    secret: str
    """Empty for a harmless one."""


def read(name: str, seed: int = 0) -> list[MarkedSample]:
    """The samples of one file, ``sixth-secrets`` for example."""
    found, style = list[MarkedSample](), ""
    for line in (HERE / f"{name}.txt").read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            style = line[3:]
        elif line:
            draw = random.Random(f"{name} {seed} {len(found)}")
            parts = re.split("‹([^›]+)›", line.replace("⏎", "\n"))
            parts[1::2] = (_value(kind, draw) for kind in parts[1::2])
            text = "".join(parts)
            before, _, rest = text.partition("⟪")
            secret, _, after = rest.partition("⟫")
            found.append(MarkedSample(style=style, text=before + secret + after, secret=secret))
    return found


def _value(kind: str, draw: Draw) -> str:
    if made := MADE.get(kind):
        return made(draw)
    if kind.startswith("b64of"):
        return _base64(draw, int(kind[5:]))
    name, length = re.fullmatch(r"([a-z]+)(\d+)", kind).groups()  # type: ignore[union-attr]
    if name.endswith("hexcolon"):
        pairs = (f"{draw.randrange(256):02x}" for _ in range(int(length)))
        return ":".join(pair.upper() if name[0] == "u" else pair for pair in pairs)
    return "".join(draw.choices(ALPHABETS[name], k=int(length)))


def _base64(draw: Draw, size: int) -> str:
    return base64.b64encode(draw.randbytes(size)).decode()


def _encoded(value: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


def _password(draw: Draw) -> str:
    """As people make them, or as a manager of passwords does."""
    if draw.random() < 0.3:
        return "".join(draw.choices(ALNUM + "!#%*+-=?_", k=draw.randrange(10, 20)))
    first, second = draw.sample(WORDS, 2)
    return draw.choice((first, first + second)) + str(draw.randrange(10000)) + draw.choice(TAILS)


def _jwt(draw: Draw) -> str:
    claims = _encoded({"sub": str(draw.randrange(10**6)), "exp": 1800000000})
    signed = base64.urlsafe_b64encode(draw.randbytes(32)).decode().rstrip("=")
    return f"{_encoded({'alg': 'HS256', 'typ': 'JWT'})}.{claims}.{signed}"


def _lines(draw: Draw) -> str:
    text = _base64(draw, 600)
    return "\n".join(text[at : at + 64] for at in range(0, len(text), 64))


def _basic(draw: Draw) -> str:
    return base64.b64encode(f"trainer:{_password(draw)}".encode()).decode()


MADE: dict[str, Callable[[Draw], str]] = {
    "pw": _password,
    "pwurl": lambda draw: re.sub(r"\W", "", _password(draw)),
    "b64pw": lambda draw: base64.b64encode(_password(draw).encode()).decode(),
    "b64url32": lambda draw: base64.urlsafe_b64encode(draw.randbytes(32)).decode().rstrip("="),
    "b64raw32": lambda draw: _base64(draw, 32).rstrip("="),
    "basic": _basic,
    "fernet": lambda draw: base64.urlsafe_b64encode(draw.randbytes(32)).decode(),
    "jwt": _jwt,
    "jwtlike": lambda draw: base64.b64encode(
        json.dumps({"api_address": "https://app.lab", "api_key": str(_uuid(draw))}).encode()
    ).decode(),
    "pem": _lines,
    "pemescaped": lambda draw: _lines(draw).replace("\n", "\\n"),
    "uuid": lambda draw: _uuid(draw),
    "upperuuid": lambda draw: _uuid(draw).upper(),
}


def _uuid(draw: Draw) -> str:
    return str(uuid.UUID(bytes=draw.randbytes(16), version=4))
