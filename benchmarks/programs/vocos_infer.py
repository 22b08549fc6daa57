"""vocos: a vocoder turns spectrograms into waves; float32, inference."""

import sys

import torch
from vocos.feature_extractors import MelSpectrogramFeatures
from vocos.heads import ISTFTHead
from vocos.models import VocosBackbone
from vocos.pretrained import Vocos

small = "--small" in sys.argv
width, depth, seconds, batch = (64, 2, 1, 1) if small else (512, 8, 10, 16)
device = "cuda" if torch.cuda.is_available() else "cpu"
backbone = VocosBackbone(input_channels=100, dim=width, intermediate_dim=3 * width, num_layers=depth)
vocos = Vocos(MelSpectrogramFeatures(), backbone, ISTFTHead(dim=width, n_fft=1024, hop_length=256)).to(device).eval()
wave = torch.randn(batch, 24000 * seconds, device=device)
for step in range(200):
    vocos(wave)
