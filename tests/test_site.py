"""The documentation builds without a warning, with nothing from other servers, and its reference is the code's."""

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

import tandemrank
from tandemrank.cli.main import app
from tandemrank.training.config import TrainingConfig

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ModuleType]:
    """The site, and the script that builds it."""
    pytest.importorskip("zensical")
    spec = importlib.util.spec_from_file_location("build_site", ROOT / "docs" / "build_site.py")
    assert spec
    assert spec.loader
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    folder = tmp_path_factory.mktemp("built") / "site"
    script.build(folder)
    return folder, script


def test_every_page_is_in_the_site_and_in_llms_txt(built: tuple[Path, ModuleType]) -> None:
    site, _ = built
    listed = re.findall(
        r"^- \[[^]]+\]\((.*)\.md\): \S.{10,}", (site / "llms.txt").read_text(encoding="utf-8"), re.MULTILINE
    )
    pages = {str(path.relative_to(ROOT / "docs").with_suffix("")) for path in (ROOT / "docs").glob("*/*.md")}
    assert {page.replace("README", "index") for page in pages} <= set(listed)
    for page in listed:
        assert (site / f"{page}.html").exists(), page
    assert (site / "index.html").exists()


def test_no_page_loads_anything_from_another_server(built: tuple[Path, ModuleType]) -> None:
    site, _ = built
    pages = list(site.rglob("*.html"))
    assert len(pages) > 20
    loaded = re.compile(r"<(?:script|img|link|iframe)[^>]*(?:src|href)=[\"']?(?:https?:)?//")
    for page in pages:
        assert not loaded.search(page.read_text(encoding="utf-8")), page
    styles = "".join(path.read_text(encoding="utf-8") for path in site.rglob("*.css"))
    assert not re.search(r"url\([\"']?(?:https?:)?//|@import", styles)


def test_the_reference_has_every_name_command_and_switch(built: tuple[Path, ModuleType]) -> None:
    site, _ = built
    python, commands, switches = (
        (site / "reference" / f"{name}.html").read_text(encoding="utf-8") for name in ("python", "commands", "switches")
    )
    for name in tandemrank._HOME:
        assert f"<code>{name}</code>" in python, name
    for command in app.registered_commands:
        name = command.name or command.callback.__name__  # type: ignore[union-attr]
        assert f"<code>tandemrank {name}</code>" in commands, name
    assert "--logging-policy" in commands
    for name in TrainingConfig.model_fields:
        assert f"<code>{name}</code>" in switches, name


def test_a_dead_link_stops_the_build(built: tuple[Path, ModuleType], monkeypatch: pytest.MonkeyPatch) -> None:
    site, script = built
    monkeypatch.setattr(script, "verdicts", lambda: "# Verdicts\n\n[nowhere](nothing.md)\n")
    with pytest.raises(SystemExit, match="does not exist"):
        script.build(site)
