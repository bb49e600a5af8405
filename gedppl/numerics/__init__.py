"""Arithmetic that runs on NumPy, JAX and torch alike: array namespaces, special functions,
integrals, quantiles.
"""
