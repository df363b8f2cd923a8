"""The pictures of the console in README and docs/guides/console.md: `python -m tests.screenshots [FOLDER]`.

They show the cluster of `tests.judges.shop` after two minutes of its traffic, in Debian's Chromium. Look at
each of them before it is committed: it must look like a product.
"""

from __future__ import annotations

import io
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from PIL import Image
from playwright.sync_api import Browser

from tests.judges.browser import chromium, console
from tests.judges.shop import Shop, shop

FOLDER: Final = Path(__file__).parent.parent / "docs" / "images"
CATCH_UP_S: Final = 15
TRAFFIC_S: Final = 120
"""So long the console watches before the first picture: its charts begin when it does."""
TOTAL_MAX: Final = 600_000
"""Bytes of all pictures."""
SCALE: Final = 1.5
QUALITY: Final = 80
DESKTOP: Final = {"width": 1280, "height": 800}
PHONE: Final = {"width": 390, "height": 780}


@dataclass(frozen=True)
class Picture:
    """A page, as a person sees it."""

    name: str
    path: str
    options: dict[str, Any] = field(default_factory=lambda: {"viewport": DESKTOP})


DARK: Final[dict[str, Any]] = {"viewport": DESKTOP, "color_scheme": "dark"}
PICTURES: Final = (
    Picture("console-overview", ""),
    Picture("console-records", "topics/orders/records?path=$.customer.city&equals=Porto&rows=25"),
    Picture("console-group", "group?id=recommendations", options=DARK),
    Picture(
        "console-reset",
        "group/reset?id=fraud-scoring&to=duration&duration.value=2&duration.unit=h&topic=orders",
    ),
    Picture("console-phone", "", options={"viewport": PHONE, "color_scheme": "dark", "has_touch": True}),
)


def _take(browser: Browser, address: str, folder: Path, picture: Picture) -> int:
    """Write a picture; its bytes."""
    context = browser.new_context(base_url=address, device_scale_factor=SCALE, **picture.options)
    page = context.new_page()
    page.goto(f"/c/shop/{picture.path}")
    page.wait_for_timeout(500)
    page.mouse.move(0, 0)
    file = folder / f"{picture.name}.webp"
    Image.open(io.BytesIO(page.screenshot())).save(file, quality=QUALITY, method=6)
    context.close()
    return file.stat().st_size


def _watch(browser: Browser, address: str) -> None:
    """Keep the console collecting, as an open page does, once the consumers have caught up."""
    time.sleep(CATCH_UP_S)
    page = browser.new_page(base_url=address)
    page.goto("/c/shop/")
    time.sleep(TRAFFIC_S)
    page.close()


def _all(running: Shop, directory: Path, folder: Path) -> int:
    options = ("-b", running.bootstrap, "--name", "shop", "--schema-registry", running.registry, "--writes")
    with console(directory, *options) as address, chromium() as browser:
        _watch(browser, address)
        return sum(_take(browser, address, folder, each) for each in PICTURES)


def main(folder: Path) -> None:
    """Take all pictures."""
    folder.mkdir(parents=True, exist_ok=True)
    memory = Path("/dev/shm")  # a disk that is full on this machine is not in the pictures
    with tempfile.TemporaryDirectory(
        prefix="shop-", dir=memory if memory.is_dir() else None, ignore_cleanup_errors=True
    ) as temporary:
        directory = Path(temporary)
        with shop(directory) as running:
            total = _all(running, directory, folder)
    sys.stdout.write(f"{len(PICTURES)} pictures in {folder}, {total:,} bytes\n")
    assert total < TOTAL_MAX, f"the pictures have {total:,} bytes, more than {TOTAL_MAX:,}"


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)
