"""d3rlpy: a conservative Q-learner learns from logged episodes, the package's own loop; float32."""

import sys

import d3rlpy
import numpy as np
import torch

small = "--small" in sys.argv
count, width, batch = (1000, 32, 32) if small else (100_000, 256, 1024)
rng = np.random.default_rng(0)
data = d3rlpy.dataset.MDPDataset(
    observations=rng.normal(size=(count, 17)).astype("float32"), actions=rng.uniform(-1, 1, (count, 6)).astype("float32"),
    rewards=rng.normal(size=(count, 1)).astype("float32"), terminals=(np.arange(count) % 100 == 99).astype("float32"))
encoder = d3rlpy.models.encoders.VectorEncoderFactory([width, width])
learner = d3rlpy.algos.CQLConfig(batch_size=batch, actor_encoder_factory=encoder, critic_encoder_factory=encoder).create(device="cuda:0" if torch.cuda.is_available() else "cpu:0")
learner.fit(data, n_steps=400, n_steps_per_epoch=200, show_progress=False, save_interval=1000, logger_adapter=d3rlpy.logging.NoopAdapterFactory())
