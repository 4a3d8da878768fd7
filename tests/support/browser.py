"""Pages in a real browser: chromium runs a page that looks at another, and tells what it saw."""

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
needs_browser = pytest.mark.skipif(
    BROWSER is None, reason="no chromium here: apt-get install chromium"
)


def seen(folder: Path, harness: str, *, dark: bool = False) -> Any:
    """The value that a page with this content leaves between FOUND and END. Nothing is said on the
    console of the browser.
    """
    page = folder / "harness.html"
    page.write_text(harness, encoding="utf-8")
    command = [str(BROWSER), "--headless", "--no-sandbox", "--disable-gpu"]
    command += ["--allow-file-access-from-files", f"--user-data-dir={folder / 'profile'}"]
    command += ["--enable-logging=stderr", "--virtual-time-budget=60000"]
    command += [f"--blink-settings=preferredColorScheme={int(not dark)}"]
    command += ["--dump-dom", page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True)
    assert "CONSOLE" not in done.stderr
    found = re.search(r"<pre>FOUND(.*?)END</pre>", done.stdout)
    assert found, done.stdout[-2000:]
    return json.loads(html.unescape(found[1]))
