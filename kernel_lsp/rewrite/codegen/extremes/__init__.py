"""The largest or smallest element along a dimension, with its place."""
