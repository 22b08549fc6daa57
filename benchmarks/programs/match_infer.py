"""kornia: LoFTR finds what two pictures share, and an augmentation of pictures before it; float32, inference."""

import sys

import kornia
import torch

small = "--small" in sys.argv
device = "cuda" if torch.cuda.is_available() else "cpu"
size = 96 if small else 480
model = kornia.feature.LoFTR(pretrained=None).to(device).eval()
change = kornia.augmentation.AugmentationSequential(
    kornia.augmentation.RandomAffine(15.0, p=1.0), kornia.augmentation.ColorJiggle(0.2, 0.2, p=1.0))
with torch.inference_mode():
    for step in range(100):
        picture = torch.rand(1, 3, size, size, device=device)
        pair = [kornia.color.rgb_to_grayscale(one) for one in (picture, change(picture))]
        found = model({"image0": pair[0], "image1": pair[1]})
