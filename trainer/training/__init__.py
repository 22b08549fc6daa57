"""One training run: its optimizer steps, its curves, its checkpoints, and who may write them."""
