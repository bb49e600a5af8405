"""Sums of log-likelihoods over a whole history, compiled for padded rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gedppl.programs.jax_compiled import Compiled
from gedppl.rows import Histories, Rows, bucket, pad

AHEAD = 48  # rows before the end of a bucket by which the next one is begun at the latest
AT_ONCE = 64  # settings whose sums over a history are asked for in one call


class JaxSums:
    """Of a traced program, which provides what is named here."""

    call: Callable[..., Any]
    _compiled: Compiled
    row_log_likelihood: Callable[..., Any]
    histories: Histories
    dim: int

    def knows(self, rows: Rows) -> bool:
        return rows in self.histories

    def known_part(self, rows: Rows) -> int:
        return self.histories.known_part(rows)

    def remember(self, rows: Rows) -> tuple[Any, ...]:
        """The padded history on the device: x, a, y and weights."""
        with jax.enable_x64(True):
            return self.histories.get(
                rows, lambda: tuple(jax.device_put(array) for array in rows.padded())
            )

    def _history(self, rows: Rows, weights: np.ndarray | None) -> tuple[Any, ...]:
        x, a, y, w = self.remember(rows)
        if weights is not None:
            w = np.zeros(w.shape)
            w[: rows.n] = weights
        return x, a, y, w

    def _next_bucket(
        self, name: str, function: Callable[..., Any], first: tuple[np.ndarray, ...], rows: Rows
    ) -> None:
        """Begin to compile function(*first, *history) for the next bucket once this one is half
        full, the first one earlier, so that no decision has to wait for it in the middle of a run.
        """
        size = bucket(rows.n)
        if size - rows.n < max(size // 2, AHEAD):
            history = [
                jax.ShapeDtypeStruct((bucket(size + 1), *array.shape[1:]), array.dtype)
                for array in self.remember(rows)
            ]
            self._compiled.begin(name, function, *first, *history)

    def _sum(self, theta: jax.Array, x: jax.Array, a: jax.Array, y: jax.Array, w: jax.Array) -> Any:
        logs = self.row_log_likelihood(theta, x, a, y)
        return jnp.sum(jnp.where(w == 0.0, 0.0, w * logs))

    def _at_settings(
        self,
        name: str,
        one: Callable[..., Any],
        theta: np.ndarray,
        rows: Rows,
        weights: np.ndarray | None,
    ) -> list[np.ndarray]:
        """one(theta_m, *history) at every setting of theta (M, D), one after another: on a CPU
        as fast as side by side, and however many there are, a history's bucket is compiled once.
        """

        def function(theta: jax.Array, m: jax.Array, *history: tuple[jax.Array, ...]) -> Any:
            def step(i: jax.Array, out: jax.Array) -> Any:
                return jax.tree.map(
                    lambda all_, new: all_.at[i].set(new), out, one(theta[i], *history)
                )

            shapes = jax.eval_shape(one, theta[0], *history)
            return jax.lax.fori_loop(
                0, m, step, jax.tree.map(lambda leaf: jnp.zeros((AT_ONCE, *leaf.shape)), shapes)
            )

        history, parts = self._history(rows, weights), []
        for first in range(0, len(theta), AT_ONCE):
            some = theta[first : first + AT_ONCE]
            asked = pad(some, AT_ONCE), np.array(len(some))
            out = self.call(name, function, *asked, *history)
            self._next_bucket(name, function, asked, rows)
            parts.append([np.asarray(leaf)[: len(some)] for leaf in jax.tree.leaves(out)])
        return [np.concatenate(column) for column in zip(*parts)]

    def total(self, theta: np.ndarray, rows: Rows, weights: np.ndarray | None) -> np.ndarray:
        return self._at_settings("total", self._sum, theta, rows, weights)[0]

    def total_grad(
        self, theta: np.ndarray, rows: Rows, weights: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray]:
        value, grad = self._at_settings(
            "total_grad", jax.value_and_grad(self._sum), theta, rows, weights
        )
        return value, grad

    def total_hessian(
        self, theta: np.ndarray, rows: Rows, weights: np.ndarray | None
    ) -> np.ndarray:
        def function(theta: jax.Array, *history: tuple[jax.Array, ...]) -> Any:
            grad = jax.grad(self._sum)

            def column(direction: jax.Array) -> Any:
                return jax.jvp(lambda one: grad(one, *history), (theta,), (direction,))[1]

            if self.dim <= 64:
                return jax.vmap(column)(jnp.eye(self.dim))
            # bounds the memory of a large network
            return jax.lax.map(column, jnp.eye(self.dim), batch_size=32)

        hessian = np.array(
            self.call("total_hessian", function, theta, *self._history(rows, weights))
        )
        self._next_bucket("total_hessian", function, (theta,), rows)
        return (hessian + hessian.T) / 2
