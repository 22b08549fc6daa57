"""A second corpus of secrets and harmless strings, written by somebody who had not read the rules.

Kinds that services document, in places where people leave them (configuration, shell, code,
comments), and what looks like them in programs of machine learning. All are drawn anew: none was
ever real."""

import base64
import random
import string
import uuid

AN = string.ascii_letters + string.digits
LOW = string.ascii_lowercase + string.digits
UP = string.ascii_uppercase + string.digits
HEX = "0123456789abcdef"
Sample = tuple[str, str]
"""Text and the secret in it."""


def secrets(seed: int = 1) -> list[Sample]:
    draw = random.Random(seed)

    def some(alphabet: str, length: int) -> str:
        return "".join(draw.choices(alphabet, k=length))

    def word() -> str:
        start = draw.choice(
            ["Blue", "kitten", "Summer", "dragon", "P@ss", "qwerty", "Ohio", "monkey"]
        )
        return start + some(LOW, 4) + draw.choice(["!", "#7", "99$", "_X", "*4q"])

    def b64(count: int) -> str:
        return base64.b64encode(draw.randbytes(count)).decode()

    def tokens() -> list[str]:
        return [
            "gho_" + some(AN, 36),
            "ghs_" + some(AN, 36),
            "ghr_" + some(AN, 36),
            "github_pat_" + some(AN, 22) + "_" + some(AN, 59),
            "glrt-" + some(AN, 20),
            "sk-" + some(AN, 20) + "T3BlbkFJ" + some(AN, 20),
            "sk-or-v1-" + some(HEX, 64),
            "sk-ant-admin01-" + some(AN, 90),
            "rk_live_" + some(AN, 24),
            "sk_test_" + some(AN, 24),
            "ASIA" + some(UP, 16),
            "xoxp-" + some(string.digits, 11) + "-" + some(string.digits, 11) + "-" + some(HEX, 32),
            "xoxe.xoxp-1-" + some(AN, 60),
            "hf_" + some(string.ascii_letters, 34),
            "api_org_" + some(string.ascii_letters, 34),
            "shpat_" + some(HEX, 32),
            "dckr_pat_" + some(AN, 27),
            "lin_api_" + some(AN, 40),
            "pat" + some(AN, 14) + "." + some(HEX, 64),
            "SK" + some(HEX, 32),
            "key-" + some(HEX, 32),
            "EAACEdEose0cBA" + some(AN, 60),
            "sq0atp-" + some(AN, 22),
            "secret_" + some(AN, 43),
            "ntn_" + some(AN, 46),
            "pplx-" + some(AN, 48),
            "xai-" + some(AN, 80),
            "tgp_v1_" + some(AN, 43),
            "fw_" + some(AN, 22),
            "rpa_" + some(UP, 40),
            "LL|" + some(string.digits, 16) + "|" + some(AN, 27),
            "eyJhbGciOiJIUzI1NiJ9." + some(AN, 40) + "." + some(AN, 43),
            "AGE-SECRET-KEY-1" + some(UP, 58),
            "v1.0-" + some(HEX, 24) + "-" + some(HEX, 146),
            b64(32),
            some(HEX, 64),
        ]

    shown = [
        'TOKEN = "{}"',
        "os.environ['API_KEY'] = '{}'",
        "  - name: KEY\n    value: {}",
        "client = Client({!r})",
    ]
    found = [
        (place.format(token), token) for place in (*shown, "# old key: {}") for token in tokens()
    ]
    with_password = [
        'engine = create_engine("postgresql+psycopg2://app:{}@db:5432/x")',
        "redis://:{}@cache:6379/0",
        "mongodb+srv://root:{}@cluster0.abc.mongodb.net/x",
        "amqp://guest:{}@mq//",
        "https://bot:{}@git.example.com/x.git",
        "DATABASE_PASSWORD={}",
        "export PGPASSWORD='{}'",
        "mysql -u root -p{} shop",
        'smtp.login("bot@example.com", "{}")',
        "machine api.example.com login bot password {}",
        "spring.datasource.password={}",
        "jdbc:sqlserver://h;user=sa;password={};encrypt=true",
        '{{"username": "bot", "password": "{}"}}',
        "<password>{}</password>",
        "auth = HTTPBasicAuth('bot', '{}')",
        "conn = connect(user='bot', passwd='{}')",
        "password: {}",
        "sshpass -p '{}' ssh host",
        "curl -u bot:{} https://example.com",
        "passphrase = '{}'",
        "client_secret: '{}'",
    ]
    for place in with_password * 2:
        secret = word()
        found.append((place.format(secret), secret))
    for _ in range(6):
        secret = b64(24)
        found.append((f"AccountKey={secret};EndpointSuffix=core.windows.net", secret))
        secret = some(AN + "/+", 40)
        found.append((f"aws_secret_access_key = {secret}", secret))
        secret = some(AN, 24)
        found.append(
            (f"https://hooks.slack.com/services/T{some(UP, 8)}/B{some(UP, 8)}/{secret}", secret)
        )
        secret = some(AN, 68)
        found.append(
            (f"https://discord.com/api/webhooks/{some(string.digits, 18)}/{secret}", secret)
        )
        secret = b64(40).rstrip("=")
        found.append(
            (
                f"-----BEGIN OPENSSH PRIVATE KEY-----\n{secret}\n-----END OPENSSH PRIVATE KEY-----",
                secret,
            )
        )
        secret = some(AN, 32)
        found.append((f"https://api.example.com/v1/items?api_key={secret}&x=1", secret))
        secret = some(HEX, 40)
        found.append((f'wandb.login(key="{secret}")', secret))
    return found


def harmless(seed: int = 1) -> list[str]:
    draw = random.Random(seed)
    fixed = """key = key.transpose(1, 2)
past_key_values = outputs.past_key_values
tokens = tokenizer.encode(text, add_special_tokens=False)
key_padding_mask = torch.zeros(8, 128, dtype=torch.bool)
num_key_value_heads = 8
q_key = self.k_proj(hidden_states)
auth_token = os.environ["HF_TOKEN"]
password = getpass.getpass()
def forward(self, query, key, value, attn_mask=None):
parser.add_argument("--api-key", default=None)
cache_key = (x.shape, x.dtype, x.device)
@triton.autotune(configs=CONFIGS, key=["M", "N", "K"])
secret = None
token_type_ids = torch.zeros_like(input_ids)
eos_token = "</s>"
pad_token_id = 151643
model = AutoModel.from_pretrained("meta-llama/Llama-3.1-8B-Instruct")
state_dict["model.layers.31.self_attn.k_proj.weight"]
url = "https://huggingface.co/Qwen/Qwen2.5-0.5B/resolve/main/config.json"
https://arxiv.org/abs/2205.14135
# see pytorch/aten/src/ATen/native/cuda/SoftMax.cu
LOG2E = 1.4426950408889634
MASK = 0x7FFFFFFF
seed = 0x9E3779B97F4A7C15
from torch.nn.modules.activation import MultiheadAttention
class BlockSparseFlashAttentionForwardKernelWithRotaryEmbedding(nn.Module):
assert torch.allclose(out, expected, atol=1e-5, rtol=1.3e-6)
BLOCK_SIZE_M: tl.constexpr = 128
tl.dot(q, k, input_precision="tf32x3")
def scaled_dot_product_attention_with_grouped_query_heads(q, k, v):
torch.library.custom_op("mylib::fused_rms_norm", mutates_args=())
register_buffer("inverse_frequency", inv_freq, persistent=False)
grad_output.contiguous().view(-1, hidden_size)
"float8_e4m3fn", "float8_e5m2fnuz"
CUDA_VISIBLE_DEVICES=0,1,2,3 torchrun --nproc-per-node 4 train.py
os.environ["TORCHINDUCTOR_CACHE_DIR"] = "/tmp/inductor"
pip install torch==2.5.1+cu124 --index-url https://download.pytorch.org/whl/cu124
password_field = forms.CharField(widget=forms.PasswordInput)
raise ValueError("token must not be empty")
if token == end_token: break
token = next(tokens)
secrets.token_hex(16)
login(user, password)
key: torch.Tensor | None = None
api_key: str = Field(..., description="the key of the service")
author = "Jane Doe"
version = "3.11.7"
ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/
lorem ipsum dolor sit amet consectetur adipiscing elit
0123456789abcdef
"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
x = "............................................................"
'bert.encoder.layer.11.attention.output.LayerNorm.weight'
nn.init.trunc_normal_(self.position_embedding, std=0.02)
hash_function = hashlib.sha256
PASS = "passed"
private_key_path = "~/.ssh/id_rsa"
credentials = load_credentials(path)
ssh_key = None
def test_wrong_password_is_refused():
"password": "********",
API_KEY=your-api-key-here
token="<your token>"
secret="${SECRET}"
password={{ vault_password }}
key = f"{name}.{index}"
sort(key=lambda pair: pair[1])
dict_key = "attention_probs_dropout_prob"
session_token_count = 4096
max_new_tokens=256, do_sample=False
special_tokens_map = {"bos_token": "<s>"}
author_email = None
license_key_field = "license"
# token-level accuracy over the held-out split
self.key = nn.Linear(embed_dim, embed_dim, bias=False)
pwd = os.getcwd()
salt_and_pepper_noise(image, amount=0.05)
pin_memory=True, num_workers=8
basic block with expansion 4
bearer = HTTPBearer()""".splitlines()
    names = [
        "attention",
        "kernel",
        "rotary",
        "normalize",
        "gradient",
        "projection",
        "hidden",
        "embedding",
    ]
    made = []
    for _ in range(40):
        words = draw.choices(names, k=draw.randint(2, 6))
        made.append(f"{'_'.join(words)} = self.{'_'.join(draw.choices(names, k=3))}(x)")
        made.append(
            f"class {''.join(w.title() for w in words)}{draw.randint(1, 99)}(nn.Module): ..."
        )
        made.append(f"workspace/{'/'.join(words)}/{draw.choice(names)}.py:{draw.randint(1, 999)}")
    made += [f"out[{draw.randint(0, 9)}] = {draw.random():.17f}" for _ in range(20)]
    made += [str(uuid.UUID(int=draw.getrandbits(128))).split("-")[0] for _ in range(5)]
    return fixed + made
