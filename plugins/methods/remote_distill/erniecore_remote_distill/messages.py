"""What travels between a student and a teacher of another site, as bytes: questions (samples) and replies (likeliest tokens).

``EWQ1`` or ``EWR1`` · uint32 length of the header · header as JSON · body · SHA-256 of all before. The body of a question has the
ids of its samples, int32, and one bit for each position that is learned; that of a reply has of every learned position k ids
in as few bytes as the vocabulary needs, their log-probabilities, and that of all other tokens together.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from erniecore_distill.cache import TopLogProbs
from erniecore_system.files import parse_json
from erniecore_wan.payload import PayloadRefused

if TYPE_CHECKING:
    from numpy.typing import NDArray

_QUESTION, _REPLY = b"EWQ1", b"EWR1"
_DIGEST = hashlib.sha256().digest_size
#: bytes of a header; what no temperature is beyond
_MAX_HEADER, _MAX_TEMPERATURE = 256 << 10, 1e6
#: name of a form -> numpy's type of its log-probabilities
FORMS = {"float32": "<f4", "float16": "<f2"}
#: the least log-probability that the form float16 can say
_LEAST = -65504.0


@dataclass(frozen=True)
class Asked:
    """What a student wants to know.

    Attributes:
        teacher: fingerprint of the weights. tokenizer: digest of the student's. top_k, temperature: of the distributions.
        form: of the log-probabilities in the reply, a key of :data:`FORMS`.
    """

    teacher: str
    tokenizer: str
    top_k: int
    temperature: float
    form: str = "float32"


@dataclass(frozen=True)
class Question:
    """Samples about which a teacher is asked: ids int64 [n] and learned positions bool [n] of each."""

    asked: Asked
    samples: Sequence[tuple[NDArray[np.int64], NDArray[np.bool_]]]

    @property
    def num_learned(self) -> int:
        """Positions that have a reply, of all samples."""
        return sum(int(learned.sum()) for _, learned in self.samples)


def question_bytes(length: int) -> int:
    """At most so many bytes a sample of ``length`` tokens adds to a question."""
    return 4 * length + length // 8 + 1 + 12


def bytes_per_position(top_k: int, vocabulary: int, form: str) -> int:
    """Bytes of a reply for one learned position."""
    value = np.dtype(FORMS[form]).itemsize
    return top_k * (_id_bytes(vocabulary) + value) + value


def _id_bytes(vocabulary: int) -> int:
    return next(size for size in (2, 3, 4) if vocabulary <= 1 << 8 * size)


def _pack(magic: bytes, header: Mapping[str, Any], body: bytes) -> bytes:
    text = json.dumps(dict(header), sort_keys=True).encode()
    front = magic + struct.pack("<I", len(text)) + text + body
    return front + hashlib.sha256(front).digest()


def _unpack(magic: bytes, data: bytes) -> tuple[dict[str, Any], bytes]:
    start = len(magic) + 4
    if len(data) < start + _DIGEST or data[: len(magic)] != magic:
        raise PayloadRefused("damaged", "this is no message between student and teacher")
    if hashlib.sha256(data[:-_DIGEST]).digest() != data[-_DIGEST:]:
        raise PayloadRefused("damaged", "the checksum differs: at least one byte has changed")
    (length,) = struct.unpack("<I", data[len(magic) : start])
    if length > _MAX_HEADER or start + length + _DIGEST > len(data):
        raise PayloadRefused("damaged", f"a header of {length} bytes")
    try:
        return dict(parse_json(data[start : start + length])), data[start + length : -_DIGEST]
    except (TypeError, ValueError) as error:
        raise PayloadRefused("damaged", f"the header cannot be read: {error}") from None


def pack_question(question: Question) -> bytes:
    """The bytes of a question."""
    sizes = [len(ids) for ids, _ in question.samples]
    ids = np.concatenate([ids for ids, _ in question.samples]).astype("<i4")
    learned = np.packbits(np.concatenate([learned for _, learned in question.samples]))
    return _pack(_QUESTION, {**asdict(question.asked), "sizes": sizes}, ids.tobytes() + learned.tobytes())


def unpack_question(data: bytes, vocabulary: int) -> Question:
    """What :func:`pack_question` was given. Raises ``PayloadRefused``: ``damaged``, also for ids that no vocabulary has."""
    header, body = _unpack(_QUESTION, data)
    try:
        sizes = [int(size) for size in header.pop("sizes")]
        asked = _checked(Asked(**header))
        total = sum(sizes)
        if not sizes or min(sizes) < 1 or len(body) != 4 * total + (total + 7) // 8:
            raise ValueError(f"{len(body)} bytes for {len(sizes)} samples of {total} tokens")
        ids = np.frombuffer(body[: 4 * total], "<i4").astype(np.int64)
        learned = np.unpackbits(np.frombuffer(body[4 * total :], np.uint8), count=total).astype(bool)
        if ids.min() < 0 or ids.max() >= vocabulary:
            raise ValueError(f"ids from {ids.min()} to {ids.max()}; the vocabulary has {vocabulary}")
    except (TypeError, ValueError, LookupError, AttributeError, OverflowError) as error:
        raise PayloadRefused("damaged", f"a question that cannot be read: {error}") from None
    ends = np.cumsum(sizes)[:-1]
    samples = list(zip(np.split(ids, ends), np.split(learned, ends), strict=True))
    if not all(learned.any() for _, learned in samples):
        raise PayloadRefused("damaged", "a sample of which nothing is learned")
    return Question(asked, samples)


def _checked(asked: Asked) -> Asked:
    if not all(isinstance(text, str) for text in (asked.teacher, asked.tokenizer)) or asked.form not in FORMS:
        raise ValueError("a header with other fields")
    if not isinstance(asked.top_k, int) or isinstance(asked.top_k, bool) or asked.top_k < 1:
        raise ValueError(f"top_k={asked.top_k!r}")
    if not isinstance(asked.temperature, int | float) or not 0 < asked.temperature < _MAX_TEMPERATURE:
        raise ValueError(f"temperature={asked.temperature!r}")
    return asked


def pack_reply(values: TopLogProbs, vocabulary: int, form: str) -> bytes:
    """The bytes of a reply. ``values``: of all learned positions, in the order of the question."""
    width, dtype = _id_bytes(vocabulary), FORMS[form]
    ids = np.ascontiguousarray(values.ids.astype("<i4")).view(np.uint8).reshape(*values.ids.shape, 4)[..., :width]
    numbers = [np.maximum(part, _LEAST) if form == "float16" else part for part in (values.log_p, values.rest)]
    body = np.ascontiguousarray(ids).tobytes() + b"".join(part.astype(dtype).tobytes() for part in numbers)
    return _pack(_REPLY, {"count": len(values.rest), "top_k": values.ids.shape[1]}, body)


def unpack_reply(data: bytes, count: int, asked: Asked, vocabulary: int) -> TopLogProbs:
    """What :func:`pack_reply` was given, for ``count`` learned positions; of the form float16 rounded to that.

    Raises:
        PayloadRefused: ``damaged``: changed on the way, of other positions, or with what no distribution has.
    """
    header, body = _unpack(_REPLY, data)
    top_k, width, dtype = asked.top_k, _id_bytes(vocabulary), np.dtype(FORMS[asked.form])
    if (header.get("count"), header.get("top_k")) != (count, top_k):
        raise PayloadRefused("damaged", f"a reply for {header.get('count')} positions; asked were {count}")
    if len(body) != count * bytes_per_position(top_k, vocabulary, asked.form):
        raise PayloadRefused("damaged", f"a reply of {len(body)} bytes for {count} positions")
    ends = np.cumsum([count * top_k * width, count * top_k * dtype.itemsize])
    wide = np.zeros((count, top_k, 4), np.uint8)
    wide[..., :width] = np.frombuffer(body[: ends[0]], np.uint8).reshape(count, top_k, width)
    ids = wide.view("<i4").reshape(count, top_k).astype(np.int32)
    log_p = np.frombuffer(body[ends[0] : ends[1]], dtype).astype(np.float32).reshape(count, top_k)
    rest = np.frombuffer(body[ends[1] :], dtype).astype(np.float32)
    highest = 1e-3  # rounding of a probability of one
    if ids.min() < 0 or ids.max() >= vocabulary or not ((log_p <= highest).all() and (rest <= highest).all()):
        raise PayloadRefused("damaged", "a reply with ids or probabilities that there cannot be")
    if not (math.isfinite(float(log_p.sum())) and math.isfinite(float(rest.sum()))):
        raise PayloadRefused("damaged", "a reply with infinite or NaN values")
    return TopLogProbs(ids, log_p, rest)
