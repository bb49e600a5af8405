"""Pages in headless Chromium, and what they say to its console."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)


def console_of(page: Path, width: int, folder: Path, patience: int = 3000) -> list[str]:
    """The console's lines after the page had `patience` milliseconds of virtual time; a picture of
    it is left in the folder.

    A window cannot be narrower than 500: narrower pages are looked at in a frame.
    """
    flags = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--disable-quic",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--allow-file-access-from-files",
        "--enable-logging=stderr",
        f"--user-data-dir={folder / 'profile'}",
        f"--window-size={max(width, 500)},900",
        f"--virtual-time-budget={patience}",
        f"--screenshot={folder / 'page.png'}",
    ]
    done = subprocess.run(
        [CHROMIUM, *flags, page.as_uri()], capture_output=True, text=True, timeout=120
    )
    return [line for line in done.stderr.splitlines() if "CONSOLE" in line]
