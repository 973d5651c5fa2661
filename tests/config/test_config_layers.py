"""Which layer wins, where a value came from, and the short forms. Plugins are those of the ``toys`` fixture."""

import json

import pytest
from erniecore_catalog import install_command
from hypothesis import given
from hypothesis import strategies as st
from pydantic_settings import PydanticBaseSettingsSource

from erniecore.config import yaml
from erniecore.config.compose import load, read_sources
from erniecore.config.files import FileSource, read_file
from erniecore.config.recipes import RecipeSource
from erniecore.config.settings import composed, default_source
from erniecore.config.sources import OverrideSource, from_environment, merged
from erniecore.config.tree import Leaf, Place, merge, plain, tree_of
from erniecore.errors import (
    CheckpointError,
    ConfigError,
    PluginBroken,
    PluginConflict,
    PluginNotFound,
    UsageError,
)

FLAGS = {"model": "toy", "method": "prefer"}


def files(tmp_path, **texts):
    for name, text in texts.items():
        (tmp_path / f"{name}.yaml").write_text(text)
    return tmp_path / "run.yaml"


def loaded(tmp_path, text="", words=(), flags=FLAGS, environ=None, **more):
    return load(files(tmp_path, run=text), words, flags, environ or {}, **more)


LAYERS = [
    ("default", {}),
    ("recipe toy/small:2", {"recipe": True}),
    ("base.yaml:1", {"parent": "train: {batch_size: 3}\n"}),
    ("run.yaml:2", {"text": "train: {batch_size: 4}\n"}),
    ("environment ERNIE_TRAIN__BATCH_SIZE", {"environ": {"ERNIE_TRAIN__BATCH_SIZE": "5"}}),
    ("command line", {"words": ["train.batch_size=6"]}),
]


@pytest.mark.parametrize("top", range(len(LAYERS)))
def test_the_highest_layer_wins(toys, tmp_path, monkeypatch, top):
    monkeypatch.chdir(tmp_path)
    given = {k: v for _, layer in LAYERS[: top + 1] for k, v in layer.items()}
    (tmp_path / "base.yaml").write_text(given.get("parent", ""))
    (tmp_path / "run.yaml").write_text("extends: base.yaml\n" + given.get("text", ""))
    flags = {**FLAGS} if not given.get("recipe") else FLAGS
    words = [*given.get("words", ()), *(["model.size=small"] if given.get("recipe") else ())]
    result = load((tmp_path / "run.yaml").relative_to(tmp_path), words, flags, given.get("environ", {}))
    assert result.settings.train.batch_size == top + 1
    assert result.provenance["train.batch_size"] == LAYERS[top][0]


def test_mappings_merge_and_lists_are_replaced(toys, tmp_path):
    text = "data: {train: [a, b], shuffle: false}\n"
    settings = loaded(tmp_path, text, ["data.train=[c]"]).settings
    assert [s.path for s in settings.data.train] == ["c"]
    assert settings.data.shuffle is False


def test_a_recipe_is_merged_key_by_key(toys, tmp_path):
    settings = loaded(tmp_path, "", ["model.size=small", "model.architecture.num_layers=9"]).settings
    assert settings.model.architecture == {"model_type": "toy_type", "hidden_size": 16, "num_layers": 9}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("train: a.jsonl", [("a.jsonl", "", 1.0)]),
        ("train: [a, b]", [("a", "", 1.0), ("b", "", 1.0)]),
        ("train: {path: a, weight: 2}", [("a", "", 2.0)]),
        ("train: [{path: a, format: rows}, b]", [("a", "rows", 1.0), ("b", "", 1.0)]),
    ],
)
def test_forms_of_a_source(toys, tmp_path, text, expected):
    settings = loaded(tmp_path, f"data: {{{text}}}").settings
    assert [(s.path, s.format, s.weight) for s in settings.data.train] == expected


@pytest.mark.parametrize(
    ("text", "port"),
    [
        ("callbacks: [watch]", 80),
        ("callbacks: watch", 80),
        ("callbacks: {watch: }", 80),
        ("callbacks: {watch: {port: 7}}", 7),
        ("callbacks: [{watch: {port: 7}}]", 7),
    ],
)
def test_forms_of_callbacks(toys, tmp_path, text, port):
    result = loaded(tmp_path, text)
    assert result.settings.callbacks["watch"].port == port
    assert [p.name for p in result.plugins["callback"]] == ["console", "events", "watch"]


def test_a_callback_of_a_flag_joins_those_of_the_file(toys, tmp_path):
    result = loaded(tmp_path, "callbacks: {events: {}}", flags={**FLAGS, "callback": ["watch"]})
    assert set(result.settings.callbacks) == {"console", "events", "watch"}


def test_a_callback_of_a_named_distribution_keeps_its_places(toys, tmp_path):
    result = loaded(tmp_path, "callbacks: {'toys:watch': {port: 7}}")
    assert result.settings.callbacks["watch"].port == 7
    assert result.provenance["callbacks.watch.port"] == f"{tmp_path / 'run.yaml'}:1"


def test_a_format_is_loaded_because_a_source_names_it(toys, tmp_path):
    result = loaded(tmp_path, "data: {format: rows, train: [a]}\nformats: {rows: {column: x}}\n")
    assert [p.name for p in result.plugins["format"]] == ["rows"]
    assert result.settings.formats["rows"].column == "x"


def test_installed_formats_that_nobody_names_are_no_part_of_the_settings(toys, tmp_path):
    before = loaded(tmp_path)
    toys.add("bad", {"erniecore.formats": {"bad": "bad_format:plugin"}}, {"bad_format.py": "raise KeyboardInterrupt"})
    result = loaded(tmp_path)
    assert [p.name for p in result.plugins["format"]] == ["auto"]
    assert result.settings == before.settings
    assert "rows" in loaded(tmp_path, "formats: {rows: {column: x}}").settings.formats


def test_a_broken_plugin_that_is_named_stops_the_run(toys, tmp_path):
    toys.add("bad", {"erniecore.methods": {"bad": "bad_method:plugin"}}, {"bad_method.py": "raise ValueError"})
    assert loaded(tmp_path).settings.plugins["method"] == "prefer"
    with pytest.raises(PluginBroken):
        loaded(tmp_path, flags={**FLAGS, "method": "bad"})


def test_a_name_that_is_not_installed_says_where_it_was_written(toys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.yaml").write_text("model: toy\nmethod: preferr\n")
    with pytest.raises(PluginNotFound, match="did you mean prefer") as caught:
        load((tmp_path / "run.yaml").relative_to(tmp_path), [], {}, {})
    assert caught.value.where == "run.yaml:2: method"


@pytest.mark.parametrize("text", ["method: prefer", "method: {name: prefer}", "method:\n  name: toys:prefer\n"])
def test_forms_of_a_name(toys, tmp_path, text):
    result = loaded(tmp_path, text, flags={"model": "toy"})
    assert result.plugins["method"].name == "prefer"
    assert result.provenance["method.name"].startswith(str(tmp_path))


def test_null_takes_back_what_a_parent_selected(toys, tmp_path):
    files(tmp_path, base="adapter: {name: low, rank: 4}\n")
    settings = loaded(tmp_path, "extends: base.yaml\nadapter: null\n").settings
    assert settings.adapter is None
    assert "adapter" not in settings.plugins


def test_sections_are_the_plugins_own_classes_and_frozen(toys, tmp_path):
    result = loaded(tmp_path, flags={**FLAGS, "adapter": "low"})
    assert type(result.settings.method) is result.plugins["method"].Config
    assert type(result.settings.adapter) is result.plugins["adapter"].Config
    with pytest.raises(ValueError, match="frozen"):
        result.settings.train = None
    assert "name" not in result.settings.model_dump()["method"]


def test_the_environment_of_the_process_is_not_read_twice(toys, tmp_path, monkeypatch):
    monkeypatch.setenv("TRAIN", '{"batch_size": 7}')
    assert loaded(tmp_path).settings.train.batch_size == 1


def test_text_from_the_command_line_may_look_like_a_number(toys, tmp_path):
    settings = loaded(tmp_path, "", ["run.name=2024"], environ={"ERNIE_RUN__OUT": "1e5"}).settings
    assert (settings.run.name, settings.run.out) == ("2024", "1e5")


def test_a_kind_in_the_environment(toys):
    assert load(None, [], {"model": "toy"}, {"ERNIE_METHOD": "plain"}).settings.plugins["method"] == "plain"


def test_commands_may_need_fewer_kinds(toys):
    result = load(None, [], {"model": "toy"}, {}, require=("model",))
    assert "method" not in result.plugins
    assert "method" not in result.settings.plugins


# ---- model directories


def directory(tmp_path, config):
    (tmp_path / "dir").mkdir()
    (tmp_path / "dir" / "config.json").write_text(config)
    return tmp_path / "dir"


def test_a_directory_selects_its_plugin(toys, tmp_path):
    path = directory(tmp_path, json.dumps({"model_type": "toy_type"}))
    result = loaded(tmp_path, flags={**FLAGS, "model": str(path)})
    assert result.settings.plugins["model"] == "toy"
    assert result.settings.model.path == str(path)
    assert result.provenance["model.name"] == str(path / "config.json")


def test_a_path_in_the_file_selects_its_plugin(toys, tmp_path):
    path = directory(tmp_path, json.dumps({"model_type": "toy_type"}))
    assert loaded(tmp_path, f"model: {{path: {path}}}", flags={"method": "prefer"}).plugins["model"].name == "toy"


def test_an_unknown_model_type_lists_the_readable_ones(toys, tmp_path):
    path = directory(tmp_path, json.dumps({"model_type": "llama"}))
    with pytest.raises(PluginNotFound, match="model_type 'llama'") as caught:
        loaded(tmp_path, flags={**FLAGS, "model": str(path)})
    assert "toy_type" in caught.value.expected


def test_two_plugins_for_one_model_type_are_a_conflict_and_not_a_matter_of_order(toys, tmp_path):
    rival = """
        from toys.plugin import ToyModel

        class Rival(ToyModel):
            name = "rival"

        rival = Rival()
    """
    toys.add("rival", {"erniecore.models": {"rival": "rival:rival"}}, {"rival.py": rival})
    path = directory(tmp_path, json.dumps({"model_type": "toy_type"}))
    with pytest.raises(PluginConflict, match="2 installed model plugins read model_type 'toy_type'") as caught:
        loaded(tmp_path, flags={**FLAGS, "model": str(path)})
    assert "rival, toy" in caught.value.found


def test_a_directory_whose_plugin_is_not_installed_names_the_distribution(toys, tmp_path, monkeypatch):
    monkeypatch.setenv("ERNIE_PLUGINS", "toys,auto")
    path = directory(tmp_path, json.dumps({"model_type": "ernie4_5_moe"}))
    with pytest.raises(PluginNotFound, match="no installed model plugin reads model_type 'ernie4_5_moe'") as caught:
        loaded(tmp_path, flags={**FLAGS, "model": str(path)})
    assert caught.value.fix == "erniecore-ernie45-moe does"
    assert caught.value.next == install_command("erniecore-ernie45-moe")


@pytest.mark.parametrize("config", ["{", "{}", "[]", '"x"', '{"model_type": ["toy_type"]}'])
def test_a_damaged_config_json(toys, tmp_path, config):
    with pytest.raises(CheckpointError, match=r"config\.json"):
        loaded(tmp_path, flags={**FLAGS, "model": str(directory(tmp_path, config))})


def test_a_run_directory_points_at_its_model(toys, tmp_path):
    (tmp_path / "out/model").mkdir(parents=True)
    (tmp_path / "out/model/config.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"did you mean .*out/model"):
        loaded(tmp_path, flags={**FLAGS, "model": str(tmp_path / "out")})


# ---- files


def test_extends_is_relative_to_the_file_and_later_parents_win(tmp_path):
    (tmp_path / "sub").mkdir()
    files(tmp_path, **{"a": "x: {k: 1, l: 1}", "b": "x: {k: 2}"})
    (tmp_path / "sub/run.yaml").write_text("extends: [../a.yaml, ../b.yaml]\ny: {m: 3}\n")
    assert plain(read_file(tmp_path / "sub/run.yaml")) == {"x": {"k": 2, "l": 1}, "y": {"m": 3}}


def test_circles_are_refused(tmp_path):
    files(tmp_path, run="extends: b.yaml", b="extends: run.yaml")
    with pytest.raises(UsageError, match=r"in a circle .*run\.yaml -> b\.yaml -> run\.yaml"):
        read_file(tmp_path / "run.yaml")


@pytest.mark.parametrize("value", ["5", "[1]", "{a: b}"])
def test_extends_must_be_files(tmp_path, value):
    with pytest.raises(ConfigError, match="must be a file or a list of files"):
        read_file(files(tmp_path, run=f"extends: {value}"))


def test_a_missing_file(tmp_path):
    with pytest.raises(UsageError, match="cannot read the settings file: No such file"):
        read_file(tmp_path / "no.yaml")


def test_a_file_that_is_not_text(tmp_path):
    (tmp_path / "x.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="not UTF-8"):
        read_file(tmp_path / "x.yaml")


ERNIEKIT = "model_name_or_path: baidu/ERNIE-4.5-0.3B-PT\nstage: SFT\nfine_tuning: LoRA\nmax_steps: 100\n"


def test_an_erniekit_file_is_no_parent(tmp_path):
    files(tmp_path, old=ERNIEKIT, run="extends: old.yaml\n")
    with pytest.raises(UsageError, match="this is an ERNIEKit file; only `ernie run FILE` converts one") as caught:
        read_file(tmp_path / "run.yaml")
    assert "ernie config import" in caught.value.next


@pytest.mark.parametrize("word", ["x", "train", "=3", "train.=3", ".x=3", "train max=3"])
def test_words_that_are_no_settings(toys, word):
    with pytest.raises(UsageError, match="neither a settings file nor section"):
        load(None, [word], FLAGS, {})


# ---- merging

# A key is a value in every layer or a mapping in every layer: a value between two mappings cuts them apart, so the order
# of merging matters then.
VALUES = st.dictionaries(st.sampled_from("abc"), st.integers().map(lambda i: Leaf(i, Place("x"))), max_size=3)
TREES = st.recursive(
    VALUES,
    lambda inner: st.builds(
        lambda values, below: {**values, **below}, VALUES, st.dictionaries(st.sampled_from("ABC"), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(TREES, TREES)
def test_merging_keeps_the_high_tree_whole(low, high):
    merged = merge(low, high)
    assert plain(merge(merged, high)) == plain(merged)
    assert set(merged) == set(low) | set(high)


@given(TREES, TREES, TREES)
def test_merging_is_associative(a, b, c):
    assert plain(merge(merge(a, b), c)) == plain(merge(a, merge(b, c)))


@given(st.dictionaries(st.text(min_size=1, max_size=12).map(lambda t: "ERNIE_" + t), st.text(max_size=9), max_size=4))
def test_any_environment_is_read_or_refused(environ):
    try:
        tree, problems = from_environment(environ)
    except ConfigError:
        return
    assert isinstance(tree, dict)
    assert isinstance(problems, list)


# ---- sources of pydantic-settings


def a_source(cls, tree):
    return cls(tree_of(yaml.parse(tree, cls.__name__), cls.__name__))


@pytest.mark.parametrize(
    ("high", "middle", "low", "expected"),
    [
        ("{x: {k: 1}}", "{}", "{x: {k: 2, l: 2}}", {"x": {"k": 1, "l": 2}}),
        ("{x: {l: 1}}", "{x: {k: {}}}", "{x: {k: {m: 3}}}", {"x": {"k": {"m": 3}, "l": 1}}),
        ("{x: {k: {}}}", "{x: {k: 2}}", "{}", {"x": {"k": {}}}),
        ("{x: {k: {l: 1}}}", "{x: {k: 2}}", "{x: {k: {m: 3}}}", {"x": {"k": {"l": 1}}}),
        ("{x: {k: [1]}}", "{}", "{x: {k: [2, 3]}}", {"x": {"k": [1]}}),
    ],
)
def test_sources_merge_as_files_do(high, middle, low, expected):
    trees = [a_source(cls, text) for cls, text in ((OverrideSource, high), (FileSource, middle), (RecipeSource, low))]
    assert plain(merged(trees)) == expected
    assert plain(merge(merge(trees[2].tree, trees[1].tree), trees[0].tree)) == expected


def test_an_empty_mapping_keeps_its_place():
    tree = merged([a_source(FileSource, "a:\n  b: {}\n"), a_source(RecipeSource, "a: {b: {}}")])
    assert tree["a"]["b"].place == Place("FileSource", 2)


@pytest.mark.usefixtures("toys")
def test_the_settings_class_reads_the_sources_itself(tmp_path):
    (tmp_path / "base.yaml").write_text("train: {batch_size: 3}\n")
    file = files(tmp_path, run="extends: base.yaml\ntrain: {max_steps: 7}\n")
    sources = read_sources(file, ["train.seed=1"], FLAGS, {"ERNIE_TRAIN__EPOCHS": "2"}).sources
    assert [type(s).__name__ for s in sources] == [
        "OverrideSource",
        "FlagSource",
        "EnvironmentSource",
        "FileSource",
        "ExtendedSource",
    ]
    assert all(isinstance(s, PydanticBaseSettingsSource) for s in sources)


def test_a_settings_class_takes_the_highest_source(toys):
    plugins = load(None, [], FLAGS, {}).plugins
    sources = [
        OverrideSource({"train": {"batch_size": Leaf(5, Place("high"))}}),
        FileSource({"train": {"batch_size": Leaf(4, Place("low")), "max_steps": Leaf(9, Place("low"))}}),
        default_source(plugins),
    ]
    settings = composed(plugins)(sources=sources, plugins={}, adapter=None, quantizer=None)
    assert (settings.train.batch_size, settings.train.max_steps, settings.train.epochs) == (5, 9, 1.0)
