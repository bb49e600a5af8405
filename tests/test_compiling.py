"""What is compiled beside a run: a process that ends waits for it."""

from __future__ import annotations

import subprocess
import sys

import jax
import pytest

from gedppl.programs import jax_compiled

ENDS_AT_ONCE = """
import threading, time
import numpy as np
from gedppl.programs import jax_compiled

{before}

def function(x):
    time.sleep(1.0)  # while the process ends
    print("traced", flush=True)
    return x + 1.0

jax_compiled.Compiled().begin("next", function, np.zeros(3))
"""
GIVEN_UP = """
class Thread(threading.Thread):
    def __init__(self, **options):
        super().__init__(daemon=True, **options)

jax_compiled.threading.Thread = Thread
"""


def ended(before: str) -> subprocess.CompletedProcess[str]:
    code = ENDS_AT_ONCE.format(before=before)
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False
    )


def test_a_process_ends_after_what_is_being_compiled() -> None:
    found = ended("")
    assert found.returncode == 0, found.stderr
    assert found.stdout == "traced\n"


@pytest.mark.slow
def test_without_waiting_it_would_be_given_up_halfway() -> None:
    """The control: what runs on as a daemon is cut off."""
    assert ended(GIVEN_UP).stdout == ""


def test_options_that_xla_does_not_know_are_left_out(monkeypatch) -> None:
    """What compiles fast in one version of XLA must not stop another."""
    unknown = {"xla_cpu_no_such_option": True}
    with pytest.raises(jax.errors.JaxRuntimeError, match="xla_cpu_no_such_option"):
        jax.jit(lambda: 0).lower().compile(compiler_options=unknown)
    monkeypatch.setattr(jax_compiled, "QUICK", jax_compiled.QUICK | unknown)
    known = jax_compiled.quickly.__wrapped__()
    assert "xla_cpu_no_such_option" not in known
    assert jax.jit(lambda: 1).lower().compile(compiler_options=known)() == 1
