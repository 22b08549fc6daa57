"""Losses that need more than a reduction: cross entropy, cosine embedding, triplet margin."""
