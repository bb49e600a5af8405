"""Every tutorial runs from top to bottom in small settings: no cell raises, and what it asserts
about its numbers holds.
"""

from __future__ import annotations

import sys
from pathlib import Path

import jupytext
import pytest

TUTORIALS = sorted((Path(__file__).parents[1] / "tutorials").glob("*.py"))


def run_cells(notebook, name):
    """Execute a notebook's code cells in one namespace, as a kernel would; a failure names its
    cell.
    """
    namespace = {"__name__": "__main__"}
    for i, cell in enumerate(notebook.cells):
        if cell.cell_type == "code":
            exec(compile(cell.source, f"{name}, cell {i}", "exec"), namespace)
    return namespace


@pytest.fixture
def small(monkeypatch):
    import matplotlib.pyplot as plt

    monkeypatch.setenv("GEDPPL_SMALL", "1")
    monkeypatch.chdir(TUTORIALS[0].parents[1])
    monkeypatch.setattr(sys, "path", list(sys.path))  # one of them adds models/
    yield
    plt.close("all")


@pytest.mark.slow  # the site's build executes them all, in CI too
@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_tutorial(path, small, capsys):
    if "\nimport pyro\n" in path.read_text():
        pytest.importorskip("pyro")
    notebook = jupytext.read(path)
    assert notebook.cells[0].cell_type == "markdown"
    assert notebook.cells[0].source.startswith("# ")
    run_cells(notebook, path.name)
    assert capsys.readouterr().out


def test_there_are_tutorials():
    names = {
        "first_safe_decision",
        "your_own_model",
        "certificates",
        "real_patients",
        "paper_to_code",
        "eluder_dimension",
        "plan_a_study",
        "bayesian_path",
        "from_logs",
    }
    assert names <= {path.stem for path in TUTORIALS}


@pytest.mark.parametrize(
    ("source", "error"), [("assert 1 > 2", AssertionError), ("1 / 0", ZeroDivisionError)]
)
def test_a_tutorial_that_is_wrong_fails(source, error):
    notebook = jupytext.reads(
        f"# %% [markdown]\n# # Title\n\n# %%\nx = 1\n\n# %%\n{source}\n", fmt="py:percent"
    )
    with pytest.raises(error) as raised:
        run_cells(notebook, "wrong.py")
    assert "wrong.py, cell 2" in str(raised.traceback[-1].path)  # the failing cell is named
