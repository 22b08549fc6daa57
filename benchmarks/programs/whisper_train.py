"""transformers: a Whisper is fine-tuned to hear speech; bfloat16 autocast."""

import sys

import torch
from transformers import WhisperConfig, WhisperForConditionalGeneration

small = "--small" in sys.argv
device = "cuda" if torch.cuda.is_available() else "cpu"
tiny = dict(d_model=64, encoder_layers=2, decoder_layers=2, encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=128, decoder_ffn_dim=128, vocab_size=256, max_source_positions=64, pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1)
config = WhisperConfig(**(tiny if small else {}))
model = WhisperForConditionalGeneration(config).to(device).train()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
frames = torch.randn(2 if small else 8, 80, 2 * config.max_source_positions, device=device)
texts = torch.randint(3, config.vocab_size, (len(frames), 16 if small else 128), device=device)
for step in range(200):
    with torch.autocast(device, dtype=torch.bfloat16):
        loss = model(input_features=frames, labels=texts).loss
    loss.backward(), optimizer.step(), optimizer.zero_grad()
