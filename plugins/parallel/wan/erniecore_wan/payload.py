"""An update as bytes: what a site sends in a round, with everything by which a receiver can refuse it.

``EWAN1`` · uint32 length of the header · header as JSON · body · SHA-256 of all before. The header says of which run, round,
fragment and sender the update is, so that one of another round, sender or model is refused by name.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np
from erniecore_system.files import parse_json

from erniecore_wan.arrays import AnyArray, Vector, Words
from erniecore_wan.sparse import Sparse, expand

MAGIC = b"EWAN1"
#: bytes that a header may have, measurements of a report
MAX_HEADER, _MAX_REPORT = 64 << 10, 32
#: what no update needs and sums of them stand: size of a value, samples of a round
_MAX_VALUE, _MAX_SAMPLES = 1e30, 1e15
_DIGEST = hashlib.sha256().digest_size

Form = Literal["float32", "bfloat16", "sparse", "masked"]
#: bytes per element of dense forms
ELEMENT_BYTES = {"float32": 4, "bfloat16": 2, "masked": 4}


class PayloadRefused(ValueError):
    """An update that is not what the round wants.

    Attributes:
        kind: ``damaged``, ``replayed``, ``stranger``, ``wrong-model`` or ``too-large``.
    """

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


@dataclass(frozen=True, slots=True)
class Header:
    """What an update says of itself.

    Attributes:
        model: digest of the run's payload and settings. round, fragment: where it belongs. attempt: of a masked round.
        sender: name of the site. samples: that its inner steps have seen, its weight in the mean.
        size: elements. form: of the body. k, chunk, rounding: of ``sparse``.
        norm: Euclidean norm of the update, for clipping. report: measurements of the site.
    """

    model: str
    round: int
    sender: str
    size: int
    form: Form
    fragment: int = 0
    attempt: int = 0
    samples: float = 1.0
    k: int = 0
    chunk: int = 0
    rounding: bool = True
    norm: float = 0.0
    report: dict[str, float] = field(default_factory=dict)

    @property
    def sparse(self) -> Sparse:
        """The rule of the form ``sparse``."""
        return Sparse(k=self.k, chunk=self.chunk, rounding=self.rounding)

    @property
    def body_bytes(self) -> int:
        """Length of the body."""
        return self.sparse.num_bytes(self.size) if self.form == "sparse" else self.size * ELEMENT_BYTES[self.form]


def pack(header: Header, body: bytes) -> bytes:
    """The update that travels. Raises ``ValueError`` for a body of another length than the header says."""
    if len(body) != header.body_bytes:
        raise ValueError(f"a body of {len(body)} bytes, the header says {header.body_bytes}")
    text = json.dumps(asdict(header), sort_keys=True).encode()
    front = MAGIC + struct.pack("<I", len(text)) + text + body
    return front + hashlib.sha256(front).digest()


def unpack(data: bytes) -> tuple[Header, bytes]:
    """Header and body of what :func:`pack` returned. Raises ``PayloadRefused``: ``damaged``."""
    start = len(MAGIC) + 4
    if len(data) < start + _DIGEST or data[: len(MAGIC)] != MAGIC:
        raise PayloadRefused("damaged", "this is no update of wide-area training")
    if hashlib.sha256(data[:-_DIGEST]).digest() != data[-_DIGEST:]:
        raise PayloadRefused("damaged", "the checksum of the update differs: at least one byte has changed")
    (length,) = struct.unpack("<I", data[len(MAGIC) : start])
    if length > MAX_HEADER or start + length + _DIGEST > len(data):
        raise PayloadRefused("damaged", f"a header of {length} bytes")
    try:
        header = Header(**_checked(parse_json(data[start : start + length])))
    except (TypeError, ValueError, LookupError, OverflowError) as error:
        raise PayloadRefused("damaged", f"the header cannot be read: {error}") from None
    body = data[start + length : -_DIGEST]
    if len(body) != header.body_bytes:
        raise PayloadRefused("damaged", f"a body of {len(body)} bytes, the header says {header.body_bytes}")
    return header, body


def _checked(found: Any) -> dict[str, Any]:
    """The fields of a header with the types that they must have."""
    types = {name: type(value) for name, value in asdict(Header("", 0, "", 0, "float32")).items()}
    if not isinstance(found, dict):
        raise ValueError("no object")
    for name, value in found.items():
        wanted = types.get(name)
        if wanted is None or not isinstance(value, (int, float) if wanted is float else wanted):
            raise ValueError(f"{name}={value!r}")
    if found["form"] not in (*ELEMENT_BYTES, "sparse") or not 0 <= found["size"] < 1 << 40:
        raise ValueError(f"form={found['form']!r}, size={found['size']}")
    if found["form"] == "sparse" and not 1 <= found["k"] <= found["chunk"] <= 1 << 20:
        raise ValueError(f"k={found['k']}, chunk={found['chunk']}")
    if not (0 < found.get("samples", 1) < _MAX_SAMPLES and 0 <= found.get("norm", 0) < math.inf):
        raise ValueError(f"samples={found['samples']}, norm={found['norm']}")
    if not all(0 <= found.get(name, 0) < 1 << 31 for name in ("round", "fragment", "attempt", "k", "chunk")):
        raise ValueError("a number that no update has")
    report = found.get("report", {})
    if len(report) > _MAX_REPORT or not all(
        isinstance(value, int | float) and abs(value) < math.inf for value in report.values()
    ):
        raise ValueError("a report of something else than a few finite numbers")
    return dict(found)


def max_bytes(size: int, sparse: Sparse | None) -> int:
    """The longest update of ``size`` elements that a round accepts."""
    body = 4 * size if sparse is None else max(4 * size, sparse.num_bytes(size))
    return len(MAGIC) + 4 + MAX_HEADER + body + _DIGEST


def dense_body(vector: Vector, form: Form) -> bytes:
    """A dense vector float32 [n] in the form ``float32`` or ``bfloat16``."""
    return vector.astype("<f4").tobytes() if form == "float32" else to_bfloat16(vector).astype("<u2").tobytes()


def vector_of(header: Header, body: bytes) -> Vector:
    """The update float32 [size]. Raises ``PayloadRefused``: ``damaged``, also for what is infinite or NaN."""
    try:
        if header.form == "sparse":
            found = expand(body, header.size, header.sparse)
        elif header.form == "bfloat16":
            found = from_bfloat16(np.frombuffer(body, "<u2"))
        else:
            found = np.frombuffer(body, "<f4").astype(np.float32)
    except ValueError as error:
        raise PayloadRefused("damaged", str(error)) from None
    if not (np.abs(found) < _MAX_VALUE).all():
        raise PayloadRefused("damaged", f"the update has infinite or NaN values, or some beyond {_MAX_VALUE:g}")
    return found


def checked_vector(header: Header, body: bytes) -> Vector:
    """The same, whose norm is the one that the header says: clipping goes by that. Raises ``PayloadRefused``: ``damaged``."""
    found = vector_of(header, body)
    norm = float(np.linalg.norm(found.astype(np.float64)))
    if abs(norm - header.norm) > 1e-3 * norm:
        raise PayloadRefused("damaged", f"the norm of the update is {norm:.6g}, its header says {header.norm:.6g}")
    return found


def words_of(body: bytes) -> Words:
    """Fixed-point numbers uint32 [n] of a masked body, or of the sum of several."""
    return np.frombuffer(body, "<u4").astype(np.uint32)


def to_bfloat16(vector: Vector) -> AnyArray:
    """uint16 bits of finite float32 values, rounded to nearest even."""
    bits = np.ascontiguousarray(vector, np.float32).view(np.uint32)
    even = np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    return np.asarray((bits + even) >> np.uint32(16), np.uint16)


def from_bfloat16(bits: AnyArray) -> Vector:
    """float32 values of bfloat16 bits."""
    wide: Words = bits.astype(np.uint32) << np.uint32(16)
    return wide.view(np.float32)
