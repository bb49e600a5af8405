"""From the real numbers to what a torch constraint allows: torch's own bijections, and one more."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch.distributions import biject_to as torch_biject_to
from torch.distributions import constraints, transforms

from gedppl.errors import ModelError

if TYPE_CHECKING:
    from torch.distributions.constraints import Constraint


class LowerCholeskyTransform(transforms.Transform):
    """A vector as a lower triangular matrix with positive diagonal, in NumPyro's order; torch
    has no bijection for it.
    """

    domain = constraints.real_vector
    codomain = constraints.lower_cholesky
    bijective = True

    def _call(self, x: torch.Tensor) -> torch.Tensor:
        d = _matrix_size(x.shape[-1])
        rows, columns = torch.tril_indices(d, d, -1)
        place = torch.zeros(x.shape[-1] - d, d, d, dtype=x.dtype)
        place[torch.arange(len(rows)), rows, columns] = 1.0
        return torch.einsum("...k,kij->...ij", x[..., :-d], place) + torch.diag_embed(
            torch.exp(x[..., -d:])
        )

    def _inverse(self, y: torch.Tensor) -> torch.Tensor:
        d = y.shape[-1]
        rows, columns = torch.tril_indices(d, d, -1)
        return torch.cat(
            [y[..., rows, columns], torch.log(torch.diagonal(y, dim1=-2, dim2=-1))], dim=-1
        )

    def log_abs_det_jacobian(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x[..., -y.shape[-1] :].sum(-1)

    def forward_shape(self, shape: torch.Size) -> Any:
        return (*shape[:-1], _matrix_size(shape[-1]), _matrix_size(shape[-1]))

    def inverse_shape(self, shape: torch.Size) -> Any:
        return (*shape[:-2], shape[-1] * (shape[-1] + 1) // 2)


def _matrix_size(k: int) -> int:
    return (math.isqrt(1 + 8 * k) - 1) // 2


def biject_to(constraint: Constraint) -> Any:
    """The bijection from the real line (or vectors) to what the constraint allows."""
    if constraint is constraints.lower_cholesky:
        return LowerCholeskyTransform()
    try:
        return torch_biject_to(constraint)
    except NotImplementedError:
        raise ModelError(
            f"torch knows no bijection from the real numbers to the constraint {constraint}: write "
            "the parameter as a "
            "function of one with a simpler constraint (real, positive, interval, simplex, "
            "lower_cholesky)"
        ) from None


def is_identity(constraint: Constraint) -> bool:
    """Whether every free value is its own constrained value."""
    transform = biject_to(constraint)
    while isinstance(transform, transforms.IndependentTransform):
        transform = transform.base_transform
    return bool(transform == transforms.identity_transform)
