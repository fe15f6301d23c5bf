"""A real browser for the tests of pages, where the machine has one."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from calling import PATIENCE_SECONDS

if TYPE_CHECKING:
    from playwright.sync_api import Page

NAMES = ("chromium", "chromium-browser", "google-chrome")
QUIET = (
    "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
).split()


@pytest.fixture(scope="session")
def tab() -> Iterator[Page]:
    """One tab for all pages: a new one costs more than most pages. Its event loop runs until the
    end of this folder's process."""
    program = next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        pytest.skip("n/a: no Chromium on this machine")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=QUIET)
        page = browser.new_page(reduced_motion="reduce")
        page.set_default_timeout(PATIENCE_SECONDS * 1000)
        yield page
        browser.close()
