"""What the first `learn` of a machine costs more than the second: compiling the kernels.

    python benchmarks/cold_start.py --json

Learns from one log twice, in processes of their own: with an empty folder for compiled kernels, and with what the first left
there. Processor seconds of the whole process, on one thread. About a minute.
"""

import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from _common import options, report


def measure(progress: Callable[[int], None]) -> dict[str, float]:
    """Seconds of both, and the difference."""
    with tempfile.TemporaryDirectory() as at:
        place = {**os.environ, "NUMBA_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        switches = ["--set", "queries=400", "--set", "items=300", "--set", "rank=20"]
        _run("simulate", *switches, "--impressions", "60000", "--out", f"{at}/shop", env=place)
        kept = place | {"NUMBA_CACHE_DIR": str(Path(at) / "kernels")}
        learn = ("learn", "--logs", f"{at}/shop/log", "--candidates", "60", "--out")
        first, second = (_run(*learn, f"{at}/{name}", env=kept) for name in ("first", "second"))
    return {"first_seconds": first, "second_seconds": second, "compiling_seconds": first - second}


def _run(*words: str, env: dict[str, str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-m", "tandemrank", *words], env=env, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    report(measure, "learning twice", as_json=options(__doc__).parse_args().json)
