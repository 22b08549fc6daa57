"""Rewards, advantages and losses as published, and the loop that trains with them."""
