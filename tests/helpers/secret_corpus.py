"""Secrets and harmless strings as they stand in programs: 220 of each, drawn anew and never real.

Secrets are made here and not written down, so that no scanner of a repository takes them for
somebody's."""

import base64
import random
import string

LETTERS = string.ascii_letters + string.digits
LOWER = string.ascii_lowercase + string.digits
UPPER = string.ascii_uppercase + string.digits
HEX = "0123456789abcdef"
Sample = tuple[str, str]
"""Text and the secret in it."""


def secrets(seed: int = 0) -> list[Sample]:
    draw = random.Random(seed)

    def some(alphabet: str, length: int) -> str:
        return "".join(draw.choices(alphabet, k=length - 2)) + "a7" if length > 2 else "a7"

    def password() -> str:
        words = draw.choice(
            ["hunter", "Winter", "correct-horse", "Tr0ub4dor", "s3cret", "Zebra", "letmein"]
        )
        return (
            words + draw.choice(["2024!", "#42x", "!9Kq", "_7Zp$", "@1xY", "88tT"]) + some(LOWER, 3)
        )

    def basic() -> str:
        return base64.b64encode(f"admin:{password()}".encode()).decode()

    def lines() -> str:
        return base64.b64encode(draw.randbytes(120)).decode()

    tokens = [  # how they stand in a program does not matter
        lambda: "ghp_" + some(LETTERS, 36),
        lambda: "github_pat_" + some(LETTERS, 60),
        lambda: "glpat-" + some(LETTERS, 20),
        lambda: "sk-proj-" + some(LETTERS, 48),
        lambda: "sk-ant-api03-" + some(LETTERS, 80),
        lambda: "sk_live_" + some(LETTERS, 24),
        lambda: "hf_" + "A" + some(string.ascii_letters, 33)[:-2] + "bC",
        lambda: "AKIA" + some(UPPER, 18)[:16],
        lambda: "xoxb-" + some(string.digits, 12) + "-" + some(LETTERS, 24),
        lambda: "xapp-1-" + some(UPPER, 11) + "-" + some(LETTERS, 40),
        lambda: "AIza" + some(LETTERS, 35),
        lambda: "ya29." + some(LETTERS, 60),
        lambda: "GOCSPX-" + some(LETTERS, 28),
        lambda: f"eyJ{some(LETTERS, 30)}.eyJ{some(LETTERS, 60)}.{some(LETTERS, 43)}",
        lambda: f"SG.{some(LETTERS, 22)}.{some(LETTERS, 43)}",
        lambda: "npm_" + some(LETTERS, 36),
        lambda: "pypi-AgEIcHlwaS5vcmc" + some(LETTERS, 80),
        lambda: "dop_v1_" + some(HEX, 64),
        lambda: "hvs." + some(LETTERS, 24),
        lambda: "dapi" + some(HEX, 32),
        lambda: "glsa_" + some(LETTERS, 32),
        lambda: "nvapi-" + some(LETTERS, 60),
        lambda: "gsk_" + some(LETTERS, 52),
        lambda: "r8_" + some(LETTERS, 37),
        lambda: "whsec_" + some(LETTERS, 32),
        lambda: "tskey-auth-" + some(LETTERS, 30),
        lambda: some(HEX, 32) + "-us12",
        lambda: "ATATT3" + some(LETTERS, 60),
        lambda: "123456" + "7890:A" + some(LETTERS, 34),
        lambda: f"M{some(LETTERS, 23)}.{some(LETTERS, 6)}.{some(LETTERS, 38)}",
        lambda: some(HEX, 40),
        lambda: some(LETTERS + "+/", 64),
    ]
    places = ["x = '{}'", 'login("{}")', "# {}", "curl -H 'X-Key: {}'", '"""\n{}\n"""']
    of_passwords = [
        "password = '{}'",
        'db_pass = "{}"',
        "DB_PASS={}",
        "db_pass={}",
        'PWD = "{}"',
        "passwd='{}'",
        'password = """{}"""',
        "secret = '''{}'''",
        'api_key = """\n{}\n"""',
        '"password": "{}"',
        "Server=db;User Id=sa;Pwd={};Database=x",
        'dsn = "Server=db;Uid=me;Password={};Encrypt=yes"',
        "'host=db user=me password={} dbname=x'",
        "# password: {}",
        "# the password is {}",
        "# pw: {}",
        "# login with secret {}".replace("secret ", "secret: "),
        "// api_key = {}",
        "export DB_PASSWORD={}",
        "API_TOKEN={}",
        "password: {}",
        "  secret_key: {}",
        "ENV API_KEY={}",
        "postgres://me:{}@db.internal/x",
        "amqp://guest:{}@queue:5672/",
        "https://me:{}@git.example.org/x.git",
        "requests.get(u, auth=('me', '{}'))",
        "sshpass -p {} ssh host",
        "curl -u admin:{} http://x",
        "tool --password {}",
        "tool --api-key={}",
        "machine db login me password {}",
        'os.environ["API_KEY"] = "{}"',
        'setenv("DB_PASSWORD", "{}")',
        'if password == "{}":',
        'connect(user="me", password="{}")',
        "wandb.login(key='{}')",
        'parser.add_argument("--x", default="k", help="api_key={}")',
        "credentials = ('{}')",
        'token = "{}"',
        "pass: {}",
        "# pass={}",
        '"auth_token": "{}",',
        "private_key='{}'",
        "encryption_key = b'{}'",
        '"""\nDB_PASSWORD={}\n"""',
        "'''config\npassword: {}\n'''",
        "    # token={}",
        "passphrase='{}'",
        "client_secret: '{}'",
        "AWS_SECRET_ACCESS_KEY='{}'",
        "bot_token = '{}'",
    ]
    of_tokens = [
        "https://hooks.slack.com/services/{}",
        "https://discord.com/api/webhooks/{}",
        "https://x.webhook.office.com/webhookb2/{}",
        "https://open.feishu.cn/open-apis/bot/v2/hook/{}",
        "https://hooks.zapier.com/hooks/catch/{}",
        "https://api.example.com/v1/x?token={}",
        "https://a.example.com/x?b=c&access_token={}",
        "https://a.blob.core.windows.net/x?sv=1&sig={}",
        "https://x.example.com/?api_key={}&y=1",
        "Authorization: Bearer {}",
        "'Authorization': 'token {}'",
        "https://oapi.dingtalk.com/robot/send?access_token={}",
        "https://maps.example.com/api?key={}",
        "AccountKey={};EndpointSuffix=x",
        "SharedAccessKey={}",
        "sqs?x=1&X-Amz-Signature={}",
    ]
    found: list[Sample] = []
    for number, token in enumerate(tokens * 3):
        made = token()
        found.append((places[number % len(places)].format(made), made))
    for number, place in enumerate(of_passwords * 2):
        made = password() if number % 3 else some(LETTERS, 12)
        found.append((place.replace("{}", made), made))
    for place in of_tokens:
        made = some(LETTERS, 9) + ("/" if "hook" in place else "") + some(LETTERS, 32)
        found.append((place.replace("{}", made), made))
    for place in (
        "Authorization: Basic {}",
        "headers = {'Authorization': 'Basic {}'}",
        "# basic {}",
    ):
        made = basic()
        found.append((place.replace("{}", made), made))
    key = lines()
    found.append((f"-----BEGIN RSA PRIVATE KEY-----\n{key}\n-----END RSA PRIVATE KEY-----", key))
    people = [
        "# by jane.doe@company.com",
        "author = 'j_smith@uni-bonn.de'",
        "Contact: a.b+c@mail.example.org",
    ]
    found += [(text, text.split("@")[0].split()[-1].strip("'")) for text in people]
    homes = [
        "/home/jdoe/data/x.pt",
        "'/Users/jane.doe/model.py'",
        r'"C:\\Users\\jdoe\\x"',
        "open('/home/j-d/a')",
    ]
    found += [
        (text, name) for text, name in zip(homes, ("jdoe", "jane.doe", "jdoe", "/j-d"), strict=True)
    ]
    return found


HARMLESS = [
    "password = os.environ['DB_PASSWORD']",
    "password = getpass.getpass()",
    "api_key = settings.api_key",
    "token = tokenizer.decode(ids[0])",
    "token_ids = torch.zeros(1, 2048)",
    'pad_token = "<|endoftext|>"',
    'bos_token="<s>"',
    "key = 'layers.0.self_attn.q_proj.weight'",
    'key = f"blocks.{i}.attn"',
    "secret = None",
    'parser.add_argument("--password", help="password of the database")',
    "# the password is checked elsewhere",
    "# token: the next token of the sequence",
    "def login(user: str, password: str) -> None:",
    "if not api_key: raise",
    "password: Optional[str] = None",
    "access_token: str",
    "credentials = load_credentials(path)",
    "# see keys below",
    'api_key="YOUR_API_KEY"',
    'password="<password>"',
    'token="${GITHUB_TOKEN}"',
    'secret="changeme"',
    "pass",
    "first_pass = x @ w1",
    "out = q @ k.transpose(-2, -1)",
    "y = x@w.to(x.dtype)",
    "z = a@b.T",
    "scores = query@key.mT",
    "@torch.jit.script",
    "@triton.jit",
    "git@github.com:pytorch/pytorch.git",
    "user@localhost",
    "noreply@github.com",
    "https://github.com/pytorch/pytorch/blob/main/torch/nn/functional.py",
    "https://arxiv.org/abs/2205.14135v2",
    "https://example.com/search?q=attention&page=2",
    "https://x.org/?token=none",
    "/usr/lib/python3.11/site-packages",
    "/home",
    "~/.cache/torch",
    "/tmp/a/b.py",
    "/root-mean-square",
    "basic usage of the module",
    "Basic authentication",
    "Bearer of the name",
    "class Key(nn.Module):",
    "keys = ['q', 'k', 'v']",
    'cache_key = "step_2_forward"',
    'checkpoint_key = "model_state_dict"',
    'author = "somebody"',
    "auth = None",
    "salt = torch.rand(3)",
    'mask_token = "[MASK]"',
    "sep_token='</s>'",
    "max_tokens = 4096",
    "num_key_value_heads = 8",
    "head_dim=128",
    "key_padding_mask=mask",
    "pin_memory=True",
    "tokens_per_second: 12345.6",
    "token = batch[0]",
    "key: int32",
    'keys: "f32[1,2]"',
    "secret_sharing = True",
    'tokenizer = AutoTokenizer.from_pretrained("Qwen/Qwen3-8B")',
    '"meta-llama/Llama-3.1-70B-Instruct"',
    "MASK = 0xFFFFFFFFFFFFFFFF",
    "seed = 1234567890123456789",
    "class FusedRotaryPositionalEmbeddingWithLearnedScaleAndBias(nn.Module):",
    "'" + "-" * 60 + "'",
    "=" * 70,
    "test_scaled_dot_product_attention_bfloat16_cuda_small_shapes",
    "aten::_scaled_dot_product_flash_attention",
    "triton_poi_fused_add_mul_relu_0",
    "sha256 of the file",
    "version = '2.9.0+cu128'",
    "uuid = str(uuid4())",
    "tl.load(x_ptr + offsets, mask=mask, other=0.0)",
    "return F.scaled_dot_product_attention(q, k, v)",
    "torch.ops.aten.convolution_backward.default",
    "x: f32[128, 4096]  stride (4096, 1)",
    "grid = lambda meta: (1,)",
    "# 3.14159265358979323846264338327950288419716939937510",
    "0.7071067811865476, 1.4142135623730951",
    'torch.load("checkpoint_epoch_12.pt")',
    "config.hidden_size // config.num_attention_heads",
    "x = x.view(-1)",
    'assert key in state, f"missing key: {key}"',
    'print("token:", token)',
    "token_type_ids: LongTensor",
    'raise ValueError("wrong password")',
    '"key": "value"',
    '"token": "string"',
    'login = "required"',
    "pin: GPIO4",
    "password_field = forms.CharField()",
    "class TokenEmbedding:",
    "pwd = os.getcwd()",
    "# pw: point-wise",
    "pwconv1 = nn.Linear(dim, 4 * dim)",
    "x = self.pw(x)",
    "key1 = keys[0]",
    "key = key1",
    "auth=bearer_auth(x)",
    "BLOCK_M: 128, BLOCK_N: 64, num_warps: 8",
    "sm_90a",
    "nvidia-smi --query-gpu=name",
    "--token-count 1024",
    "--tokenizer Qwen/Qwen3-8B",
    "--seed 12345678",
    "curl https://x.org",
    "machine learning",
    "passes: 3, failures: 0",
    "bypass = 'enabled1'",
    "compass = 'north22'",
    "token = 'the'",
    "key='linear1.weight'",
    "key = 'bert.pooler'",
]
"""Programs about models are full of keys and tokens."""


def harmless() -> list[str]:
    names = ("key", "token", "proj", "auth")
    grown = [f"self.{name}_{n} = nn.Linear({2**n}, {3 * n})" for name in names for n in range(12)]
    grown += [f"state['decoder.layers.{n}.self_attn.k_proj.weight']" for n in range(25)]
    grown += [f"# kernel-lsp: workload x=f32[{n},4096] key=i64[{n}]<32000" for n in range(30)]
    return [*HARMLESS, *grown]
