"""What this installation is: versions, threads, where compiled kernels are kept, which extras are there."""

import importlib.util
import os
import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated, Any

import typer

from tandemrank import __version__
from tandemrank._base.progress import working
from tandemrank.cli.options import Json, app
from tandemrank.cli.terminal import print_summary

NEEDED = ("torch", "numba", "numpy", "polars", "scipy", "pydantic")
# What shows that an extra is installed.
EXTRAS = {
    "serve": "uvicorn", "cluster": "ray", "bucket": "fsspec", "trees": "lightgbm", "gym": "gymnasium", "export": "onnx",
}  # fmt: skip


@app.command()
def doctor(
    warm: Annotated[
        bool, typer.Option("--warm", help="Compile the kernels of `learn` now, once for this machine.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Says what is installed: versions, threads, caches, extras. With --warm the first `learn` need not compile."""
    if warm:
        with working("compiling the kernels"):
            _warm()
    print_summary(_found(), as_json)


def _found() -> dict[str, Any]:
    import numba

    from tandemrank.gradients._kernels.compiled import cache_folder

    folder = cache_folder()
    return {
        "tandemrank": __version__,
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}",
        **{name: _version(name) for name in NEEDED},
        "cores": os.cpu_count(),
        "threads": numba.get_num_threads(),
        "kernels": "nowhere to keep them" if folder is None else str(folder),
        "compiled": 0 if folder is None else len(list(folder.rglob("*.nbc"))),
        "extras": [
            f"{name}: {'installed' if importlib.util.find_spec(module) else f'pip install tandemrank[{name}]'}"
            for name, module in EXTRAS.items()
        ],
    }


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "missing"


def _warm() -> None:
    """Learns from a small log: its lists vary, so propensities are fitted, and of few candidates there are two stages."""
    import numpy as np
    import polars as pl

    from tandemrank.training.learning import learn

    rng = np.random.default_rng(0)
    items = np.argsort(rng.random((4000, 40)), 1)[:, :5]
    clicks = (rng.random(items.shape) < np.where(items < 8, 0.6, 0.1)).astype(np.int8)
    learn(pl.DataFrame({"query_id": rng.integers(0, 60, 4000), "items": items, "clicks": clicks}), candidates=10)
