"""A small policy on HTTP for tests: in this process, without a socket, or as a process of its own on the loopback."""

import asyncio
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import polars as pl

from tandemrank._base.ids import Vocabulary
from tandemrank.policies.scorers import MatrixFactorisation
from tandemrank.policies.two_stage import TwoStagePolicy
from tandemrank.serving.app import Context, application
from tandemrank.serving.client import started
from tandemrank.serving.live_policy import Scores
from tandemrank.serving.records import Impression, Mixture, ShownList
from tandemrank.serving.run import Address, Limits
from tandemrank.serving.service import Service, Settings

Q, D, K2, K = 6, 12, 6, 3
TOKEN = "a-token-for-tests-only"


class Clock:
    """A time that tests move."""

    def __init__(self) -> None:
        self.now = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now


def policy(seed: int = 0, *, items: int = D, K: int = K) -> TwoStagePolicy:
    rng = np.random.default_rng(seed)
    stages = [MatrixFactorisation(rng.normal(size=(Q, 3)), rng.normal(size=(items, 3))) for _ in range(2)]
    ids = Vocabulary(pl.Series(range(10, 10 + Q)), pl.Series([f"i{d}" for d in range(items)]))
    return TwoStagePolicy(stages[0], stages[1], K2, K, ids)


def saved(folder: Path, *seeds: int) -> Path:
    """Policies policy-0, policy-1, ... in a folder."""
    for seed in seeds:
        policy(seed).save(folder / f"policy-{seed}")
    return folder


def rows(scores: Scores) -> tuple[np.ndarray, np.ndarray]:
    """Both stages' scores of all items."""
    s_r = scores.ranker
    return scores.s_c, s_r if isinstance(s_r, np.ndarray) else s_r(np.arange(scores.first.size))


def shown(
    mixture: Mixture,
    arm: int = 0,
    unit: str | None = None,
    *,
    name: str = "a",
    time: float = 0.0,
) -> ShownList:
    """A list of three items that went out."""
    impression = Impression(
        id=name,
        time=time,
        query_id=11,
        items=("i1", "i2", "i3"),
        policy=mixture[arm][0],
        strategy="trained",
        key=0,
        places=3,
        available=None,
        mixture=mixture,
        theta=(1.0, 0.5, 0.3),
    )
    return ShownList(impression, arm, unit)


class Local:
    """The application in this process; every call is whole when it returns."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self._loop = asyncio.new_event_loop()
        self.app = application(context)
        self._life = self.app.router.lifespan_context(self.app)
        self._loop.run_until_complete(self._life.__aenter__())
        transport = httpx.ASGITransport(app=self.app, raise_app_exceptions=False)
        self._client = httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1")

    def call(self, method: str, path: str, body: Any = None, **options: Any) -> httpx.Response:
        headers = options.pop("headers", {})
        if body is not None and "content" not in options:
            options["json"] = body
        return self._loop.run_until_complete(self._client.request(method, path, headers=headers, **options))

    def post(self, path: str, body: Any = None, *, admin: bool = False, **options: Any) -> httpx.Response:
        headers = {"Authorization": f"Bearer {TOKEN}"} if admin else {}
        return self.call(
            "POST", path, {} if body is None else body, headers=headers | options.pop("headers", {}), **options
        )

    def get(self, path: str) -> httpx.Response:
        return self.call("GET", path)

    def close(self) -> None:
        self._loop.run_until_complete(self._client.aclose())
        self._loop.run_until_complete(self._life.__aexit__(None, None, None))
        self._loop.close()


@contextmanager
def local(
    folder: Path,
    *,
    host: str = "127.0.0.1",
    limits: Limits | None = None,
    clock: Any = None,
    **switches: Any,
) -> Iterator[Local]:
    """A server with policy-0 of a folder; nothing happens on its own, tests tick it themselves."""
    settings = Settings(folder / "policy-0", **{"log": folder / "log", "samples": 5, "settle": 10.0, **switches})
    service = Service(settings, clock=clock or Clock())
    found = Local(Context(service, Address(host, token=TOKEN, limits=limits or Limits()), tick=0, seal=0))
    try:
        yield found
    finally:
        found.close()


@contextmanager
def process(folder: Path, *options: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """`tandemrank serve` with policy-0 of a folder on a free port; gives its address when it says that it listens."""
    with started(str(folder / "policy-0"), *options, token=TOKEN) as found:
        yield found
