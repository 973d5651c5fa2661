"""``ernie``, which is also ``python -m erniecore``. Signals are caught before anything else is imported."""

from __future__ import annotations

import signal
import sys

from erniecore_system import lifeline, streams

from erniecore import signals


def main() -> int:
    """Run the command that was typed; the exit code."""
    streams.complete()
    signals.install()
    lifeline.follow(signal.SIGTERM)
    try:
        from erniecore.cli.app import main as command

        code = command()
    except BaseException as error:
        found = signals.outcome(error, sys.argv[1:])
        if found is None:
            raise
        code = found[0]
        streams.write(sys.stderr, found[1])
    return signals.finish(code)


if __name__ == "__main__":
    sys.exit(main())
