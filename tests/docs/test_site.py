"""The site is built without a warning, and every link of the repository's pages leads to something that is there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.docs.docs_blocks import ROOT, pages

TOP = [ROOT / f"{name}.md" for name in ("README", "CHANGELOG", "CONTRIBUTING", "SECURITY")]
PAGES = (*TOP, *pages(), *sorted((ROOT / "examples").rglob("README.md")))
_LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)[^)]*\)")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    return folder


def test_the_site_is_built_without_a_warning(site: Path) -> None:
    assert (site / "index.html").is_file()


def test_the_site_loads_nothing_from_elsewhere(site: Path) -> None:
    loading = re.compile(rb"""<(?:script|link|img|iframe)[^>]*(?:src|href)=["']?(?:https?:)?//[^>]*>""")
    found = {page.name: loading.findall(page.read_bytes()) for page in site.rglob("*.html")}
    assert not any(found.values()), {name: tags for name, tags in found.items() if tags}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_targets_of_all_links_exist(page: Path) -> None:
    prose = re.sub(r"^ *```.*?^ *```$", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    missing = [link for link in _LINK.findall(prose) if not (page.parent / link).exists()]
    assert not missing


def test_the_pages_generated_from_code_are_up_to_date() -> None:
    command = [sys.executable, "-m", "tools.reference", "--check"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert run.returncode == 0, f"{run.stdout}run: python -m tools.reference"
