"""What is rarer about the weights of a directory: several files with an index, a head beside the embedding that it is tied to,
and no weights at all. The usual single file needs none of this.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from erniecore_checkpoint.comparing import hint, list_problems
from erniecore_checkpoint.files import translated
from erniecore_checkpoint.safetensors_io import damaged, merge_shards, refuse_pickle
from erniecore_checkpoint.safetensors_write import INDEX_NAME, SINGLE_NAME
from erniecore_checkpoint.tensors import Tensor, same_bits
from erniecore_system.files import read_json
from erniecore_system.units import counted

from erniecore.errors import CheckpointError


def no_weights(directory: Path) -> CheckpointError:
    """Why ``directory`` has no weights that are read."""
    if not directory.is_dir():
        return CheckpointError("this model directory does not exist", where=str(directory))
    for path in sorted(directory.iterdir()):
        if path.is_file() and path.suffix in (".pdparams", ".bin", ".pt", ".pth", ".pkl"):
            try:
                refuse_pickle(path)
            except CheckpointError as error:
                return error
    others = sorted(path.name for path in directory.glob("*.safetensors"))
    return CheckpointError(
        "this directory holds no weights",
        where=str(directory),
        found=", ".join(others[:5]),
        expected=f"{SINGLE_NAME} or {INDEX_NAME}",
        fix="name the directory that holds config.json and the weights",
    )


def weight_map(index: Path) -> dict[str, str]:
    """Public name -> file. Raises ``CheckpointError`` for a damaged index."""
    try:
        with translated(index, "reading weights"):
            found = read_json(index)["weight_map"]
    except (ValueError, KeyError, TypeError) as error:
        raise damaged(index, "the index is damaged", expected="a JSON object with `weight_map`") from error
    plain = isinstance(found, dict) and all(
        isinstance(file, str) and Path(file).name == file for file in found.values()
    )
    if not plain:
        raise damaged(index, "`weight_map` must map tensor names to file names beside the index")
    return dict(found)


def open_shards(directory: Path, index: Path) -> dict[str, tuple[Path, Tensor]]:
    """Public name -> (file, tensor). Raises ``CheckpointError`` where index and shards do not agree."""
    names = weight_map(index)
    files = sorted(set(names.values()))
    missing = [name for name in files if not os.path.isfile(directory / name)]
    if missing:
        raise CheckpointError(
            f"{len(missing)} of {len(files)} weight shards are missing",
            where=str(directory),
            found=", ".join(missing[:5]),
            fix="copy or download the missing files",
        )
    stored = merge_shards([directory / name for name in files])
    for name, file in names.items():
        if name not in stored:
            raise damaged(directory / file, "the index promises this tensor, but the shard does not hold it", name)
        if stored[name][0].name != file:
            raise damaged(index, f"the index says {file}, but the tensor is in {stored[name][0].name}", name)
    for name, (path, _) in stored.items():
        if name not in names:
            raise damaged(path, "this tensor is not in the index", name)
    return stored


def check_tied_head(tensors: Mapping[str, Tensor], directory: Path) -> frozenset[str]:
    """Public head weights that repeat the embedding of a tied model, and so need no loading.

    Raises:
        CheckpointError: config.json says that head and embedding are one, but the files hold two different ones.
    """
    heads = [name for name in tensors if f".{name}".endswith(".lm_head.weight")]
    embeddings = [name for name in tensors if f".{name}".endswith(".embed_tokens.weight")]
    if not heads or not embeddings:
        return frozenset()
    head, embedding = tensors[heads[0]], tensors[embeddings[0]]
    same = head.shape == embedding.shape and head.dtype == embedding.dtype
    if same and same_bits(head.load(), embedding.load()):
        return frozenset(heads)
    raise CheckpointError(
        "config.json says tie_word_embeddings, but the head differs from the embedding",
        where=f"{directory}: {heads[0]}",
        fix="set tie_word_embeddings to false, or remove the head from the files, whichever is true of this model",
        code="ERN-K004",
    )


def name_problems(
    expected: Mapping[str, tuple[int, ...]],
    tensors: Mapping[str, Tensor],
    unexpected: Sequence[str],
    wrong: Sequence[str],
    directory: Path,
) -> CheckpointError:
    """What is wrong with the names of ``tensors``, and with the shapes of those that are ``wrong`` or missing."""
    problems: list[str] = []
    for name in expected:
        if name not in tensors:
            problems.append(f"{name} is missing" + hint(name, unexpected, problems))
    for name in unexpected:
        problems.append(f"{name} is unexpected" + hint(name, expected, problems))
    for name in wrong:
        if name in tensors:
            problems.append(f"{name} has shape {list(tensors[name].shape)}, expected {list(expected[name])}")
    return CheckpointError(
        f"the weights do not fit the model ({counted(len(problems), 'problem')}): " + list_problems(problems),
        where=str(directory),
        fix="check that config.json belongs to these weights",
        code="ERN-K004",
    )
