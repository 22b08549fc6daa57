"""Rewards, advantages and losses as published, over rows of tokens: arithmetic alone."""
