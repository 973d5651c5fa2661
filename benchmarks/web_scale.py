"""How the page of ``ernie web`` holds up: many runs in the list, a run of very many steps, many browsers that watch.

``python -m benchmarks.web_scale [--runs 10000] [--steps 1000000] [--browsers 10] [--seconds 20]`` makes the run directories in a
temporary directory (tiny files, hard links), starts ``ernie web`` on them as a process of its own and asks it over HTTP, as the
page does. Prints one JSON object: seconds, bytes, the share of a core that the server took while it was watched, and what a real
browser took to paint (Playwright's Paint Timing and Layout Instability in Chromium, ``--paints 0`` leaves them out).
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from benchmarks.machine import describe

#: seconds between two looks of the page at the list of runs, and between events of a run that trains
_LOOK, _STEP = 3.0, 0.2
_TICKS = os.sysconf("SC_CLK_TCK")


def event(step: int) -> str:
    """A line of the events of a run."""
    return (
        f'{{"event": "step", "time": {1e9 + step}, "step": {step}, "loss": {3 + step % 97 / 97}, "lr": 0.0001, '
        f'"grad_norm": 1.5, "tokens": 4096, "seconds": 0.25, "tokens_per_s": 16384.0, "peak_memory": 123456789}}\n'
    )


def make_runs(root: Path, runs: int, steps: int) -> None:
    """``runs`` finished runs of few steps that share one file, ``long`` with many steps, and ``live``."""
    start = '{"event": "run_start", "time": 1.0, "name": "many", "total_steps": 9, "plugins": {"method": "sft"}}\n'
    first = root / "run-00000" / "events.jsonl"
    first.parent.mkdir()
    first.write_text(start + "".join(map(event, range(1, 10))) + '{"event": "run_end", "status": "finished"}\n')
    for number in range(1, runs):
        directory = root / f"run-{number:05d}"
        directory.mkdir()
        # a file has so many names at most
        if number % 10_000:
            os.link(first, directory / "events.jsonl")
        else:
            first = directory / "events.jsonl"
            first.write_text(start + event(1))
    for name in ("long", "live"):
        (root / name).mkdir()
    (root / "live/events.jsonl").write_text(start)
    with (root / "long/events.jsonl").open("w") as file:
        file.write(start)
        for begin in range(1, steps + 1, 10_000):
            file.writelines(map(event, range(begin, min(begin + 10_000, steps + 1))))


class Page:
    """The server, and a browser's questions to it."""

    def __init__(self, home: Path) -> None:
        log = home / "server.log"
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "erniecore", "web", "runs", "--port", "0"],
                cwd=home,
                stdout=output,
                stderr=output,
            )
        while not (found := re.search(r"http://127\.0\.0\.1:(\d+)/\?token=(\S+)", log.read_text())):
            if self.process.poll() is not None:
                raise SystemExit(f"ernie web ended with {self.process.returncode}:\n{log.read_text()}")
            time.sleep(0.05)
        self.port, token = int(found[1]), found[2]
        answer = self.connection()
        answer.request("GET", f"/?token={token}")
        self.cookie = answer.getresponse().headers["set-cookie"].partition(";")[0]

    def connection(self) -> http.client.HTTPConnection:
        """A connection of its own, as each request of a browser may be."""
        return http.client.HTTPConnection("127.0.0.1", self.port)

    def get(self, path: str) -> bytes:
        """The answer to a GET."""
        with closing(self.connection()) as connection:
            return self.ask(connection, path)

    def ask(self, connection: http.client.HTTPConnection, path: str, **headers: str) -> bytes:
        """The answer to a GET on a connection that is open or can be opened again."""
        connection.request("GET", path, headers={"cookie": self.cookie, "accept": "text/html", **headers})
        answer = connection.getresponse()
        assert answer.status == 200, (path, answer.status)
        return answer.read()

    def timed(self, path: str) -> float:
        """Seconds until the answer is complete."""
        start = time.perf_counter()
        self.get(path)
        return round(time.perf_counter() - start, 3)

    def processor(self) -> float:
        """Processor seconds that the server has taken."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS

    def memory(self) -> int:
        """Resident MiB of the server."""
        found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{self.process.pid}/status").read_text())
        return int(found[1]) >> 10 if found else 0


def measure_list(page: Page) -> dict[str, Any]:
    """Seconds of the pages that show a list: the first look, and later ones."""
    paths = {"list": "/runs", "last_page": "/runs?page=200", "search_first": "/runs?q=many", "search": "/runs?q=many+sft",
             "models": "/models", "compare": "/compare?run=live&run=run-00000"}  # fmt: skip
    return {name: page.timed(path) for name, path in paths.items()}


def measure_curves(page: Page) -> dict[str, Any]:
    """The page of the long run, its first answer, and until its curves are whole: wall and processor seconds; their bytes."""
    shown, before = page.timed("/run/long"), page.processor()
    start, first, last = time.perf_counter(), 0.0, 0
    while True:
        content = page.get("/run/long/curves")
        found = json.loads(content)
        if not first:
            first, last = round(time.perf_counter() - start, 3), found.get("ahead", found["metrics"])["loss"]["x"][-1]
        if found["loaded"] >= 0.999:
            break
        time.sleep(0.4)  # as the page does
    points = max(len(curve["x"]) for curve in found["metrics"].values())
    return {"page": shown, "first_answer": first, "last_step_of_first_answer": last,
            "whole": round(time.perf_counter() - start, 3), "whole_processor": round(page.processor() - before, 2),
            "points": points, "bytes": len(content), "again": page.timed("/run/long/curves")}  # fmt: skip


@contextmanager
def training(path: Path) -> Iterator[None]:
    """A run that writes an event now and then, as long as the block runs."""
    stopping = threading.Event()

    def write() -> None:
        step = 0
        while not stopping.wait(_STEP):
            step += 1
            with (path / "events.jsonl").open("a") as file:
                file.write(event(step))

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join()


def watch(page: Page, stopping: threading.Event, received: list[int]) -> None:
    """One browser with two tabs: the stream of a run, and the list, whose rows htmx asks for now and then."""
    with closing(page.connection()) as connection, closing(page.connection()) as of_list:
        connection.request("GET", "/run/live/stream?from=0", headers={"cookie": page.cookie})
        answer, looked = connection.getresponse(), time.monotonic()
        while not stopping.is_set():
            received.append(len(answer.readline()))
            if time.monotonic() - looked > _LOOK:
                looked = time.monotonic()
                page.ask(of_list, "/runs", **{"HX-Request": "true"})


def measure_watching(page: Page, root: Path, browsers: int, seconds: float) -> dict[str, Any]:
    """Processor seconds per second that the server takes while so many watch a run that trains, and the list."""
    stopping, received = threading.Event(), list[int]()
    threads = [threading.Thread(target=watch, args=(page, stopping, received), daemon=True) for _ in range(browsers)]
    with training(root / "live"):
        for thread in threads:
            thread.start()
        time.sleep(3)
        before, start = page.processor(), time.perf_counter()
        time.sleep(seconds)
        share = (page.processor() - before) / (time.perf_counter() - start)
        stopping.set()
        for thread in threads:
            thread.join(10)
    return {"browsers": browsers, "share_of_a_core": round(share, 4), "received": sum(received)}


#: what the page knows of itself once it is loaded: ms to the first paint, the largest one, and all layout shifts
_PAINTED = """new Promise((done) => {
  const found = {first_paint: null, largest_paint: null, shifts: 0};
  const watch = (type, add) => new PerformanceObserver((list) => list.getEntries().forEach(add)).observe({type, buffered: true});
  watch("paint", (e) => { if (e.name === "first-contentful-paint") found.first_paint = Math.round(e.startTime); });
  watch("largest-contentful-paint", (e) => { found.largest_paint = Math.round(e.startTime); });
  watch("layout-shift", (e) => { if (!e.hadRecentInput) found.shifts += e.value; });
  setTimeout(() => done(found), 1500);
})"""
#: pages that a browser paints, and what says that they show what they are for
_PAGES = {
    "list": ("/runs", "#rows tbody tr"),
    "long_run": ("/run/long", ".chart canvas"),
    "live_run": ("/run/live", "#charts"),
}


def measure_paints(page: Page, times: int) -> dict[str, Any]:
    """Milliseconds to the first and to the largest paint of each page in Chromium, the median and the longest of ``times`` fresh
    browsers (nothing is cached), and the largest sum of layout shifts."""
    from playwright.sync_api import sync_playwright

    name, _, value = page.cookie.partition("=")
    cookie: Any = {"name": name, "value": value, "domain": "127.0.0.1", "path": "/"}
    results: dict[str, Any] = {"times": times}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        results["chromium"] = browser.version
        for label, (path, shown) in _PAGES.items():
            found = []
            for _ in range(times):
                context = browser.new_context(viewport={"width": 1360, "height": 860})
                context.add_cookies([cookie])
                tab = context.new_page()
                tab.goto(f"http://127.0.0.1:{page.port}{path}")
                tab.locator(shown).first.wait_for(timeout=600_000)
                found.append(tab.evaluate(_PAINTED))
                context.close()
            results[label] = {
                key: [statistics.median(values), max(values)]
                for key in ("first_paint", "largest_paint")
                if (values := [one[key] for one in found if one[key] is not None])
            } | {"most_shifts": round(max(one["shifts"] for one in found), 5)}
        browser.close()
    return results


def main() -> None:
    """Makes the runs, asks the server and prints what it took."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--browsers", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--paints", type=int, default=5, help="fresh browsers per page; needs playwright and chromium")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "runs"
        root.mkdir()
        make_runs(root, args.runs, args.steps)
        page = Page(Path(folder))
        try:
            results: dict[str, Any] = {
                "machine": describe(),
                "load": os.getloadavg()[0],
                "memory_before": page.memory(),
            }
            results |= {"list": measure_list(page), "curves": measure_curves(page)}
            if args.paints:
                with training(root / "live"):
                    results["painted"] = measure_paints(page, args.paints)
            results["watching"] = measure_watching(page, root, args.browsers, args.seconds)
            page.process.kill()
            page.process.wait()
            page = Page(Path(folder))  # it knows what the last one read
            results["started_again"] = {"search": page.timed("/runs?q=many"), "curves": page.timed("/run/long/curves")}
            print(json.dumps({**results, "memory_after": page.memory()}, indent=1))
        finally:
            page.process.terminate()
            page.process.wait()


if __name__ == "__main__":
    main()
