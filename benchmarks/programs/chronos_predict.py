"""chronos-forecasting: a T5 with patches forecasts series, the package's own pipeline; bfloat16."""

import sys

import torch
from chronos import ChronosBoltPipeline
from chronos.chronos_bolt import ChronosBoltModelForForecasting
from transformers import T5Config

small = "--small" in sys.argv
device, dtype = ("cuda", torch.bfloat16) if torch.cuda.is_available() else ("cpu", torch.float32)
width, depth, batch = (32, 2, 4) if small else (768, 12, 256)
patches = dict(context_length=512, prediction_length=64, input_patch_size=16, input_patch_stride=16, quantiles=[i / 10 for i in range(1, 10)], use_reg_token=True)
config = T5Config(d_model=width, d_kv=64 if not small else 8, d_ff=4 * width, num_layers=depth, num_heads=12 if not small else 4, vocab_size=2, pad_token_id=0, decoder_start_token_id=0, chronos_config=patches)
pipeline = ChronosBoltPipeline(ChronosBoltModelForForecasting(config).to(device, dtype).eval())
for _ in range(60):
    pipeline.predict(torch.randn(batch, 512), prediction_length=64)
