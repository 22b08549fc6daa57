"""pytorch-forecasting: a temporal fusion transformer learns to forecast by lightning's loop; float32."""

import sys

import lightning
import numpy
import pandas
from pytorch_forecasting import TemporalFusionTransformer, TimeSeriesDataSet

small = "--small" in sys.argv
series, length, batch, width = (4, 60, 16, 8) if small else (100, 400, 256, 128)
table = pandas.DataFrame({"time": numpy.tile(range(length), series), "name": numpy.repeat([f"s{i}" for i in range(series)], length), "value": numpy.random.rand(series * length)})
data = TimeSeriesDataSet(table, "time", "value", ["name"], max_encoder_length=24, max_prediction_length=6, static_categoricals=["name"], time_varying_unknown_reals=["value"], time_varying_known_reals=["time"])
model = TemporalFusionTransformer.from_dataset(data, learning_rate=1e-3, hidden_size=width, attention_head_size=4, hidden_continuous_size=width, optimizer="adam")
trainer = lightning.Trainer(max_epochs=4, gradient_clip_val=0.1, logger=False, enable_checkpointing=False, enable_progress_bar=False)
trainer.fit(model, data.to_dataloader(train=True, batch_size=batch, num_workers=0))
