"""Building block for commands: rows of data files, parsed, encoded and counted. Imports numpy."""

from erniecore_sampler.packing import pack

from erniecore import codes
from erniecore.config.core import Source
from erniecore.data.dataset import ArrayDataset
from erniecore.data.decoding import decode_row
from erniecore.data.encode import Pool, Workers, build_encoder, encode, encode_in_order, parse, workers_of
from erniecore.data.file_types import FileTypes
from erniecore.data.opening import DataFile, RawRow, ReadLimits, check_columns, open_bytes, too_long
from erniecore.data.parsing import RowParser, installed_formats, load_format, writes_records
from erniecore.data.reader import read_rows
from erniecore.data.row_statistics import RowStatistics, describe
from erniecore.data.sources import DataSource, resolve

__all__ = [
    "ArrayDataset",
    "DataFile",
    "DataSource",
    "FileTypes",
    "Pool",
    "RawRow",
    "ReadLimits",
    "RowParser",
    "RowStatistics",
    "Source",
    "Workers",
    "build_encoder",
    "check_columns",
    "codes",
    "decode_row",
    "describe",
    "encode",
    "encode_in_order",
    "installed_formats",
    "load_format",
    "open_bytes",
    "pack",
    "parse",
    "read_rows",
    "resolve",
    "too_long",
    "workers_of",
    "writes_records",
]
