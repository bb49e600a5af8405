"""gedppl: safe sequential decisions from probabilistic programs."""

__version__ = "0.1.0"
