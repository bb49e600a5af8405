"""Posterior draws of a Pyro program's flat parameters by Pyro's NUTS.

As in `numpyro_nuts`, chains run in coordinates z with theta = centre + root @ z. The log posterior
and its gradient are recorded once as a graph, which saves the way through the program at every
step.

Axis letters: C chains, S draws of a chain, D flat parameters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from pyro.infer import MCMC
from pyro.infer.mcmc import NUTS
from pyro.ops.stats import effective_sample_size, split_gelman_rubin

from gedppl.programs.chains import Chains, summarised
from gedppl.programs.torch_graphs import log_posterior
from gedppl.rows import Rows

if TYPE_CHECKING:
    from gedppl.learning.fits import WorkingPrior


class _Known(torch.autograd.Function):
    """A number whose gradient was computed along with it."""

    @staticmethod
    def forward(ctx: Any, z: torch.Tensor, value: torch.Tensor, grad: torch.Tensor) -> Any:
        ctx.save_for_backward(grad)
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *above: torch.Tensor) -> Any:
        return above[0] * ctx.saved_tensors[0], None, None


def run_chains(
    cls: Any,
    rows: Rows,
    weak: WorkingPrior,
    centre: np.ndarray,
    root: np.ndarray,
    starts: np.ndarray,
    size: int,
    warmup: int,
    seed: int,
) -> Chains:
    """C chains of `size` draws each of theta given rows, from starts (C, D) in the coordinates
    z.
    """
    evaluate = log_posterior(cls.program, rows, None, centre[None])
    middle, axes = torch.as_tensor(centre), torch.as_tensor(root)

    def potential(params: dict[str, torch.Tensor]) -> Any:
        z = params["z"]
        theta = (middle + axes @ z.detach()).numpy()
        value, grad = evaluate(theta[None])
        pull = weak.precision * (theta - weak.mean)
        value, grad = 0.5 * pull @ (theta - weak.mean) - value[0], pull - grad[0]
        return _Known.apply(z, torch.as_tensor(value), torch.as_tensor(grad) @ axes)

    drawn, divergent = [], 0
    with torch.random.fork_rng(devices=[]):
        for c, start in enumerate(starts):
            torch.manual_seed(seed * 1009 + c)
            chain = MCMC(
                NUTS(potential_fn=potential),
                num_samples=size,
                warmup_steps=warmup,
                disable_progbar=True,
                initial_params={"z": torch.as_tensor(start)},
            )
            chain.run()
            drawn.append((middle + chain.get_samples()["z"] @ axes.T).numpy())
            divergent += sum(
                len(found) for found in chain.diagnostics().get("divergences", {}).values()
            )
    theta = np.array(drawn, float)
    every = torch.as_tensor(theta)
    ess, rhat = (
        number(every, 0, 1).numpy() for number in (effective_sample_size, split_gelman_rubin)
    )
    return summarised(theta, divergent, ess, rhat)
