"""Format plugins that hurt whoever imports them, as installed distributions of a ``site`` (``sites.py``)."""

GOOD = """
    from erniecore.api import hookimpl
    from erniecore.api.data import FormatConfig, FormatPlugin
    class P(FormatPlugin):
        name, summary, Config = "good", "for tests", FormatConfig
        @hookimpl
        def ernie_match_row(self, row): return False
        @hookimpl
        def ernie_parse_row(self, row): return row
    plugin = P()
"""
#: source -> what is said of it; empty: left out without a word, as every broken plugin
HOSTILE = {
    "base": ("class Odd(BaseException): pass\nraise Odd('x')", "its import raises Odd"),
    "interrupt": ("raise KeyboardInterrupt", "its import raises KeyboardInterrupt"),
    "hang": ("import time\nwhile True: time.sleep(1)", "its import takes more than 3 s"),
    "deaf": (
        "import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, range(1, 32))\nwhile True: pass",
        "takes more than",
    ),
    "exit": ("import os\nos._exit(0)", "its import ends the process (exit 0)"),
    "closed": ("import os\nos.closerange(3, 99)\nos._exit(3)", "its import ends the process (exit 3)"),
    "killed": ("import os\nos.kill(os.getpid(), 9)", "its import ends the process (SIGKILL)"),
    "group": ("import os\nos.killpg(0, 9)", "its import ends the process (SIGKILL)"),
    "quit": ("import sys\nsys.exit(0)", ""),
    "raises": ("raise ValueError('x')", ""),
}


def install(site, *names):
    for name in names:
        source = HOSTILE[name][0] if name in HOSTILE else GOOD
        site.add(f"dist-{name}", {"erniecore.formats": {name: f"fmt_{name}:plugin"}}, {f"fmt_{name}.py": source})
