"""Assembling the plugins of a run and calling their hooks."""

import pytest

from erniecore.api.adapter import AdapterPlugin
from erniecore.api.data import FormatPlugin
from erniecore.api.method import MethodPlugin
from erniecore.errors import ConfigError, PluginBroken
from erniecore.host import assemble
from erniecore.plugin import Plugin, hookimpl


class Method(MethodPlugin):
    name, summary = "m", "for tests"

    @hookimpl
    def ernie_build_objective(self, config):
        return ("objective", config)

    @hookimpl
    def ernie_build_encoder(self):
        return "encoder"


class Rows(FormatPlugin):
    name, summary = "rows", "for tests"

    def __init__(self, name="rows"):
        self.name = name

    @hookimpl
    def ernie_match_row(self, row):
        return self.name in row

    @hookimpl
    def ernie_parse_row(self, row):
        return (self.name, row)


class Watch(Plugin):
    kind, summary = "callback", "for tests"

    def __init__(self, name, calls):
        self.name, self.calls = name, calls

    @hookimpl
    def ernie_step_start(self, step):
        self.calls.append((self.name, step))


def test_build_hook_returns_the_value_of_its_one_provider():
    host = assemble({"method": Method()})
    assert host.hook.ernie_build_objective(config=1, policy=2, reference=None, tokenizer=None) == ("objective", 1)


def test_lifecycle_order_is_builtin_then_plugins_then_callbacks_as_given():
    calls = []

    class Talking(Method):
        @hookimpl
        def ernie_step_start(self, step):
            calls.append(("method", step))

    watchers = [Watch(n, calls) for n in ("b", "console", "a", "events")]
    host = assemble({"callback": watchers, "method": Talking()})
    host.hook.ernie_step_start(run=None, step=3)
    assert [name for name, _ in calls] == ["console", "events", "method", "b", "a"]


def test_call_reaches_one_of_several():
    rows, lines = Rows(), Rows("lines")
    host = assemble({"format": [rows, lines]})
    for _ in range(2):
        assert host.call(lines, "ernie_parse_row", config=None, row={}, origin=None) == ("lines", {})


def test_a_hook_of_another_kind_is_called_as_specified():
    class Adapting(Method):
        @hookimpl
        def ernie_match_adapter(self, directory):
            return directory

    host = assemble({"method": Adapting()})
    assert host.hook.ernie_match_adapter(directory="here") == "here"  # the first result, not a list of all
    assert host.hook.ernie_check_settings.get_hookimpls() == []


def test_call_of_a_hook_that_the_plugin_lacks_is_broken():
    method = Method()
    with pytest.raises(PluginBroken, match="method 'm' does not implement ernie_export"):
        assemble({"method": method}).call(method, "ernie_export")


def test_extra_takes_part_last():
    class Core:
        @hookimpl(trylast=True)
        def ernie_forward_backward(self):
            return "core"

    class Pipeline(Method):
        @hookimpl
        def ernie_forward_backward(self):
            return "pipeline"

    arguments = {"run": None, "batches": ()}
    assert assemble({"method": Method()}, extra=[Core()]).hook.ernie_forward_backward(**arguments) == "core"
    assert assemble({"method": Pipeline()}, extra=[Core()]).hook.ernie_forward_backward(**arguments) == "pipeline"


def test_runs_do_not_share_plugins():
    calls = []
    assemble({"callback": [Watch("a", calls)]})
    assemble({"callback": []}).hook.ernie_step_start(run=None, step=1)
    assert calls == []


def with_hook(name, function):
    return type("Odd", (Method,), {name: hookimpl(function)})()


@pytest.mark.parametrize(
    ("plugin", "message"),
    [
        (with_hook("ernie_run_start", lambda self, rnu: None), "rnu"),
        (with_hook("ernie_run_strat", lambda self, run: None), "no hook is called ernie_run_strat"),
        (with_hook("ernie_step_start", lambda self, run, step=0: None), "ernie_step_start declares defaults.*step"),
        (type("Odd", (Method,), {"ernie_run_end": lambda self, run: None})(), "ernie_run_end is not marked"),
        (with_hook("ernie_adapt_model", lambda self, model: model), "only adapter 'low' may implement"),
        (type("Half", (Plugin,), {"kind": "method", "name": "half"})(), "'half' does not implement ernie_build_obj"),
    ],
    ids=["argument", "unknown", "default", "unmarked", "foreign", "missing"],
)
def test_broken_contract(plugin, message):
    class Low(AdapterPlugin):
        name, summary = "low", "for tests"

        @hookimpl
        def ernie_adapt_model(self, model):
            return model

    with pytest.raises(PluginBroken, match=message) as caught:
        assemble({"method": plugin, "adapter": Low()})
    assert "test_host" in caught.value.where


def test_two_providers_of_one_build_hook_are_refused():
    class Rival(Watch):
        @hookimpl
        def ernie_build_encoder(self):
            return "mine"

    with pytest.raises(PluginBroken, match="only method 'm' may implement ernie_build_encoder"):
        assemble({"method": Method(), "callback": [Rival("r", [])]})


def test_several_formats_are_no_conflict():
    assert len(assemble({"format": [Rows(), Rows("lines")]}).plugins) == 2


def test_check_settings_collects_the_problems_of_all():
    def checking(key):
        class Checking(Watch):
            @hookimpl
            def ernie_check_settings(self, settings):
                raise ConfigError.at(key, f"{settings} is wrong")

        return Checking(key, [])

    problems = assemble({"callback": [checking("a"), checking("b")]}).check_settings("x")
    assert sorted(p.key for p in problems) == ["a", "b"]
    assert problems[0].message == "x is wrong"
