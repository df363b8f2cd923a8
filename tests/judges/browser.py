"""Debian's Chromium on pages of the console, and axe-core, which judges their accessibility.

with chromium() as browser:
    visitor = Visitor(browser, address)
    page = visitor.visit("/c/kafka/topics")  # asserts: no error in the console, no finding of axe
"""

from __future__ import annotations

import fcntl
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from ottla.local.processes import ChildProcess, wait_until

AXE = "4.14.1"
_CACHE = Path.home() / ".cache" / "ottla" / f"axe-{AXE}"


@contextmanager
def chromium() -> Iterator[Browser]:
    """A headless Chromium; skips the test where there is none."""
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("chromium: not here")
    with sync_playwright() as playwright:
        # As root in a container, where Chromium's own sandbox cannot start.
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()


@cache
def axe() -> str:
    """The source of axe-core, of npm; skips the test without npm or its registry."""
    if shutil.which("npm") is None:
        pytest.skip("npm: not here")
    _CACHE.mkdir(parents=True, exist_ok=True)
    source = _CACHE / "node_modules" / "axe-core" / "axe.min.js"
    with (_CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # tests run side by side
        if not source.exists():
            (_CACHE / "package.json").write_text(json.dumps({"private": True}))
            command = ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", f"axe-core@{AXE}"]
            ran = subprocess.run(
                command, cwd=_CACHE, capture_output=True, text=True, timeout=200, check=False
            )
            if ran.returncode:
                pytest.skip(f"npm: axe-core cannot be installed: {ran.stderr[-300:]}")
    return source.read_text()


class Visitor:
    """A person with a browser of its own cookies; a page that has an error in its console fails the test."""

    def __init__(self, browser: Browser, address: str, **options: Any) -> None:
        self._context = browser.new_context(base_url=address, **options)
        self.page: Page = self._context.new_page()
        self.errors: list[str] = []
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("console", lambda m: self.errors.append(m.text) if m.type == "error" else None)

    def close(self) -> None:
        self._context.close()

    def visit(self, path: str, *, status: int = 200) -> Page:
        """Open a page, check it, and return it."""
        self.errors.clear()
        response = self.page.goto(path)
        assert response is not None
        assert response.status == status, f"{path}: {response.status}: {self.page.inner_text('body')[:500]}"
        self.check(path, status)
        return self.page

    def check(self, path: str = "", status: int = 200) -> None:
        """The page as it is now has no errors and no findings, and fits into its width."""
        expected = [] if status == 200 else [f"the server responded with a status of {status}"]
        unexpected = [each for each in self.errors if not any(text in each for text in expected)]
        assert not unexpected, (path, unexpected)
        found = self.findings()
        assert not found, (path, found)
        wide = self.page.evaluate(
            "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        )
        assert wide <= 0, f"{path}: {wide} pixels wider than the window"

    def findings(self) -> list[str]:
        """What axe-core finds: rule and element."""
        self.page.evaluate(axe())
        found = self.page.evaluate("async () => (await axe.run(document)).violations")
        return [f"{each['id']}: {node['html'][:200]}" for each in found for node in each["nodes"]]


@contextmanager
def console(directory: Path, *options: str, config: Mapping[str, str] | None = None) -> Iterator[str]:
    """A console in a process; its address."""
    given = list(options)
    if config is not None:
        file = directory / "console.properties"
        file.write_text("".join(f"{name}={value}\n" for name, value in config.items()))
        given += ["--command-config", str(file)]
    with _running(directory / "console.log", given) as address:
        yield address


@contextmanager
def _running(log: Path, options: Sequence[str]) -> Iterator[str]:
    program = "from ottla_console.command import console; console()"
    process = ChildProcess("console", [sys.executable, "-c", program, "--port", "0", *options], log=log)
    process.start()

    def address() -> str:
        lines = log.read_text().splitlines() if log.exists() else []
        return next((line.removeprefix("console=") for line in lines if line.startswith("console=")), "")

    try:
        assert wait_until(lambda: bool(address()) or not process.running, timeout_s=60)
        assert address(), log.read_text()
        yield address()
        assert "Traceback" not in log.read_text(), log.read_text()
        assert process.stop(timeout_s=20), "the console must stop on SIGTERM"
    finally:
        process.kill()
