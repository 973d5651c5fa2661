"""``ernie``, which is also ``python -m erniecore``. Signals are caught before anything else is imported."""

from __future__ import annotations

import signal
import sys

from erniecore import lifeline, signals, streams


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
