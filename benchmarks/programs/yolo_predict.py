"""ultralytics: a YOLOv8 of random weights looks at pictures, by the package's own predictor; float32."""

import sys

import numpy as np
import torch
from ultralytics import YOLO

small = "--small" in sys.argv
size = 320 if small else 640
model = YOLO("yolov8n.yaml" if small else "yolov8m.yaml")
for _ in range(60):
    picture = np.random.randint(0, 255, (size, size, 3), dtype=np.uint8)
    model.predict(picture, imgsz=size, device=0 if torch.cuda.is_available() else "cpu", verbose=False)
