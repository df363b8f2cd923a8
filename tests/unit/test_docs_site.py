"""What the hooks of `make docs` find and change: resources from elsewhere, links to files beside docs/."""

from __future__ import annotations

import importlib.util
import logging
import re
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def hooks() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_hooks", ROOT / "docs/_hooks.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    "html",
    [
        '<script src="https://cdn.example/a.js"></script>',
        "<link rel=stylesheet href=//fonts.example/css>",
        '<img alt="" src="http://img.example/badge.svg">',
        "<style>@import 'https://fonts.example/x.css'</style>",
        '<p style="background: url(https://img.example/x.png)">',
        '<pre class="mermaid"><code>graph TD</code></pre>',
        '<img src="gone.png">',
    ],
)
def test_resources_from_elsewhere_and_missing_ones_are_found(hooks: ModuleType, html: str) -> None:
    assert list(hooks.problems(html, ROOT))


@pytest.mark.parametrize(
    "html",
    [
        '<a href="https://kafka.apache.org/">Kafka</a>',
        '<link rel="canonical" href="https://docs.example/page.html">',
        '<script src="docs/assets/iframe-worker.js"></script>',
        "<code>&lt;script src=https://cdn.example/a.js&gt;</code>",
    ],
)
def test_links_and_local_resources_are_none(hooks: ModuleType, html: str) -> None:
    assert not list(hooks.problems(html, ROOT))


def page() -> SimpleNamespace:
    file = SimpleNamespace(abs_src_path=str(ROOT / "docs/guides/page.md"), src_uri="guides/page.md")
    return SimpleNamespace(file=file)


def test_links_to_code_lead_to_the_repository(hooks: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "[setup](../../pyproject.toml#L1) and [limits](../reference/limits.md)"
    assert hooks.on_page_markdown(text, page=page()) == "setup and [limits](../reference/limits.md)"
    monkeypatch.setenv("OTTLA_SOURCE_URL", "https://git.example/ottla/blob/main")
    assert hooks.on_page_markdown(text, page=page()).startswith(
        "[setup](https://git.example/ottla/blob/main/pyproject.toml#L1) and [limits](../reference"
    )


def test_a_link_to_a_file_that_is_gone_is_a_warning(
    hooks: ModuleType, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "mkdocs.ottla"):
        hooks.on_page_markdown("[gone](../../gone.py)", page=page())
    assert "guides/page.md links to ../../gone.py" in caplog.text


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "bench/README.md"])
def test_pages_beside_the_site_link_to_files_that_exist(page: str) -> None:
    """`make docs` checks the links of docs/ only."""
    file = ROOT / page
    links = re.findall(r"\]\((?!https?:|#)([^)\s#]+)", file.read_text())
    assert [link for link in links if not (file.parent / link).exists()] == []
