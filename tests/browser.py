"""A page as a browser shows it: headless Chromium, where there is one."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

BROWSER = next((path for path in map(shutil.which, ("chromium", "chromium-browser", "google-chrome")) if path), None)
needs_browser = pytest.mark.skipif(BROWSER is None, reason="no Chromium here")


def shown(page: Path, script: str, folder: Path, *options: str) -> str:
    """The document after the script has run at its end. `folder`: where the browser may write."""
    copy = folder / "as_shown.html"
    text = page.read_text(encoding="utf-8")
    copy.write_text(text.replace("</body>", f"<script>{script}</script></body>"), encoding="utf-8")
    command = [
        str(BROWSER),
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        f"--user-data-dir={folder}/browser",
        "--dump-dom",
    ]
    done = subprocess.run([*command, *options, copy.as_uri()], capture_output=True, text=True, timeout=120, check=True)
    return done.stdout


def title_of(document: str) -> str:
    """What a script has put there."""
    found = re.search(r"<title>(.*?)</title>", document)
    return found[1]
