"""What every test starts from, and how tests are dealt out to several processes."""

import signal

import pytest

# A shell starts its background jobs with interrupts ignored, and processes inherit that: tests that
# interrupt need them.
signal.signal(signal.SIGINT, signal.default_int_handler)

APART = ("test_models.py", "test_tutorials.py", "test_workers.py")  # long tests that share nothing


@pytest.hookimpl(optionalhook=True)  # of pytest-xdist
def pytest_xdist_make_scheduler(config, log):
    """With ``-n``: a file's tests go to one process, which compiles its models once; tests of
    `APART` go one by one, last.
    """
    from xdist.scheduler import LoadFileScheduling

    class ByFile(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = super()._split_scope(nodeid)
            return nodeid if file.endswith(APART) else file

    return ByFile(config, log)
