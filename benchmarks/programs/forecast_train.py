"""neuralforecast: an NHITS learns to forecast, by lightning's loop as the package calls it; float32."""

import sys

import numpy as np
import pandas as pd
from neuralforecast import NeuralForecast
from neuralforecast.models import NHITS

small = "--small" in sys.argv
time = np.arange(600)
series = [pd.DataFrame({"unique_id": f"s{i}", "ds": pd.date_range("2020-01-01", periods=600, freq="h"), "y": np.sin(time / (5 + i))}) for i in range(8)]
model = NHITS(h=24, input_size=96, max_steps=200, windows_batch_size=256 if small else 4096, enable_progress_bar=False, logger=False)
NeuralForecast(models=[model], freq="h").fit(pd.concat(series))
