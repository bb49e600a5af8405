"""ArviZ, whichever is installed: `InferenceData` in 0.x (Python 3.11), an xarray `DataTree` in 1.x
(Python 3.12 and later).

The one place that knows the difference. ArviZ is imported when it is first needed.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import xarray

# writes through h5py; both are declared dependencies, since no version of ArviZ brings both
ENGINE = "h5netcdf"


@contextmanager
def quiet() -> Iterator[None]:
    """ArviZ 0.23 announces its successor with a FutureWarning at import; that is no concern of
    our caller.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        warnings.simplefilter("ignore", DeprecationWarning)
        yield


def arviz() -> ModuleType:
    with quiet():
        import arviz

    found: ModuleType = arviz
    return found


def major(module: ModuleType) -> int:
    """0 for ArviZ 0.23, 1 for ArviZ 1.3."""
    return int(module.__version__.split(".")[0])


def from_groups(groups: Mapping[str, xarray.Dataset]) -> Any:
    """Named groups as the installed ArviZ takes them: an `InferenceData` or a `DataTree`."""
    module = arviz()
    if major(module) < 1:
        return module.InferenceData(**groups)
    import xarray

    return xarray.DataTree.from_dict({f"/{name}": data for name, data in groups.items()})


def group_names(data: Any) -> list[str]:
    """The names of the groups of what `from_groups` gave, in their order."""
    return list(data.children) if hasattr(data, "children") else list(data.groups())


def write_netcdf(data: Any, path: Path) -> None:
    """The groups as one netCDF file, which `arviz.from_netcdf` opens; a file that is there is
    replaced, whatever it held.
    """
    with quiet():
        data.to_netcdf(str(path), engine=ENGINE)
