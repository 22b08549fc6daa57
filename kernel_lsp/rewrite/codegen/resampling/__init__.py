"""Bilinear and bicubic resampling of images."""
