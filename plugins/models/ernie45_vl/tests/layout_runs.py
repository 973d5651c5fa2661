"""What the ranks of ``test_vl_layouts.py`` do."""


def runs(cluster, cases):
    """``erniecore.run`` for each case: the error of one that is refused, and the patches of this rank's micro-batches."""
    from erniecore_ernie45_vl.seeing import SeeingTemplate

    import erniecore
    from erniecore.api import ErnieError

    complete, found = SeeingTemplate.complete, []

    def counted(template, batch, rows, **options):
        found[-1][1].append(sum(template.patches(text) for row in rows for sample in row for text in sample.media))
        return complete(template, batch, rows, **options)

    SeeingTemplate.complete = counted
    for words in cases:
        found.append(["", []])
        try:
            erniecore.run(overrides=words, console="none")
        except ErnieError as error:
            found[-1][0] = str(error)
    return found
