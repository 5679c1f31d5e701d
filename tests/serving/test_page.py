"""The page for people, in a real browser: every panel is filled, a query is tried, a canary started and rolled back by hand."""

import asyncio
import os
import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from browser import CHROMIUM, browser
from served import TOKEN, Clock, D, K, local, saved
from tandemrank._base.ids import Vocabulary
from tandemrank.logs.titles import Titles, read_titles
from tandemrank.policies.scorers import MatrixFactorisation
from tandemrank.policies.two_stage import TwoStagePolicy
from tandemrank.serving import app, run
from tandemrank.serving.client import Client
from tandemrank.serving.service import Service, Settings

EVIL = "<img src=x onerror=window.evil=1>"
TITLES = read_titles(
    pl.DataFrame(
        {"item_id": [f"i{d}" for d in range(D)], "url": [f"https://shop.example/i{d}" for d in range(D)], "title": ""}
    ),
    pl.DataFrame({"query_id": [11, 12], "title": ["red shoes", "lamp"]}),
)


@contextmanager
def running(folder: Path, log: Path, titles: Titles) -> Iterator[str]:
    """A server on a real port, in a thread."""
    ports: queue.Queue[int] = queue.Queue()
    address, settings = (
        run.Address(port=0, token=TOKEN),
        Settings(folder / "policy-0", log=log, settle=0.0, titles=titles),
    )
    context = app.Context(Service(settings), address, tick=0.01)
    server = run.server(app.application(context), address, listening=ports.put)
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
    with running(folder, tmp_path / "log", TITLES) as url, browser(tmp_path) as seen:
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
        seen.wait("document.querySelectorAll('#test-chart canvas').length === 1")
        seen.wait("document.querySelectorAll('#tested tbody tr').length === 2")
        seen.wait("document.querySelectorAll('#rank-chart canvas').length === 1")
        # Every number of every chart is inside its panel: nothing is cut, nothing lies along an edge.
        inside = """Object.values(plots).map(({plot}) => plot.data.slice(1).flat().every(y =>
            y === null || plot.scales.y.min <= y && y <= plot.scales.y.max))"""
        assert seen.look(inside) == [True] * 4
        seen.look("document.getElementById('part').value = 'all'; refresh()")
        seen.wait("plots['test-chart'].plot.data[0].length === last.history.length")
        assert seen.look(inside) == [True] * 4
        assert seen.look("Object.values(last.test.tallies).reduce((sum, t) => sum + t.impressions, 0)") <= 150
        assert "at most" in seen.look("document.getElementById('numbers').textContent")
        seen.look("document.getElementById('range').value = '900'; refresh()")
        seen.wait("past.now - 900 <= past.steps[0].time")
        seen.write("#query", "shoe")
        seen.wait("document.querySelectorAll('#found button').length === 1")
        assert seen.look("document.getElementById('found').textContent") == "11: red shoes"
        seen.click("#found button")
        seen.wait("document.querySelectorAll('#answers table').length === 2")
        assert seen.look("document.querySelectorAll('#answers tbody tr').length") >= 10
        assert seen.look("document.querySelector('#answers a').href") == "https://shop.example/i3"
        for panel in ("arms", "latency", "rate-chart", "clicks-chart", "tallies", "words", "changes", "answers"):
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
        # A promotion is asked about; a roll back is not.
        seen.click("#promote")
        seen.wait("document.getElementById('sure').open")
        assert "policy-1 gets all the traffic" in seen.look("document.getElementById('sure').textContent")
        seen.click("#no")
        seen.wait("!document.getElementById('sure').open")
        assert seen.look("last.traffic.arms.length") == 2
        seen.click("#rollback")
        seen.wait("document.querySelectorAll('#arms tr').length === 1")
        seen.wait("document.getElementById('changes').textContent.includes('rolled back')")
        seen.wait("document.getElementById('words').textContent.startsWith('last test')")
        seen.open(url + "/docs")
        seen.wait("document.querySelectorAll('article').length >= 14")
        assert "EventMessage" in seen.look("document.getElementById('feedback').textContent")
        assert seen.look("document.documentElement.scrollWidth") <= 390
        assert seen.problems == []
        assert all(request.startswith((url, "data:")) for request in seen.requested)


@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium (Debian: apt-get install chromium)")
def test_ids_are_text_in_the_page(tmp_path) -> None:
    rng = np.random.default_rng(0)
    stages = [MatrixFactorisation(rng.normal(size=(2, 3)), rng.normal(size=(6, 3))) for _ in range(2)]
    ids = Vocabulary(pl.Series([EVIL, "b"]), pl.Series([f"{EVIL}{n}" for n in range(6)]))
    TwoStagePolicy(stages[0], stages[1], 4, 2, ids).save(tmp_path / "policies" / "policy-0")
    titles = read_titles(pl.DataFrame({"item_id": [f"{EVIL}{n}" for n in range(6)], "title": EVIL}))
    with running(tmp_path / "policies", tmp_path / "log", titles) as url, browser(tmp_path) as seen:
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


PARTS = (
    ("/", "text/html"), ("/docs", "text/html"), ("/page.js", "text/javascript"), ("/docs.js", "text/javascript"),
    ("/page.css", "text/css"), ("/uPlot.iife.min.js", "text/javascript"), ("/uPlot.min.css", "text/css"),
)  # fmt: skip


def test_the_page_without_a_browser(tmp_path) -> None:
    folder = saved(tmp_path, 0)
    with local(folder, host="0.0.0.0", log=tmp_path / "log") as server:
        for path, kind in PARTS:
            found = server.get(path)
            assert found.status_code == 200
            assert found.headers["content-type"].startswith(kind)
            assert "default-src 'none'" in found.headers["content-security-policy"]
            assert "http" not in found.text.replace("/*! https://github.com/leeoniya/uPlot (v1.6.32) */", "")
            assert "innerHTML" not in found.text
        assert server.post("/explain", {"query_id": 11}).status_code == 401
        found = server.post("/explain", {"query_id": 11}, admin=True).json()["policies"]
        assert found[0]["folder"] == "policy-0"
        assert [c["place"] for c in found[0]["candidates"]][:3] == [1, 2, 3]
        total = found[0]["others_exposure"] + sum(c["exposure"] for c in found[0]["candidates"])
        assert total == pytest.approx(1 + 1 / 2 + 1 / 3, abs=1e-3)
        assert server.post("/explain", {"query_id": "x"}, admin=True).status_code == 422


def test_what_the_page_asks_for(tmp_path) -> None:
    """Titles, a search, history, and the numbers of a test apart from those before it."""
    folder, clock = saved(tmp_path, 0, 1), Clock()
    with local(folder, log=tmp_path / "log", clock=clock, titles=TITLES) as server:

        def use(n: int) -> None:
            for number in range(n):
                found = server.post("/rank", {"query_id": 10 + number % 6}).json()
                server.post(
                    "/feedback", {"impression_id": found["impression_id"], "events": [{"item": found["items"][1]}]}
                )
            clock.now += 100
            server.context.service.tick()

        use(20)
        new = server.post("/policies", {"folder": "policy-1"}, admin=True).json()["policy"]
        server.post("/split", {"policy": new, "share": 0.5}, admin=True)
        use(30)
        status = server.get("/status").json()
        old = status["verdict"]["old"]
        assert status["test"]["running"]
        assert sum(t["impressions"] for t in status["test"]["tallies"].values()) == 30
        assert status["test"]["tallies"][old]["impressions"] == status["tallies"][old]["impressions"] - 20
        server.post("/rollback", admin=True)
        status = server.get("/status").json()
        assert not status["test"]["running"]
        assert status["history"]

        past = server.post("/history", {"seconds": 1000}).json()
        assert [step["lists"] for step in past["steps"]] == [20, 30]
        assert past["steps"][0]["tallies"][old] == {
            "impressions": 20,
            "clicks": 20,
            "squares": 20,
            "by_rank": [0, 20, 0],
        }
        assert [step["lists"] for step in server.post("/history", {"seconds": 150}).json()["steps"]] == [30]
        wide = server.post("/history", {"seconds": 86_400}).json()
        assert (wide["seconds_per_step"], sum(step["lists"] for step in wide["steps"])) == (360.0, 50)

        rows = server.get("/summary.json").json()["policies"]
        assert [(r["part"], r["folder"]) for r in rows][:1] == [("all", "policy-0")]
        assert sum(r["impressions"] for r in rows if r["part"] == "test") == 30
        table = pl.read_csv(server.get("/summary.csv").content)
        assert table.filter(pl.col("part") == "all")["clicks_at_2"].sum() == 50
        assert table.width == 6 + K

        def found(words: str, **more: int) -> list[tuple[int, str]]:
            asked = server.post("/search", {"words": words, **more}).json()["queries"]
            return [(one["query_id"], one["title"]) for one in asked]

        assert found("SHOES") == [(11, "red shoes")]
        assert found("12") == [(12, "lamp")]
        assert [q for q, _ in found("1")] == [10, 11, 12, 13, 14, 15]
        assert [q for q, _ in found("", most=2)] == [10, 11]
        assert found("nobody") == []
        answer = server.post("/explain", {"query_id": 11}).json()
        assert answer["title"] == "red shoes"
        assert answer["titles"]["i3"]["url"] == "https://shop.example/i3"
        assert set(answer["titles"]) == {c["item"] for c in answer["policies"][0]["candidates"]}
