"""The rooms that import a probabilistic programming language."""
