"""What PEFT will not read is said before the first step."""

import pytest
from erniecore_ernie45_moe.plugin import plugin as moe_plugin
from erniecore_lora import plugin


class Run:
    """As much of a run as the plugin looks at."""

    is_main = True

    def __init__(self, model):
        self.model, self.events = model, []

    def emit(self, event, **fields):
        self.events.append((event, fields["message"]))


UNREAD = {
    "lora": (plugin.lora, ("all-linear",), ""),
    "dora on attention": (plugin.dora, ("attention",), ""),
    "dora": (plugin.dora, ("all-linear",), "PEFT refuses DoRA"),
    "dora on shared experts": (plugin.dora, ("*.shared_experts.*",), "PEFT refuses DoRA"),
}


@pytest.mark.parametrize("case", UNREAD.values(), ids=UNREAD)
def test_a_run_says_what_peft_will_not_read(golden, build, case):
    adapter, targets, message = case
    moe = golden("moe")
    config = adapter.Config(rank=2, targets=targets)
    run = Run(adapter.ernie_adapt_model(config=config, model=build(moe_plugin, moe.config, moe.weights)))
    adapter.ernie_run_start(run=run)
    assert len(run.events) == bool(message)
    assert all(event == "warning" and message in text and "ernie merge" in text for event, text in run.events)
