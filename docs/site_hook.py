"""Hooks of mkdocs.yml besides its plugins: pages that lie outside docs/, and links to files that
are no pages.

README.md, config/README.md and others have their home elsewhere in the repository, where GitHub and
the Snakemake workflow catalog look for them. They become pages of the site as they are. Links
in all pages are written for the repository; here they are turned to the page, or to a copy of the
file in the site.
"""

import os
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
PAGES = {
    "README.md": "index.md",
    "config/README.md": "settings.md",
    "profiles/README.md": "profiles.md",
    "executors/pbs/README.md": "executor-pbs.md",
    "executors/slurm/README.md": "executor-slurm.md",
    "benchmarks/README.md": "benchmarks.md",
    "config/demo/README.md": "demo.md",
    "CODE_OF_CONDUCT.md": "code-of-conduct.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changes.md",
}
"""Files of the repository that are pages, and the name of each in the site."""
NAMES = {ROOT / path: name for path, name in PAGES.items()}
LINK = re.compile(r"(?<=\]\()(?!https?:|mailto:|#)([^)#\s]*)(#[^)\s]*)?(?=\))")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """The pages that lie elsewhere, and a copy of each file that a page links to."""
    for path, name in NAMES.items():
        files.append(File.generated(config, name, abs_src_path=str(path)))
    for page in list(files.documentation_pages()):
        home = _home(page)
        for found in LINK.finditer(home.read_text(encoding="utf-8")):
            name = _name(home, found[1])
            if name.startswith("files/") and name not in files.src_uris:
                files.append(File.generated(config, name, abs_src_path=str(ROOT / name[6:])))
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """The links of a page, as the site has their targets: all pages lie side by side."""

    def turned(found: re.Match[str]) -> str:
        name = _name(_home(page.file), found[1])
        return name + (found[2] or "") if name else found[0]

    return LINK.sub(turned, markdown)


def _home(file: File) -> Path:
    assert file.abs_src_path
    return Path(file.abs_src_path).resolve()


def _name(home: Path, target: str) -> str:
    """The name in the site of what a page links to; '' for an anchor, or nothing that is there."""
    path = Path(os.path.normpath(home.parent / target))
    if not target or not path.exists():
        return ""
    if path in NAMES:
        return NAMES[path]
    if path.is_relative_to(ROOT / "docs") and path.suffix != ".py":
        return path.relative_to(ROOT / "docs").as_posix()
    if path.is_dir():
        return ""
    return f"files/{path.relative_to(ROOT).as_posix()}"
