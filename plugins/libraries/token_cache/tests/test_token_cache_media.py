"""Samples with images on disk: the same as from memory, and made anew where an image is another one, or was missing."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
from erniecore_formats.plugin import messages
from erniecore_token_cache.cache import TokenCache

from erniecore import codes
from erniecore.api.data import Conversation, Sample
from erniecore.data import encode
from erniecore.data.dataset import DatasetBuilder, Subset
from erniecore.data.parsing import RowParser
from erniecore.data.sources import DataSource
from erniecore.errors import RowError


def same(a, b):
    """Two samples are equal, but for their arrays of positions."""
    return np.array_equal(a.input_ids, b.input_ids) and (a.media, a.origin) == (b.media, b.origin)


class MediaEncoder:
    """A sample per row; the row's image is known by what its file holds."""

    accepts = (Conversation,)

    def __init__(self, media):
        self.media = media

    def encode(self, record):
        images = [f"{m.base}/{m.source}" for message in record.messages for m in message.media]
        n = 3 + len(record.messages[0].content)
        ids = np.arange(n)
        media = self.media.references(images)
        return [Sample(ids, ids, ids, np.full(n, n, np.int32), origin=record.origin, media=media)]


class Files:
    def references(self, paths):
        try:
            return tuple(f"{path} {Path(path).read_text()}" for path in paths)
        except OSError as e:
            raise RowError("gone", code=codes.BAD_MEDIA, where="$.images[0]") from e

    def unchanged(self, media):
        path, content = media.split(" ")
        return Path(path).is_file() and Path(path).read_text() == content


def rows_with_images(directory, source_of):
    directory.mkdir(exist_ok=True)
    with (directory / "rows.jsonl").open("w") as file:
        for i in range(20):
            said = [
                {"role": "user", "content": "<image>" * (i % 2) + "?" * i + "!"},
                {"role": "assistant", "content": "a"},
            ]
            file.write(json.dumps({"messages": said, "images": [f"{i}.txt"] * (i % 2)}) + "\n")
            (directory / f"{i}.txt").write_text(source_of(i))
    return DataSource(str(directory / "rows.jsonl"), RowParser(messages, messages.Config()))


def test_media_come_back_and_changed_or_missing_ones_make_their_shard_anew(tmp_path, small):
    rows = rows_with_images(tmp_path / "a", str)
    notes, encoder = [], MediaEncoder(Files())

    def check(made):
        memory, statistics = encode.encode([rows], encoder)
        cached = TokenCache(tmp_path / "c", notes.append).encode([rows], encoder)
        assert all(same(cached.dataset[i], memory[i]) for i in range(len(memory)))
        assert len(cached.dataset) == len(memory)
        assert list(cached.dataset.media_items()) == list(memory.media_items())
        assert cached.dataset.fingerprint() == memory.fingerprint()
        assert cached.statistics.as_dict() == statistics.as_dict()
        assert cached.report["entries"][0]["made"] == made
        return memory

    assert len(list(check(4).media_items())) == 10
    check(0)
    (tmp_path / "a" / "7.txt").write_text("other")
    check(1)
    assert ["have changed: shard-00001" in note for note in notes] == [True]
    (tmp_path / "a" / "7.txt").unlink()
    assert len(check(1)) == 19
    check(1)
    (tmp_path / "a" / "7.txt").write_text("7")
    assert len(check(1)) == 20
    check(0)


def test_images_of_another_directory_are_other_samples(tmp_path, small):
    encoder, found = MediaEncoder(Files()), []
    for name in ("a", "b"):
        rows = rows_with_images(tmp_path / name, lambda i, name=name: f"{name}{i}")
        found.append(TokenCache(tmp_path / "c").encode([rows], encoder).dataset[1].media)
    assert found == [(f"{tmp_path}/{name}/1.txt {name}1",) for name in ("a", "b")]


def test_parts_of_a_dataset_know_their_media(make_sample):
    builder = DatasetBuilder(["f.jsonl"])
    for i in range(6):
        builder.add(replace(make_sample(3, i + 1), media=(f"m{i}",) if i % 2 else ()), i, 0)
    whole = builder.finish()
    assert list(whole.media_items()) == [(i, (f"m{i}",)) for i in (1, 3, 5)]
    assert list(Subset(whole, np.array([0, 3, 4, 5])).media_items()) == [(1, ("m3",)), (3, ("m5",))]
