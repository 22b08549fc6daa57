"""torch-rechub: a deep interest network learns to recommend, the package's own trainer; float32."""

import sys

import torch
from torch_rechub.basic.features import SequenceFeature, SparseFeature
from torch_rechub.models.ranking import DIN
from torch_rechub.trainers import CTRTrainer
from torch_rechub.utils.data import DataGenerator

small = "--small" in sys.argv
rows, items, batch = (4000, 100, 64) if small else (400000, 100000, 4096)
sizes = dict(vocab_size=items, embed_dim=8 if small else 64)
features = [SparseFeature("user", **sizes)], [SequenceFeature("past", pooling="concat", shared_with="item", **sizes)], [SparseFeature("item", **sizes)]
model = DIN(*features, mlp_params={"dims": [256, 128]}, attention_mlp_params={"dims": [256, 128]})
x = {"user": torch.randint(items, (rows,)).numpy(), "past": torch.randint(items, (rows, 20)).numpy(), "item": torch.randint(items, (rows,)).numpy()}
train, valid, _ = DataGenerator(x, torch.randint(2, (rows,)).float().numpy()).generate_dataloader(split_ratio=[0.8, 0.1], batch_size=batch)
trainer = CTRTrainer(model, n_epoch=4, device="cuda" if torch.cuda.is_available() else "cpu", model_path="/tmp")
trainer.fit(train, valid)
