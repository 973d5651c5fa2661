"""What becomes of every row of some files: no bad row ends the check, and each is counted with the reason."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from erniecore.api import Section
from erniecore.api.method import Encoder
from erniecore.api.rows import ArrayDataset, RowStatistics, Source, Workers, codes, encode
from erniecore_data.reading import sources_of


def check(
    files: Sequence[Source],
    format: str = "auto",
    encoder: Encoder | None = None,
    *,
    sections: Mapping[str, Section] | None = None,
    workers: Workers = 0,
    max_errors: int = 20,
) -> tuple[ArrayDataset, RowStatistics]:
    """What becomes of every row of every file; with an encoder also the samples."""
    sources, failed = sources_of(files, format, sections)
    statistics = RowStatistics(max_errors)
    for name, error in failed:
        statistics.fail(name, error)
    dataset, rest = encode(sources, encoder, workers=workers, max_errors=max_errors)
    _once_per_file(rest)
    statistics.merge([rest])
    return dataset, statistics


def _once_per_file(statistics: RowStatistics) -> None:
    """That no format fits is said once per file, not for each of its rows."""
    said: set[str] = set()
    listed = []
    for error in statistics.errors:
        of_file = error["code"] in (codes.NO_FORMAT, codes.AMBIGUOUS_FORMAT)
        if not (of_file and error["file"] in said):
            listed.append(error)
        if of_file:
            said.add(error["file"])
    statistics.errors = listed
