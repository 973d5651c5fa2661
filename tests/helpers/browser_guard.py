"""A test in a browser that no longer ends: what hangs is said, the browser is ended, and whether it was our page.

Some of Playwright's calls (``evaluate``, ``new_page``, ``close``) have no timeout, so a browser that no longer answers would
hold the tests until their job is ended without a word. Behind ``PATIENCE`` seconds of one test its stacks and the processes
of the browser are printed and the browser is killed, which lets the pending call fail. A page whose script never ends keeps
its renderer busy: that is ours, and a failure like any other. A browser that does nothing at all is not what is tested: the
session then ends with ``STUCK``, and ``make test-web`` says so and begins once more.
"""

import gc
import os
import sys
import threading
import time
import traceback

PATIENCE = 420.0
AFTER_THE_KILL = 60.0
BUSY = 0.1  # of a core, on a machine that has other work too
STUCK = 70


class Guard:
    """Watches one test after the other; ``stuck`` says whether a browser has hung and no page of ours was busy."""

    def __init__(self):
        self.stuck = False
        self._timer = None

    def begin(self, test):
        """Watch ``test`` (its name) from now on."""
        self.end()
        self._timer = threading.Timer(PATIENCE, self._late, [test])
        self._timer.daemon = True
        self._timer.start()

    def end(self):
        """The test is over."""
        if self._timer is not None:
            self._timer.cancel()

    def _late(self, test):
        busy = _busiest_renderer(_browsers())
        self.stuck = busy < BUSY
        print(
            f"\n{test} has not ended in {PATIENCE:.0f} s; the busiest renderer uses {busy:.2f} of a core",
            file=sys.__stderr__,
        )
        for process in _browsers():
            print(" ".join(process.cmdline())[:120], process.status(), process.cpu_times()[:2], file=sys.__stderr__)
        _print_stacks()
        for process in _browsers():
            process.kill()
        self._timer = threading.Timer(AFTER_THE_KILL, self._give_up)
        self._timer.daemon = True
        self._timer.start()

    def _give_up(self):
        """Even without a browser the pending call does not return: Playwright's own process hangs."""
        import psutil

        for process in psutil.Process().children(recursive=True):
            process.kill()
        os._exit(STUCK if self.stuck else 1)


def _browsers():
    import psutil

    return [
        p
        for p in psutil.Process().children(recursive=True)
        if "--type=" in " ".join(_cmdline(p)) or "chrom" in p.name()
    ]


def _cmdline(process):
    import psutil

    try:
        return process.cmdline()
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return []


def _busiest_renderer(processes, seconds=2.0):
    """Share of a core that the busiest renderer used within some seconds."""
    renderers = [p for p in processes if "--type=renderer" in _cmdline(p)]
    before = [sum(p.cpu_times()[:2]) for p in renderers]
    time.sleep(seconds)
    used = [sum(p.cpu_times()[:2]) - b for p, b in zip(renderers, before, strict=True) if p.is_running()]
    return max(used, default=0.0) / seconds


def _print_stacks():
    """Of the main thread, whose test is a greenlet that waits for Playwright's."""
    from greenlet import greenlet

    for found in gc.get_objects():
        if isinstance(found, greenlet) and found.gr_frame is not None:
            ours = [
                f
                for f in traceback.format_stack(found.gr_frame)
                if "site-packages/pluggy" not in f and "_pytest" not in f
            ]
            print("".join(ours), file=sys.__stderr__)
