"""gluonts: a DeepAR learns to forecast, the package's own estimator over Lightning; float32."""

import sys

import numpy as np
from gluonts.dataset.common import ListDataset
from gluonts.torch import DeepAREstimator

small = "--small" in sys.argv
width, batch, context = (16, 8, 24) if small else (256, 256, 168)
rng = np.random.default_rng(0)
series = [{"start": "2024-01-01", "target": rng.normal(size=600).cumsum()} for _ in range(64)]
estimator = DeepAREstimator(freq="H", prediction_length=12, context_length=context, hidden_size=width, batch_size=batch, num_batches_per_epoch=60, trainer_kwargs={"max_epochs": 3, "enable_progress_bar": False, "logger": False})
estimator.train(ListDataset(series, freq="H"))
