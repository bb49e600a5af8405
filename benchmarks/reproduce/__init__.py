"""Published experiments, vectorised over runs with NumPy: one file a paper. The command is
``benchmarks/published.py``.
"""
