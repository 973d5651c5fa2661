"""What ranks do that generate together, without a run around it."""

from pathlib import Path


def decoding(cluster, cases):
    """For each case two generations, in which ranks make 2 and 5 passes, then 4 and none: the last hidden state of each pass, and
    what a pass with a cache outside of a generation says."""
    from runpy import run_path

    import paddle
    from erniecore_generation.cache import StaticCache
    from erniecore_generation.generate import cached_layers, generating

    from erniecore.api import PluginError

    found, built = [], run_path(str(Path(__file__).with_name("hybrid_helpers.py")))["_built"]
    for words in cases:
        model = built(words).state.model
        hidden = []
        for passes in ((2, 4), (5, 0))[cluster.rank]:
            with generating(model):
                ids = [paddle.full([1, n + 1], n + 3, "int64") for n in range(passes)]
                hidden += [model.features(each).hidden[0, -1] for each in ids]
        try:
            model.features(paddle.zeros([1, 1], "int64"), cache=StaticCache(cached_layers(model), 4))
            said = ""
        except PluginError as error:
            said = error.fix
        found.append(([state.numpy().tolist() for state in hidden], said))
    return found
