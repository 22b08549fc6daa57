"""speechbrain: an ECAPA-TDNN learns who speaks, by the package's own Brain; float32."""
import sys

import speechbrain
import torch
from speechbrain.lobes.features import Fbank
from speechbrain.lobes.models.ECAPA_TDNN import ECAPA_TDNN, Classifier

width, seconds, batch = (32, 1, 2) if "--small" in sys.argv else (1024, 3, 32)

class Speaker(speechbrain.Brain):
    def compute_forward(self, batch, stage):
        return self.modules.classifier(self.modules.embedding(self.modules.features(batch[0].to(self.device))))
    def compute_objectives(self, predictions, batch, stage):
        return torch.nn.functional.cross_entropy(predictions[:, 0], batch[1].to(self.device))

data = torch.utils.data.TensorDataset(torch.randn(40 * batch, 16000 * seconds), torch.randint(100, (40 * batch,)))
modules = {"features": Fbank(n_mels=80), "embedding": ECAPA_TDNN(80, channels=[width] * 4 + [3 * width]), "classifier": Classifier(192, out_neurons=100)}
brain = Speaker(modules, lambda p: torch.optim.Adam(p, lr=1e-3), run_opts={"device": "cuda" if torch.cuda.is_available() else "cpu"})
brain.fit(range(5), data, train_loader_kwargs={"batch_size": batch}, progressbar=False)
