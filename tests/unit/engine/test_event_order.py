"""When the event of a step is written."""

import json

from erniecore.plugin import Plugin, hookimpl


def test_what_callbacks_save_at_the_end_of_a_step_is_never_ahead_of_the_events(maker):
    seen = []

    class Saves(Plugin):
        kind, name, summary = "callback", "saves", "for tests"

        @hookimpl
        def ernie_step_end(self, run, step):
            lines = (run.out / "events.jsonl").read_text().splitlines()
            seen.append([e["step"] for e in map(json.loads, lines) if e["event"] == "step"] == list(range(1, step + 1)))

    maker.plugins["callback"] = [*maker.plugins["callback"], Saves()]
    maker.finish(maker.run())
    assert seen == [True] * 6
