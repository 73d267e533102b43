"""Looks at the built site in a browser: at its search and at its width.

`make docs-check` builds the site first. It needs Chromium and its driver
(Debian's `chromium` and `chromium-driver`). The site is opened as files, as a
reader without a server opens it. The script ends with 1 if a searched word
finds nothing, or if a page scrolls sideways on a telephone.
"""

import pathlib
import shutil
import sys
import time

from selenium import webdriver
from selenium.webdriver.chrome.service import Service

SITE = pathlib.Path(__file__).parents[2] / "out" / "site"
# What newcomers look for.
WORDS = ("make_private", "noise_multiplier", "resume", "BatchNormalization")
WIDTH = 400  # Pixels, as a telephone has.
_MOST_SECONDS = 60  # A page or a search takes less than one on idle machines.

_SIDEWAYS = """
const page = document.documentElement;
// A telephone makes its window as wide as what does not fit.
if (page.scrollWidth <= screen.width) return [];
const scrolls = each => each !== document.body && (
  getComputedStyle(each).overflowX !== "visible"
  || scrolls(each.parentElement));
return [`${page.scrollWidth} pixels`].concat(
  [...document.querySelectorAll("body *")]
    .filter(each => each.getBoundingClientRect().right > screen.width + 1
      && !scrolls(each))
    .slice(0, 3)
    .map(each => `${each.tagName}: ${each.textContent.trim().slice(0, 40)}`));
"""
_FOUND = """
return [...document.querySelectorAll(".md-search-result__article h1,"
  + " .md-search-result__article h2")].map(each => each.textContent.trim());
"""


def opened(width: int) -> webdriver.Chrome:
    """Returns a browser without a window, `width` pixels wide."""
    options = webdriver.ChromeOptions()
    for flag in (
        "headless",
        "no-sandbox",
        "disable-gpu",
        "disable-dev-shm-usage",
        "disable-background-networking",
        "disable-component-update",
        "disable-sync",
        "allow-file-access-from-files",
    ):
        options.add_argument(f"--{flag}")
    # Chromium's windows are at least 500 pixels wide.
    options.add_experimental_option(
        "mobileEmulation",
        {"deviceMetrics": {"width": width, "height": 800, "pixelRatio": 1.0}},
    )
    driver = shutil.which("chromedriver")
    if driver is None:
        raise SystemExit("The site is checked with Chromium and its driver.")
    browser = webdriver.Chrome(options=options, service=Service(driver))
    browser.set_page_load_timeout(_MOST_SECONDS)
    return browser


def titles(browser: webdriver.Chrome, word: str) -> list[str]:
    """Returns the titles that a search for a word shows, best first."""
    browser.get(f"{(SITE / 'index.html').as_uri()}?q={word}")
    ends = time.monotonic() + _MOST_SECONDS
    while time.monotonic() < ends:
        if found := browser.execute_script(_FOUND):
            return found
        time.sleep(0.1)
    return []


def too_wide(browser: webdriver.Chrome, page: pathlib.Path) -> list[str]:
    """Returns what makes a page scroll sideways once its scripts have run."""
    browser.get(page.as_uri())
    ends = time.monotonic() + _MOST_SECONDS
    while (wide := browser.execute_script(_SIDEWAYS)) and (
        time.monotonic() < ends
    ):
        time.sleep(0.1)
    return wide


def main() -> int:
    """Prints what is wrong, and returns 1 if something is."""
    browser = opened(WIDTH)
    faults = []
    try:
        faults += [
            f"A search for {word!r} finds nothing."
            for word in WORDS
            if not titles(browser, word)
        ]
        pages = sorted(SITE.rglob("*.html"))
        for page in pages:
            if wide := too_wide(browser, page):
                faults.append(f"{page.relative_to(SITE)} is too wide: {wide}")
    finally:
        browser.quit()
    print(*faults, sep="\n")
    print(f"{len(pages)} pages, {len(WORDS)} words, {len(faults)} faults.")
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
