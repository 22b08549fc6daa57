"""How the evaluator's processes come to be, what they may touch, and how they surely end."""
