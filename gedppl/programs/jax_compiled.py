"""Functions of a traced program, compiled once for each kind of question and shape."""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Callable
from functools import cache
from typing import Any

import jax
import numpy as np

from gedppl.errors import GedError, ModelError
from gedppl.programs import LOCK

# Programs here are small: they run in microseconds, and to compile one takes tenths of a second.
# XLA's plain code generator, and one module instead of 32, halve that, and run no slower.
QUICK = {"xla_cpu_use_fusion_emitters": False, "xla_cpu_parallel_codegen_split_count": 1}
# asked so seldom that compiling them well would cost more than it saves
RARE = ("draw_prior", "first_look", "feature_table")
KEPT = 512

Key = tuple[str, Any, tuple[tuple[int, ...], ...]]  # name, what is static in it, shapes


@cache
def quickly() -> dict[str, Any]:
    """Those of `QUICK` that the XLA at hand knows."""
    known: dict[str, Any] = {}
    for option, value in QUICK.items():
        with contextlib.suppress(jax.errors.JaxRuntimeError):  # it has no such option
            jax.jit(lambda: 0).lower().compile(compiler_options={option: value})
            known[option] = value
    return known


def _lowered(name: str, function: Callable[..., Any], args: Any) -> Any:
    """`function` lowered for these arguments; what JAX cannot do with a program has a name."""
    try:
        return jax.jit(function).lower(*args)
    except GedError:
        raise
    except ValueError as error:
        said = str(error).partition("\n")[0]
        raise ModelError(
            f"JAX cannot make {name!r} of this program: {said} Loops need ends that are known "
            "(jax.lax.scan, or fori_loop with numbers), and jax.checkpoint around what reads an "
            "array by an index can be left out"
        ) from error


class Compiled:
    """The latest `KEPT` of them, and those that are being compiled for later. Threads may share
    it.
    """

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}  # how often each function was compiled
        self.known: OrderedDict[Key, Any] = OrderedDict()
        self._begun: dict[Key, threading.Thread] = {}
        self._guard = threading.Lock()

    def find(self, key: Key, function: Callable[..., Any], args: Any) -> Any:
        """`function` compiled for arguments of the key's shapes."""
        begun = self._begun.get(key)
        if begun is not None:  # it is on its way: to do it twice would take longer
            begun.join()
        return self.known.get(key) or self._compile(key, function, args)

    def begin(self, name: str, function: Callable[..., Any], *args: Any) -> None:
        """Compile `function` for arguments of these shapes beside what else is going on.

        At its end the process waits for what was begun, a second or so: to give a compiler up
        halfway is not safe.
        """
        key = (name, None, tuple(np.shape(arg) for arg in args))

        def work() -> None:
            # what fails here fails again, and is said, when it is asked for
            with contextlib.suppress(Exception), jax.enable_x64(True):
                self._compile(key, function, args)

        with self._guard:
            if key in self.known or key in self._begun:
                return
            thread = self._begun[key] = threading.Thread(target=work, name=f"gedppl: {name}")
        thread.start()

    def _compile(self, key: Key, function: Callable[..., Any], args: Any) -> Any:
        name, static, _ = key
        options = quickly() | ({"xla_backend_optimization_level": 0} if name in RARE else {})
        with LOCK:  # this runs the user's program; what follows does not
            lowered = _lowered(name, function, args)
        compiled = lowered.compile(compiler_options=options)
        with self._guard:
            self.known[key] = compiled
            kind = name if static is None else f"{name} of {static}"
            self.counts[kind] = self.counts.get(kind, 0) + 1
            while len(self.known) > KEPT:
                self.known.popitem(last=False)
        return compiled
