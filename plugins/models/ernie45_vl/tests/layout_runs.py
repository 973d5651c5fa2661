"""What the ranks of ``test_vl_layouts.py`` do."""


def runs(cluster, cases):
    """``erniecore.run`` for each case; the error of one that is refused."""
    import erniecore
    from erniecore.api import ErnieError

    found = []
    for words in cases:
        try:
            erniecore.run(overrides=words, console="none")
            found.append("")
        except ErnieError as error:
            found.append(str(error))
    return found
