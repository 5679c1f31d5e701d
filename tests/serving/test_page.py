"""The page for people, in a real browser: every panel is filled, a query is tried, a canary started and rolled back by hand."""

import asyncio
import json
import os
import queue
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from browser import CHROMIUM, browser
from served import TOKEN, local, saved
from tandemrank._base.ids import Vocabulary
from tandemrank.policies.scorers import MatrixFactorisation
from tandemrank.policies.two_stage import TwoStagePolicy
from tandemrank.serving import app, run
from tandemrank.serving.client import Client
from tandemrank.serving.service import Settings

EVIL = "<img src=x onerror=window.evil=1>"


@contextmanager
def running(folder: Path, log: Path) -> Iterator[str]:
    """A server on a real port, in a thread."""
    ports: queue.Queue[int] = queue.Queue()
    server = app.server(
        Settings(folder / "policy-0", log=log, settle=0.0),
        run.Address(port=0, token=TOKEN),
        listening=ports.put,
        tick=0.01,
    )
    thread = threading.Thread(target=lambda: asyncio.run(server.serve()))
    thread.start()
    try:
        yield f"http://127.0.0.1:{ports.get(timeout=60)}"
    finally:
        server.should_exit = True
        thread.join()


def use(url: str, n: int) -> None:
    """Some users."""
    client, rng = Client(url), np.random.default_rng(0)
    for number in range(n):
        found = client.rank(10 + number % 6)
        clicked = [item for k, item in enumerate(found["items"]) if rng.random() < 0.5 / (k + 1)]
        if clicked:
            client.click(found["impression_id"], *clicked)
    client.close()


@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium (Debian: apt-get install chromium)")
def test_in_a_browser(tmp_path) -> None:
    folder = saved(tmp_path / "policies", 0, 1)
    with running(folder, tmp_path / "log") as url, browser(tmp_path) as seen:
        use(url, 60)
        seen.screen(1200, 1000)
        seen.open(url)
        seen.wait("document.getElementById('tallies').textContent.includes('policy-0')")
        assert seen.look("document.getElementById('arms').textContent").startswith("policy-0")
        # Without the token a canary is refused, and the page says why.
        seen.click("#canary")
        seen.wait("document.getElementById('problem').textContent.includes('token')")
        seen.problems.clear()  # the browser's own line about the 401
        seen.write("#token", TOKEN)
        seen.click("#canary")
        seen.wait("document.querySelectorAll('#arms tr').length === 2")
        assert "10%" in seen.look("document.getElementById('arms').textContent")
        use(url, 150)
        seen.wait("document.querySelectorAll('#history polyline').length === 1")
        seen.wait("document.querySelectorAll('#tallies tr').length === 2")
        # Every bar of clicks by rank has its interval, around its end, and at most as high as the panel.
        bars = """[...document.querySelectorAll('#ranks rect')].map((bar, n) => {
            const box = document.querySelectorAll('#ranks .whisker')[n].getBBox(), top = Number(bar.getAttribute('y'));
            return box.y <= top && top <= box.y + box.height && box.y >= 9 && box.height > 0; })"""
        assert seen.look(bars) == [True] * 6
        assert "at most" in seen.look("document.getElementById('numbers').textContent")
        assert seen.look("document.getElementById('numbers').textContent").count("impressions") == 1
        seen.write("#query", "11")
        seen.click("#ask button")
        seen.wait("document.querySelectorAll('#answers table').length === 2")
        assert seen.look("document.querySelectorAll('#answers tbody tr').length") >= 10
        for panel in ("arms", "latency", "rates", "tallies", "ranks", "words", "history", "changes", "answers"):
            assert seen.look(f"document.getElementById('{panel}').childNodes.length") > 0, panel
        assert seen.look("document.documentElement.scrollWidth - document.documentElement.clientWidth") == 0
        picture = seen.picture(tmp_path / "page.png")
        assert picture.stat().st_size > 20_000
        if keep := os.environ.get("TANDEMRANK_PICTURES"):
            seen.picture(Path(keep) / "page.png")
        seen.screen(390, 844, phone=True)
        assert seen.look("document.documentElement.scrollWidth") <= 390
        if keep:
            seen.picture(Path(keep) / "phone.png")
        seen.click("#rollback")
        seen.wait("document.querySelectorAll('#arms tr').length === 1")
        seen.wait("document.getElementById('changes').textContent.includes('rolled back')")
        seen.wait("document.getElementById('words').textContent.startsWith('last test')")
        assert seen.problems == []
        assert all(request.startswith((url, "data:")) for request in seen.requested)


@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium (Debian: apt-get install chromium)")
def test_ids_are_text_in_the_page(tmp_path) -> None:
    rng = np.random.default_rng(0)
    stages = [MatrixFactorisation(rng.normal(size=(2, 3)), rng.normal(size=(6, 3))) for _ in range(2)]
    ids = Vocabulary(pl.Series([EVIL, "b"]), pl.Series([f"{EVIL}{n}" for n in range(6)]))
    TwoStagePolicy(stages[0], stages[1], 4, 2, ids).save(tmp_path / "policies" / "policy-0")
    with running(tmp_path / "policies", tmp_path / "log") as url, browser(tmp_path) as seen:
        seen.open(url)
        seen.write("#query", EVIL)
        seen.click("#ask button")
        seen.wait("document.querySelectorAll('#answers tbody tr').length > 0")
        assert EVIL in seen.look("document.getElementById('answers').textContent")
        assert seen.look("document.images.length") == 0
        assert seen.look("window.evil === undefined")
        # The policy itself refuses what is written into the page.
        seen.look("document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"window.evil=1\">')")
        seen.look("new Promise(done => document.images[0].addEventListener('error', done))")
        assert seen.look("window.evil === undefined")


def test_the_page_without_a_browser(tmp_path) -> None:
    folder = saved(tmp_path, 0)
    with local(folder, host="0.0.0.0", log=tmp_path / "log") as server:
        for path, kind in (("/", "text/html"), ("/page.js", "text/javascript"), ("/page.css", "text/css")):
            found = server.get(path)
            assert found.status_code == 200
            assert found.headers["content-type"].startswith(kind)
            assert "default-src 'none'" in found.headers["content-security-policy"]
            assert "http" not in found.text.replace("http://www.w3.org/2000/svg", "")
            assert "innerHTML" not in found.text
        assert server.post("/explain", {"query_id": 11}).status_code == 401
        found = server.post("/explain", {"query_id": 11}, admin=True).json()["policies"]
        assert found[0]["folder"] == "policy-0"
        assert [c["place"] for c in found[0]["candidates"]][:3] == [1, 2, 3]
        total = found[0]["others_exposure"] + sum(c["exposure"] for c in found[0]["candidates"])
        assert total == pytest.approx(1 + 1 / 2 + 1 / 3, abs=1e-3)
        assert server.post("/explain", {"query_id": "x"}, admin=True).status_code == 422


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
def test_the_chart_of_a_test_is_as_high_as_its_interval() -> None:
    """Differences beyond 2 clicks per impression are drawn where they are, not at the edge of the panel."""
    source = (Path(app.__file__).parent / "static" / "page.js").read_text(encoding="utf-8")
    chart = source[source.index("function chartRange") : source.index("function showVerdict")]
    points = [
        {"impressions": 10 * 2**n, "difference": 4.5, "low": 4.5 - 10 / 2**n, "high": 4.5 + 10 / 2**n} for n in range(8)
    ]
    command = f"{chart}\nconsole.log(JSON.stringify(chartRange({json.dumps(points)})))"
    found = subprocess.run(["node", "-e", command], capture_output=True, text=True, check=True)
    low, high = json.loads(found.stdout)
    assert low < points[4]["low"] < points[4]["high"] < high
    assert low > points[0]["low"]  # the first ones, as wide as lists are long, do not make the rest a line
