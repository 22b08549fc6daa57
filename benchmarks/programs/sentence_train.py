"""sentence-transformers: a BERT learns sentence vectors from pairs, bfloat16 autocast."""

import sys
import tempfile

import torch
from sentence_transformers import SentenceTransformer, losses
from transformers import BertConfig, BertModel, BertTokenizerFast

small, device = "--small" in sys.argv, "cuda" if torch.cuda.is_available() else "cpu"
sizes = dict(hidden_size=64, num_hidden_layers=2, num_attention_heads=2, intermediate_size=128, vocab_size=200)
with tempfile.TemporaryDirectory() as folder:
    open(f"{folder}/vocab.txt", "w").write("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b"]))
    BertTokenizerFast(f"{folder}/vocab.txt").save_pretrained(folder)
    BertModel(BertConfig(**sizes if small else {}, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)).save_pretrained(folder)
    model = SentenceTransformer(folder, device=device).train()
loss_of = losses.MultipleNegativesRankingLoss(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5)
for step in range(200):
    pairs = [torch.randint(5, 200 if small else 30000, (4, 16) if small else (64, 128), device=device) for _ in "ab"]
    batch = [{"input_ids": one, "attention_mask": torch.ones_like(one)} for one in pairs]
    with torch.autocast(device, dtype=torch.bfloat16):
        loss = loss_of(batch, labels=None)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
