"""What the ranks of ``test_ocr_layouts.py`` do."""


def runs(cluster, cases):
    """``erniecore.run`` for each case."""
    import erniecore

    for overrides in cases:
        erniecore.run(overrides=overrides, console="none")
