"""One namespace for NumPy, JAX and torch arrays.

Formulas in `families`, `functionals` and `divergences` are written once, against the namespace of their inputs:

>>> import numpy as np
>>> xp = namespace(np.ones(2))
>>> float(xp.gammaln(np.float64(5.0)))
3.178053830347946

NumPy is the default and the only one imported here; JAX and torch are touched only once an array of theirs arrives.
Every namespace offers the same names (see `NAMES`), with NumPy's argument conventions (`axis=`, not `dim=`).
"""

from __future__ import annotations
