"""The page in a real browser: nothing fails to load, no error in the console, nothing wider than the screen."""

import json
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from browser import browser
from example_learned import LEARNED
from example_table import example, one_setting, page
from tandemrank.reports import training
from tandemrank.reports.sections import named

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs chromium (Debian: apt-get install chromium)")

# Put into a copy of the page only: it writes what the browser sees where --dump-dom shows it.
PROBE = """<script>
const failures = [];
addEventListener("error", e => failures.push(String(e.message || (e.target && e.target.outerHTML))), true);
addEventListener("load", () => {
  const boxes = [...document.querySelectorAll("svg")].map(s => s.getBoundingClientRect());
  const verdict = {
    failures,
    broken: [...document.images].filter(i => !(i.complete && i.naturalWidth > 0)).length,
    figures: boxes.filter(b => b.width > 300 && b.height > 50).length,
    requests: performance.getEntriesByType("resource").filter(r => !r.name.startsWith("data:")).length,
    overflow: document.documentElement.scrollWidth - document.documentElement.clientWidth,
    missing: [...document.querySelectorAll("svg use")].filter(
      u => !document.querySelector(u.getAttribute("href") || u.getAttribute("xlink:href"))).length,
    page: getComputedStyle(document.body).backgroundColor,
  };
  const out = document.createElement("pre");
  out.id = "verdict";
  out.textContent = JSON.stringify(verdict);
  document.body.append(out);
});
</script>"""


def visit(html: str, folder: Path, *flags: str) -> dict[str, Any]:
    """Loads a page with the probe in it; the console's words come as `console`."""
    path = folder / "page.html"
    path.write_text(html.replace("<head>", "<head>" + PROBE, 1), encoding="utf-8")
    command = [
        str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
        "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
        "--enable-logging=stderr", "--v=0", f"--user-data-dir={folder / 'profile'}", *flags, "--dump-dom", path.as_uri(),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=90)
    found = re.search('<pre id="verdict">(.*?)</pre>', done.stdout, re.DOTALL)
    assert found, done.stderr
    return json.loads(unescape(found[1])) | {"console": [x for x in done.stderr.splitlines() if "CONSOLE" in x]}


@pytest.mark.parametrize(("start", "count"), [(example, 4), (one_setting, 2)])
def test_page_loads_whole(start: Any, count: int, tmp_path: Path) -> None:
    seen = visit(page(start), tmp_path, "--window-size=1200,900")
    assert seen["console"] == []
    assert seen["failures"] == []
    assert (seen["broken"], seen["missing"], seen["requests"]) == (0, 0, 0)
    assert seen["figures"] == count
    assert seen["overflow"] == 0
    assert seen["page"] == "rgb(255, 255, 254)"


def test_narrow_and_dark(tmp_path: Path) -> None:
    seen = visit(page(example), tmp_path, "--window-size=500,900", "--blink-settings=preferredColorScheme=0")
    assert seen["overflow"] == 0
    assert seen["page"] == "rgb(21, 24, 28)"


@pytest.mark.parametrize("width", [1280, 390])
def test_nothing_of_a_page_is_cut(width: int, tmp_path: Path) -> None:
    items = pl.DataFrame({"item_id": [1], "title": ["A very long name of an item that has to be broken somewhere" * 3]})
    page = training.report(LEARNED, command="tandemrank learn " + "--option x " * 20, named=named(items))
    (tmp_path / "page.html").write_text(page.html(), encoding="utf-8")
    with browser(tmp_path) as seen:
        seen.screen(width, 900, phone=width < 500)
        seen.open((tmp_path / "page.html").as_uri())
        beyond = seen.look(
            "[...document.querySelectorAll('main *')].filter(e => !e.closest('.scroll') && e.getBoundingClientRect().right >"
            " innerWidth + 1).map(e => e.outerHTML.slice(0, 80))"
        )
        scrolls = seen.look(
            "[...document.querySelectorAll('.scroll')].filter(e => e.scrollWidth > e.clientWidth + 1)"
            ".map(e => e.getAttribute('aria-label'))"
        )
    assert beyond == seen.problems == []
    assert scrolls == ([] if width > 1000 else ["Learning curves"])  # whose two panels stand beside each other


def test_the_probe_sees_what_is_broken(tmp_path: Path) -> None:
    html = page(one_setting).replace("</main>", '<img src="gone.png"></main><script>lost()</script>')
    seen = visit(html, tmp_path)
    assert seen["broken"] == 1
    assert seen["console"]
    assert any("lost" in failure for failure in seen["failures"])
