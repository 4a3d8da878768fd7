"""Print the notes of a release: its section of CHANGELOG.md and the SHA-256 of the wheels in dist/.

    python packaging/release_notes.py v0.1.0

Refuses a tag that is not of the package's version, and a version without a finished section.
"""

import hashlib
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def notes(tag: str, root: Path) -> str:
    """Return the notes as Markdown. SystemExit says why there are none."""
    source = (root / "workflow/src/plm_embed/_version.py").read_text(encoding="utf-8")
    version = source.split('"')[-2]
    if tag != f"v{version}":
        sys.exit(f"{tag}: this is version {version}; tag it v{version}, or change _version.py")
    changes = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    sections = re.split(r"^## ", changes, flags=re.MULTILINE)
    dated = rf"{re.escape(version)} - \d{{4}}-\d\d-\d\d\n"
    section = next((text for text in sections if re.match(dated, text)), None)
    if section is None:
        sys.exit(f"CHANGELOG.md: no section '## {version} - YYYY-MM-DD'; write it")
    wheels = sorted((root / "dist").glob("*.whl"))
    if not any(wheel.name.startswith(f"plm_embed-{version}-") for wheel in wheels):
        sys.exit(f"dist: no wheel of version {version}; run make packages")
    sums = [
        f"    {hashlib.sha256(wheel.read_bytes()).hexdigest()}  {wheel.name}" for wheel in wheels
    ]
    return "\n".join([f"# plm-embed {section.strip()}", "", "## SHA-256", "", *sums])


if __name__ == "__main__":
    print(notes(sys.argv[1], ROOT))
