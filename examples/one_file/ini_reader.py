"""A reader in one file: every section of an .ini file is a row; its keys, such as `instruction` and `output`, are fields."""

import configparser
import json
from collections.abc import Iterator
from typing import Any

from erniecore.api import DataError, hookimpl
from erniecore.api.data import RowReaderPlugin


class Ini(RowReaderPlugin):
    name, summary = "ini", "sections of .ini files as rows"

    @hookimpl
    def ernie_read_rows(self, file: Any) -> Iterator[tuple[int, bytes]]:
        parser = configparser.ConfigParser(interpolation=None)
        try:
            with file.open() as stream:
                parser.read_string(stream.read().decode("utf-8"))
        except (UnicodeError, configparser.Error) as error:
            raise DataError("not an .ini file", where=str(file.path), found=" ".join(str(error).split())) from error
        yield from ((i, json.dumps(dict(parser[s])).encode()) for i, s in enumerate(parser.sections(), 1))

    def conformance_file(self, folder: Any) -> Any:
        (folder / "rows.ini").write_text("[one]\ntext = first row\n[two]\ntext = second row\n")
        return folder / "rows.ini"


plugin = Ini()
