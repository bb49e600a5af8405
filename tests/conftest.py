"""What every test starts from, and how tests are dealt out to several processes."""

import gc
import hashlib
import os
import platform
import signal
from pathlib import Path

import pytest


def instructions() -> str:
    """What XLA compiles for: a file compiled for another processor must not be read here."""
    known = Path("/proc/cpuinfo")
    lines = known.read_text().splitlines() if known.exists() else []
    said = [line for line in lines if line.startswith(("model name", "flags", "Features"))]
    return hashlib.sha256("".join([platform.machine(), *sorted(set(said))]).encode()).hexdigest()


# Most of the suite's time is compilation: equal programs are compiled once, also by the next run,
# in another checkout, and by the other processes of this one, which inherit these settings. Should
# one read what another has half written, JAX warns and compiles it (pyproject.toml lets that
# warning pass).
HOME = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
CACHE = HOME / "gedppl" / "compiled-by-tests" / instructions()[:16]
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(CACHE))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.03")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")

# Tracing makes millions of small objects, and Python's collector would look through all of them
# after every 700 new ones: a twentieth to a tenth of the suite's time.
gc.set_threshold(100_000, 20, 20)

# A shell starts its background jobs with interrupts ignored, and processes inherit that: tests that
# interrupt need them.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure(config) -> None:
    """Quick tests compile more than they compute: XLA takes three times as long to compile well.
    The full statistical versions run what users run.
    """
    if config.option.markexpr == "not slow":
        flags = os.environ.get("XLA_FLAGS", "")
        os.environ["XLA_FLAGS"] = f"--xla_backend_optimization_level=0 {flags}".strip()


def pytest_collection_finish() -> None:
    """What was imported stays: the collector need not look at it again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def compiled_ahead(request, monkeypatch) -> None:
    """Short runs never come to the longer histories that a long one compiles ahead for: only the
    full statistical versions, and tests/test_speed_paths.py, do that.
    """
    if not request.node.get_closest_marker("slow"):
        from gedppl.programs.jax_kernels import JaxKernels

        monkeypatch.setattr(JaxKernels, "_next_bucket", lambda *_: None)


@pytest.hookimpl(optionalhook=True)  # of pytest-xdist
def pytest_xdist_make_scheduler(config, log):
    """With ``-n``: a file's tests go to one process, which compiles its models once. Files go in
    their order, so that the examples in docstrings, which are short, come last and all processes
    end at the same time.
    """
    from xdist.scheduler import LoadFileScheduling

    config.option.loadscopereorder = False
    return LoadFileScheduling(config, log)
