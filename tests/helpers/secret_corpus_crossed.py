"""A fourth corpus of secrets: values of services crossed with the forms of many languages and
tools, drawn by a seed; and harmless text of the same forms.

`VALUES` says what services hand out, `FORMS` where people leave it. A form names the value
`{v}`; ``N`` stands for a telling name. Values are drawn anew: none was ever real."""

import base64
import json
import random
import re
import string
import urllib.parse
import uuid
from collections.abc import Callable

AN = string.ascii_letters + string.digits
LOW = string.ascii_lowercase + string.digits
UP = string.ascii_uppercase + string.digits
HEX = "0123456789abcdef"
URL_SAFE = AN + "-_"
Draw = random.Random
Sample = tuple[str, str]
"""Text and the secret in it."""


def some(draw: Draw, alphabet: str, length: int) -> str:
    """Random text in which a digit and letters of both kinds stand, where there are such."""
    while True:
        text = "".join(draw.choices(alphabet, k=length))
        wanted = (string.digits, string.ascii_lowercase, string.ascii_uppercase)
        if all(set(text) & set(kind) for kind in wanted if set(alphabet) & set(kind)):
            return text


PROVIDERS: dict[str, Callable[[Draw], str]] = {
    "github": lambda d: "ghp_" + some(d, AN, 36),
    "github app": lambda d: "ghs_" + some(d, AN, 36),
    "github fine": lambda d: "github_pat_" + some(d, AN, 22) + "_" + some(d, AN, 59),
    "gitlab": lambda d: "glpat-" + some(d, URL_SAFE, 20),
    "gitlab deploy": lambda d: "gldt-" + some(d, URL_SAFE, 20),
    "openai": lambda d: "sk-" + some(d, AN, 20) + "T3BlbkFJ" + some(d, AN, 20),
    "openai project": lambda d: "sk-proj-" + some(d, URL_SAFE, 74),
    "anthropic": lambda d: "sk-ant-api03-" + some(d, URL_SAFE, 93) + "AA",
    "openrouter": lambda d: "sk-or-v1-" + some(d, HEX, 64),
    "huggingface": lambda d: "hf_" + some(d, string.ascii_letters, 34),
    "groq": lambda d: "gsk_" + some(d, AN, 52),
    "replicate": lambda d: "r8_" + some(d, AN, 37),
    "perplexity": lambda d: "pplx-" + some(d, AN, 48),
    "nvidia": lambda d: "nvapi-" + some(d, URL_SAFE, 64),
    "slack bot": lambda d: (
        f"xoxb-{d.randrange(10**11, 10**12)}-{d.randrange(10**12, 10**13)}-" + some(d, AN, 24)
    ),
    "slack app": lambda d: "xapp-1-A" + some(d, UP, 10) + "-" + "1234567890123-" + some(d, HEX, 64),
    "stripe": lambda d: "sk_live_" + some(d, AN, 24),
    "stripe restricted": lambda d: "rk_live_" + some(d, AN, 24),
    "stripe hook": lambda d: "whsec_" + some(d, AN, 32),
    "aws id": lambda d: "AKIA" + some(d, string.ascii_uppercase + "234567", 16),
    "google": lambda d: "AIza" + some(d, URL_SAFE, 35),
    "google oauth": lambda d: "GOCSPX-" + some(d, URL_SAFE, 28),
    "google token": lambda d: "ya29." + some(d, URL_SAFE, 120),
    "sendgrid": lambda d: "SG." + some(d, URL_SAFE, 22) + "." + some(d, URL_SAFE, 43),
    "mailgun": lambda d: "key-" + some(d, HEX, 32),
    "mailchimp": lambda d: some(d, HEX, 32) + "-us14",
    "twilio": lambda d: "SK" + some(d, HEX, 32),
    "telegram": lambda d: f"{d.randrange(10**9, 10**10)}:AA" + some(d, URL_SAFE, 33),
    "discord": lambda d: "M" + some(d, AN, 25) + "." + some(d, AN, 6) + "." + some(d, URL_SAFE, 38),
    "npm": lambda d: "npm_" + some(d, AN, 36),
    "pypi": lambda d: "pypi-AgEIcHlwaS5vcmc" + some(d, URL_SAFE, 120),
    "docker": lambda d: "dckr_pat_" + some(d, URL_SAFE, 27),
    "digitalocean": lambda d: "dop_v1_" + some(d, HEX, 64),
    "databricks": lambda d: "dapi" + some(d, HEX, 32),
    "shopify": lambda d: "shpat_" + some(d, HEX, 32),
    "square": lambda d: "EAAA" + some(d, URL_SAFE, 60),
    "vault": lambda d: "hvs." + some(d, URL_SAFE, 90),
    "terraform": lambda d: some(d, AN, 14) + ".atlasv1." + some(d, URL_SAFE, 64),
    "grafana": lambda d: "glsa_" + some(d, AN, 32) + "_" + some(d, HEX, 8),
    "newrelic": lambda d: "NRAK-" + some(d, UP, 27),
    "linear": lambda d: "lin_api_" + some(d, AN, 40),
    "notion": lambda d: "ntn_" + some(d, AN, 46),
    "postman": lambda d: "PMAK-" + some(d, HEX, 24) + "-" + some(d, HEX, 34),
    "atlassian": lambda d: "ATATT3xFfGF0" + some(d, URL_SAFE, 180),
    "airtable": lambda d: "pat" + some(d, AN, 14) + "." + some(d, HEX, 64),
    "figma": lambda d: "figd_" + some(d, URL_SAFE, 40),
    "supabase": lambda d: "sbp_" + some(d, HEX, 40),
    "pulumi": lambda d: "pul-" + some(d, HEX, 40),
    "rubygems": lambda d: "rubygems_" + some(d, HEX, 48),
    "tailscale": lambda d: "tskey-auth-" + some(d, AN, 17) + "-" + some(d, AN, 32),
    "age": lambda d: "AGE-SECRET-KEY-1" + some(d, "QPZRY9X8GF2TVDW0S3JN54KHCE6MUA7L", 58),
    "planetscale": lambda d: "pscale_tkn_" + some(d, URL_SAFE, 43),
    "doppler": lambda d: "dp.pt." + some(d, AN, 43),
    "fly": lambda d: "fo1_" + some(d, URL_SAFE, 43),
    "buildkite": lambda d: "bkua_" + some(d, HEX, 40),
    "sentry": lambda d: "sntrys_" + some(d, AN, 60),
    "dynatrace": lambda d: "dt0c01." + some(d, UP, 24) + "." + some(d, UP, 64),
    "adobe": lambda d: "p8e-" + some(d, LOW, 32),
    "clojars": lambda d: "CLOJARS_" + some(d, LOW, 60),
    "alibaba": lambda d: "LTAI" + some(d, AN, 20),
    "easypost": lambda d: "EZAK" + some(d, AN, 54),
    "flutterwave": lambda d: "FLWSECK-" + some(d, HEX, 32) + "-X",
    "langsmith": lambda d: "lsv2_pt_" + some(d, HEX, 32) + "_" + some(d, HEX, 10),
    "pinecone": lambda d: "pcsk_" + some(d, AN, 6) + "_" + some(d, AN, 63),
    "prefect": lambda d: "pnu_" + some(d, AN, 36),
    "readme": lambda d: "rdme_" + some(d, LOW, 70),
    "scalingo": lambda d: "tk-us-" + some(d, URL_SAFE, 48),
    "jwt": lambda d: ".".join(
        base64.urlsafe_b64encode(part).decode().rstrip("=")
        for part in (
            b'{"alg":"HS256","typ":"JWT"}',
            json.dumps({"sub": some(d, LOW, 12), "iat": 1700000000}).encode(),
            d.randbytes(32),
        )
    ),
}


def person_made(draw: Draw) -> str:
    """A password as people make them."""
    word = draw.choice(
        ["sunshine", "Winter", "liverpool", "Tr0ub4dor", "hunter", "Falcon", "gandalf", "Mustang"]
    )
    kind = draw.randrange(5)
    if kind == 0:
        return word.capitalize() + str(draw.randrange(1950, 2030)) + draw.choice("!?#*")
    if kind == 1:
        return word + draw.choice("@$&") + some(draw, LOW, 5)
    if kind == 2:
        return some(draw, AN, draw.randrange(10, 17))
    if kind == 3:
        return some(draw, AN + "!#%^*+=?", draw.randrange(12, 20))
    return f"{word}-{draw.choice(['otter', 'lamp', 'coral'])}-{draw.randrange(10, 9999)}"


OPAQUE: dict[str, Callable[[Draw], str]] = {
    "hex 32": lambda d: some(d, HEX, 32),
    "hex 40": lambda d: some(d, HEX, 40),
    "hex 64": lambda d: some(d, HEX, 64),
    "uuid": lambda d: str(uuid.UUID(int=d.getrandbits(128), version=4)),
    "letters 24": lambda d: some(d, AN, 24),
    "letters 32": lambda d: some(d, LOW, 32),
    "aws secret": lambda d: some(d, AN + "/+", 40),
    "base64 44": lambda d: base64.b64encode(d.randbytes(32)).decode(),
    "azure 88": lambda d: base64.b64encode(d.randbytes(64)).decode(),
    "django": lambda d: "django-insecure-" + some(d, LOW + "!@#^&*(-_=+)", 50),
    "person": person_made,
    "person again": person_made,
    "person once more": person_made,
}

NAMES = (
    "password",
    "passwd",
    "db_password",
    "DB_PASS",
    "PGPASSWORD",
    "MYSQL_ROOT_PASSWORD",
    "smtp_password",
    "api_key",
    "apiKey",
    "API_KEY",
    "X_API_KEY",
    "secret_key",
    "SECRET_KEY",
    "client_secret",
    "clientSecret",
    "access_token",
    "accessToken",
    "AUTH_TOKEN",
    "authToken",
    "refresh_token",
    "private_key",
    "signing_key",
    "encryption_key",
    "ENCRYPTION_KEY",
    "jwt_secret",
    "JWT_SECRET",
    "webhook_secret",
    "aws_secret_access_key",
    "AWS_SECRET_ACCESS_KEY",
    "WANDB_API_KEY",
    "AZURE_STORAGE_KEY",
    "AccountKey",
    "bot_token",
    "session_secret",
    "COOKIE_SECRET",
    "master_password",
    "keystore_password",
    "storePassword",
    "ldap_bind_password",
    "redis_password",
    "REDIS_AUTH",
    "admin_pw",
    "user_pwd",
    "passphrase",
    "ssh_passphrase",
    "consumer_secret",
    "app_secret",
    "hmac_key",
    "license_key",
    "deploy_token",
    "ci_token",
    "registry_password",
    "credentials",
    "api_secret",
    "access_key",
    "shared_secret",
    "salt_key",
    "service_account_key",
    "oauth_token",
    "personal_access_token",
    "root_pw",
    "wifi_psk",
    "pin_code_secret",
    "vault_token",
    "db.password",
    "spring.datasource.password",
    "auth-token",
)

NAMED = (
    # Python
    "N = '{v}'",
    'N = "{v}"',
    'N: str = "{v}"',
    'N: Optional[str] = "{v}"',
    'N: Final = "{v}"',
    'self.N = "{v}"',
    'cls.N = b"{v}"',
    'client = Client(host, N="{v}")',
    'connect(N="{v}", port=1)',
    'config["N"] = "{v}"',
    "os.environ['N'] = '{v}'",
    'os.environ.setdefault("N", "{v}")',
    'N = os.getenv("N", "{v}")',
    'N = os.environ.get("N") or "{v}"',
    'd = {"N": "{v}", "port": 5432}',
    "d = dict(user='x', N='{v}')",
    'N = SecretStr("{v}")',
    'N: str = field(default="{v}")',
    'N: str = Field("{v}", min_length=3)',
    'parser.add_argument("--N", default="{v}")',
    'def connect(host, N="{v}"):',
    'N = (\n    "{v}"\n)',
    'monkeypatch.setenv("N", "{v}")',
    'if N == "{v}":',
    'assert settings.N != "{v}"',
    'N = f"{v}"',
    '@patch.dict(os.environ, {"N": "{v}"})',
    'setattr(settings, "N", "{v}")',
    'keyring.set_password("svc", "N", "{v}")',
    'N = """{v}"""',
    'N, other = "{v}", 3',
    'settings.update(N="{v}")',
    'N = base64.b64decode("{v}")',
    "# N: {v}",
    "# old N was {v}",
    '"""Log in with N={v} first."""',
    "#N = '{v}'",
    # other languages
    'const N = "{v}";',
    "let N = '{v}'",
    "var N = `{v}`;",
    'N: "{v}",',
    "export const N = '{v}' as const;",
    'N := "{v}"',
    'const N string = "{v}"',
    'let N: &str = "{v}";',
    'private static final String N = "{v}";',
    'string N = "{v}";',
    '#define N "{v}"',
    'static const char *N = "{v}";',
    'val N = "{v}"',
    "$N = '{v}';",
    "define('N', '{v}');",
    "'N' => '{v}',",
    'ENV["N"] = "{v}"',
    'N <- "{v}"',
    'Sys.setenv(N = "{v}")',
    'ENV["N"] = "{v}" # julia',
    'local N = "{v}"',
    "$env:N = '{v}'",
    '$N = ConvertTo-SecureString "{v}" -AsPlainText -Force',
    'variable "N" {\n  default = "{v}"\n}',
    # shells and builders
    "export N={v}",
    'export N="{v}"',
    "N={v} python train.py",
    "set -x N {v}",
    "setenv N {v}",
    "set N={v}",
    "ENV N={v}",
    "ENV N {v}",
    "ARG N={v}",
    "docker run -e N={v} img",
    "docker build --build-arg N={v} .",
    "N := {v}",
    "N ?= {v}",
    "--N={v}",
    "./run --N {v} --steps 3",
    "helm install x --set auth.N={v}",
    "kubectl create secret generic s --from-literal=N={v}",
    "heroku config:set N={v}",
    "gh secret set N --body '{v}'",
    "terraform apply -var 'N={v}'",
    # files
    "N: {v}",
    'N: "{v}"',
    "N: '{v}'  # rotate",
    "  N: {v}",
    "- N={v}",
    '- "N={v}"',
    "- name: N\n  value: {v}",
    '- name: N\n  value: "{v}"',
    '{"name": "N", "value": "{v}"}',
    "N={v}",
    "N = {v}",
    'N="{v}"',
    '"N": "{v}"',
    '{\\"N\\": \\"{v}\\"}',
    "<N>{v}</N>",
    '<add key="N" value="{v}" />',
    '<property name="N" value="{v}"/>',
    "N={v};",
    "[auth]\nN = {v}",
    "user,N\nme,N={v}",
    "os.system('deploy --N {v}')",
    "N | {v} |",
    "N -> {v}",
    "* N: `{v}`",
)

ALONE = (
    "# {v}",
    'client = Client("{v}")',
    "login(token='{v}')",
    'x = ["{v}", 3]',
    "see {v} in the log",
    "curl -H 'Authorization: Bearer {v}' https://api.service.io/v1",
    'headers = {"X-Api-Key": "{v}"}',
    "Authorization: token {v}",
    "curl -u me:{v} https://x.io",
    "return '{v}'",
    "echo {v} | login --stdin",
    "https://api.service.io/v1/items?key={v}",
    'print("{v}")',
    "//registry.npmjs.org/:_authToken={v}",
    "git clone https://oauth2:{v}@gitlab.com/a/b.git",
    "{v}",
    "t = '{v}'.strip()",
    '- "{v}"',
)
"""For what says by itself what it is."""

PLACED = (
    "postgresql+psycopg://svc:{q}@db.prod.internal:5432/app",
    "mysql://root:{q}@10.0.0.4/x",
    "redis://:{q}@cache:6379/0",
    "amqp://guest:{q}@mq/vhost",
    "mongodb+srv://app:{q}@c0.mongodb.net/x",
    "https://deploy:{q}@pypi.internal/simple",
    "ftp://me:{q}@files.example.net/",
    "clickhouse://default:{q}@ch:8123",
    "smtp://mailer:{q}@smtp.example.net:587",
    "Server=tcp:db;User Id=sa;Password={v};Encrypt=True",
    "Data Source=x;uid=sa;pwd={v};",
    "host=db user=me password={v} dbname=x",
    "jdbc:postgresql://db/x?user=me&password={q}",
    "jdbc:oracle:thin:scott/{q}@//db:1521/orcl",
    "machine api.heroku.com login me password {v}",
    "db.internal:5432:app:svc:{v}",
    "mysql -u root -p{v} app",
    "mysqldump --password={v} app",
    "redis-cli -h cache -a {v} ping",
    "sshpass -p '{v}' ssh me@host",
    "curl --user 'me:{v}' https://x.io",
    "curl -u me:{v} https://x.io",
    "docker login -u me -p {v} registry.io",
    "az login --service-principal -u app -p {v} --tenant t",
    "openssl rsa -in k.pem -passin pass:{v}",
    "gpg --batch --passphrase {v} -d f.gpg",
    "aws configure set aws_secret_access_key {v}",
    "wget --user=me --password={v} https://x.io/f",
    "CREATE USER app IDENTIFIED BY '{v}';",
    "ALTER ROLE app WITH PASSWORD '{v}';",
    "CREATE ROLE app LOGIN PASSWORD '{v}';",
    "GRANT ALL ON *.* TO 'a'@'%' IDENTIFIED BY '{v}'",
    "requests.get(url, auth=('me', '{v}'))",
    'HTTPBasicAuth("me", "{v}")',
    "smtp.login('me@x.io', '{v}')",
    'ssh.connect(host, username="me", password="{v}")',
    "ftp.login(user='me', passwd='{v}')",
    "https://x.io/cb?access_token={q}&x=1",
    "https://acct.blob.core.windows.net/c/f?sv=2024-01-01&sig={q}",
    "wss://x.io/stream?token={q}",
    "Cookie: sessionid={v}; theme=dark",
    "Set-Cookie: auth_token={v}; Path=/",
    "X-Api-Key: {v}",
    "X-Auth-Token: {v}",
    "api-key: {v}",
    "Proxy-Authorization: Bearer {v}",
    'headers={"Authorization": "Bearer {v}"}',
    "headers['x-goog-api-key'] = '{v}'",
    "echo '{v}' | docker login --username me --password-stdin",
    "echo {v} | sudo -S apt-get update",
    "net use z: \\\\host\\share /user:me {v}",
    "requirepass {v}",
    "ansible_become_pass={v}",
    "DefaultEndpointsProtocol=https;AccountName=a;AccountKey={v};EndpointSuffix=core.windows.net",
    "Endpoint=sb://x.servicebus.windows.net/;SharedAccessKeyName=Root;SharedAccessKey={v}",
    "Passwort: {v}",
    "mot de passe : {v}",
    "contraseña = '{v}'",
    "пароль: {v}",
    "密码：{v}",
    'senha = "{v}"',
    "the password is {v}",
    "login with me / {v}",
    "PIN/password => {v}",
    "pw: {v}",
)
"""Where the place says that it is one; ``{q}``: as addresses quote it."""


def _pem(draw: Draw) -> Sample:
    kind = draw.choice(["RSA ", "EC ", "OPENSSH ", "", "ENCRYPTED ", "DSA ", "PGP"])
    body = base64.b64encode(draw.randbytes(420)).decode()
    lines = [body[i : i + 64] for i in range(0, len(body), 64)]
    head, tail = f"-----BEGIN {kind}PRIVATE KEY-----", f"-----END {kind}PRIVATE KEY-----"
    if kind == "PGP":
        head, tail = (f"-----{w} PGP PRIVATE KEY BLOCK-----" for w in ("BEGIN", "END"))
        lines = ["", *lines, "=" + some(draw, AN, 4)]
    joined = draw.choice(
        [
            "\n".join([head, *lines, tail]),
            'key = """' + "\n".join([head, *lines, tail]) + '"""',
            '"private_key": "' + "\\n".join([head, *lines, tail]) + '\\n",',
            "key: |\n" + "\n".join("    " + line for line in [head, *lines, tail]),
            "KEY = (" + "\n".join(f'    "{line}\\n"' for line in [head, *lines, tail]) + ")",
            "\n".join(f"# {line}" for line in [head, *lines, tail]),
            "\n".join([head, *lines[:6], "..."]),  # cut off, as in a paste
        ]
    )
    return joined, lines[3]


def _encoded(draw: Draw) -> Sample:
    secret = person_made(draw)
    pair = base64.b64encode(f"svc:{secret}".encode()).decode()
    lone = base64.b64encode(secret.encode()).decode()
    return draw.choice(
        [
            (f"Authorization: Basic {pair}", pair),
            (f'"auths": {{"ghcr.io": {{"auth": "{pair}"}}}}', pair),
            (f"kind: Secret\ndata:\n  password: {lone}", lone),
            (f"kind: Secret\ndata:\n  db-password: {lone}\n  user: bWU=", lone),
            (f"_auth={pair}", pair),
            (f"password = b64decode('{lone}')", lone),
            (
                f"https://me:{urllib.parse.quote(secret, safe='')}@x.io",
                urllib.parse.quote(secret, safe=""),
            ),
            (f'body = \'{{\\"password\\": \\"{secret}\\"}}\'', secret),
            (f"payload=user%3Dme%26password%3D{secret}", secret),
        ]
    )


def _put(form: str, value: str, name: str = "") -> Sample:
    quoted = urllib.parse.quote(value, safe="")
    secret = quoted if "{q}" in form else value
    named = re.sub(r"\bN\b", name, form)
    return named.replace("{q}", quoted).replace("{v}", value), secret


def secrets(seed: int = 0, count: int = 400) -> list[Sample]:
    draw, found = random.Random(f"crossed {seed}"), list[Sample]()
    while len(found) < count:
        kind = draw.random()
        if kind < 0.3:
            value = draw.choice([*PROVIDERS.values()])(draw)
            form, name = draw.choice([*ALONE, *NAMED]), draw.choice(NAMES)
            found.append(_put(form, value, name) if form in NAMED else _put(form, value))
        elif kind < 0.7:
            value = draw.choice([*OPAQUE.values()])(draw)
            found.append(_put(draw.choice(NAMED), value, draw.choice(NAMES)))
        elif kind < 0.88:
            form = draw.choice(PLACED)
            kinds = (
                [*OPAQUE.values()][4:] if " " in form and "=" not in form else [*OPAQUE.values()]
            )
            found.append(_put(form, draw.choice(kinds)(draw)))
        else:
            found.append(draw.choice([_pem, _encoded])(draw))
    return found


PLAIN_VALUES = (
    "os.environ['X']",
    "get_token()",
    "None",
    "True",
    "''",
    "getpass.getpass()",
    "args.key",
    "3",
    "self.vault.read(path)",
    "torch.randn(3)",
    "key.view(b, t, h)",
    "nn.Parameter(torch.ones(3))",
)
HARMLESS_FORMS = (
    # named like secrets, but none
    "N = P",
    "N: str = P",
    "self.N = P",
    "f(N=P)",
    "return N",
    "def f(N: str) -> None:",
    "if N is P:",
    "N = '${{ secrets.N }}'",
    'N: "${N}"',
    "N: ${N:-}",
    "export N=$N",
    "N=$(cat file)",
    "N=<your-N>",
    'N = "changeme"',
    'N = "YOUR_N_HERE"',
    "# N: see the vault",
    "N: str  # of the service",
    'raise ValueError("N is missing")',
    'help="the N of the service"',
    "os.environ['N']",
    "N={{ N }}",
    'N = "xxxxxxxx"',
    "N = '********'",
    "log.info('N %s', N)",
    "class N(nn.Module):",
    "import N",
    'N: Annotated[str, "of the user"]',
    'parser.add_argument("--N", required=True, type=str)',
)
HARMLESS = (
    "key = 'model.layers.{n}.self_attn.q_proj.weight'",
    "token = tokenizer.eos_token_id",
    "tokens_per_second = {n}",
    "key_cache, value_cache = kv[{n}]",
    "num_key_value_heads={n}",
    "special_tokens = ['<|im_start|>', '<|im_end|>', '[MASK]']",
    "pad_token_id = {n}",
    "x = torch.randn({n}, 128, device='cuda')",
    "sha256 = '{h64}'",
    "commit {h40}",
    "rev: {h40}",
    "image: nvcr.io/nvidia/pytorch@sha256:{h64}",
    '"integrity": "sha512-{b88}"',
    "resolved 'https://registry.npmjs.org/a/-/a-{n}.0.0.tgz'",
    "version = '{n}.4.1+cu124'",
    "https://github.com/pytorch/pytorch/issues/{n}",
    "https://arxiv.org/abs/2307.{n}",
    "https://huggingface.co/meta/Llama-3.1-8B/resolve/main/model-00001-of-0000{n}.safetensors",
    "request_id = '{u}'",
    "trace_id={h32}",
    '"id": "{u}"',
    'etag: "{h32}"',
    "md5 = {h32}",
    "from transformers import AutoModelForCausalLM, AutoTokenizer",
    "BLOCK_SIZE_M: tl.constexpr = {n}",
    "@triton.autotune(configs=configs, key=['M', 'N', 'K'])",
    "tl.load(x_ptr + offs, mask=mask, other=0.0)",
    "password_field = forms.CharField(widget=forms.PasswordInput)",
    "x = key @ query.transpose(-1, -2)",
    "sorted(items, key=lambda item: item[1])",
    "max(scores, key=scores.get)",
    "dict_keys = list(d.keys())",
    "# the key is cached per token, the value per head",
    "secret_santa = draw(names)",
    "author = 'J. Doe'",
    "data:image/png;base64,iVBORw0KGgo=",
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/",
    "0x{h32}",
    "tensor([0.{n}, -1.2{n}, 3.14{n}])",
    "color = '#{h6}'",
    "mac = '00:1a:2b:3c:4d:5e'",
    "ssh-ed25519 is the kind of key",
    "monkey = 'banana'",
    "keyboard = 'qwerty-{n}'",
    "turkey: {n}",
    "passed = {n}",
    "bypass = True",
    "compass: north-{n}",
    "tokenizer_name: Qwen/Qwen2.5-{n}B-Instruct",
    "auth = HTTPBasicAuth(user, password)",
    "login(user, password)",
    "headers['Authorization'] = f'Bearer {token}'",
    'curl -H "Authorization: Bearer $TOKEN" https://api.x.io',
    "docker login -u me -p $PASS registry.io",
    "postgres://user:${DB_PASSWORD}@db/x",
    "postgres://localhost:5432/app",
    "http://127.0.0.1:{n}/metrics",
    "-----BEGIN CERTIFICATE-----",
    "-----BEGIN PUBLIC KEY-----",
    "ssh me@host -p {n}",
    "mysql -u root -p",
    "rtol=1e-{n}, atol=1e-8",
    "torch.float8_e4m3fn",
    "cutlass_80_tensorop_f16_s16816gemm_f16_128x{n}_32x5_nn_align8",
    "_ZN2at6native13reduce_kernelILi512ELi1ENS0_8ReduceOpIfNS0_14func_wrapper_tE{n}EEE",
    "key_states.shape = (1, {n}, 64)",
    "ampere_sgemm_128x64_tn",
    "triton_poi_fused_add_mul_relu_{n}",
    "void at::native::vectorized_elementwise_kernel<4>",
    "self.register_buffer('attn_mask', mask, persistent=False)",
    "state_dict['transformer.h.{n}.attn.c_attn.weight']",
    "assert out.shape == (B, T, C), out.shape",
    "nvidia-cublas-cu12==12.4.5.{n}",
    "numpy>=1.26,<{n}",
    "--hash=sha256:{h64}",
    "uuid.UUID('{u}')",
    "run-{n}-abcdef",
    "2024-11-{n}T10:15:30.123456Z",
    "wandb: Run {n} of sweep",
)


def harmless(seed: int = 0, count: int = 400) -> list[str]:
    draw, found = random.Random(f"harmless {seed}"), list[str]()
    while len(found) < count:
        if draw.random() < 0.4:
            named = re.sub(r"\bN\b", draw.choice(NAMES), draw.choice(HARMLESS_FORMS))
            found.append(re.sub(r"\bP\b", draw.choice(PLAIN_VALUES), named))
            continue
        text = draw.choice(HARMLESS)
        parts = {
            "{n}": str(draw.randrange(10, 99)),
            "{h6}": some(draw, HEX, 6),
            "{h32}": some(draw, HEX, 32),
            "{h40}": some(draw, HEX, 40),
            "{h64}": some(draw, HEX, 64),
            "{u}": str(uuid.UUID(int=draw.getrandbits(128))),
            "{b88}": base64.b64encode(draw.randbytes(64)).decode(),
        }
        for mark, value in parts.items():
            text = text.replace(mark, value)
        found.append(text)
    return found
