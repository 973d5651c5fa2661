"""Codes of errors in data files and rows, each with its meaning in a line. The error itself names the place and the fix.

Codes are stable, so scripts can rely on them. D00x are about a whole file, D02x about the bytes and the JSON of one row, D03x
about its content, D04x about tokenization and the training method, D05x about the whole data set.
"""

from __future__ import annotations

MISSING_FILE = "ERN-D002"
IS_DIRECTORY = "ERN-D003"
EMPTY_FILE = "ERN-D004"
UNKNOWN_FILE_TYPE = "ERN-D005"
BAD_GZIP = "ERN-D006"
GZIP_BOMB = "ERN-D007"
WRONG_ENCODING = "ERN-D008"
NOT_AN_ARRAY = "ERN-D009"

ROW = "ERN-D010"
BROKEN_ARRAY = "ERN-D011"

MALFORMED = "ERN-D020"
BAD_UTF8 = "ERN-D021"
NUL = "ERN-D022"
LONE_SURROGATE = "ERN-D023"
NOT_FINITE = "ERN-D024"
DUPLICATE_KEY = "ERN-D025"
TOO_LONG_ROW = "ERN-D026"
TOO_DEEP = "ERN-D027"
NOT_AN_OBJECT = "ERN-D028"

MISSING_FIELD = "ERN-D030"
WRONG_TYPE = "ERN-D031"
EMPTY_TEXT = "ERN-D032"
LENGTHS_DIFFER = "ERN-D033"
UNKNOWN_ROLE = "ERN-D034"
ROLE_ORDER = "ERN-D035"
BAD_VALUE = "ERN-D036"
NO_FORMAT = "ERN-D037"
AMBIGUOUS_FORMAT = "ERN-D038"
BAD_MEDIA = "ERN-D039"

TEMPLATE_BROKEN = "ERN-D040"
TEMPLATE_REFUSED = "ERN-D041"
TEMPLATE_CHANGES_TEXT = "ERN-D042"
NO_TARGETS = "ERN-D043"
TOO_LONG = "ERN-D044"
WRONG_RECORD = "ERN-D045"
NO_END_TOKEN = "ERN-D046"
PROMPT_DIFFERS = "ERN-D047"
ID_OUT_OF_RANGE = "ERN-D048"
SAME_ANSWERS = "ERN-D049"

CALIBRATION_TOO_SHORT = "ERN-D077"

NO_QUESTION = "ERN-D075"
NO_REFERENCE = "ERN-D076"

TOO_MANY_DROPPED = "ERN-D050"
NOTHING_LEFT = "ERN-D051"
VOCABULARY_SIZE = "ERN-D052"
FILE_CHANGED = "ERN-D053"
SAMPLES_CHANGED = "ERN-D054"

NO_TOKEN_FILE = "ERN-D060"
TOKEN_FILE_DAMAGED = "ERN-D061"
TOKEN_DTYPE = "ERN-D062"
NOT_FOR_TOKEN_FILES = "ERN-D063"

NOT_REPRESENTABLE = "ERN-D065"
DAMAGED_TABLE = "ERN-D066"
WHICH_SPLIT = "ERN-D067"
NOT_A_DATASET = "ERN-D068"
NOT_CONVERTED = "ERN-D069"

CACHE_UNKEYED = "ERN-D070"
CACHE_LOST = "ERN-D071"
CACHE_UNWRITABLE = "ERN-D072"
CHANGED_WHILE_READ = "ERN-D073"

__all__ = [name for name in dir() if name.isupper()]  # the public layer of corpora and rows hands them on

#: code -> what it means
MEANINGS: dict[str, str] = {
    MISSING_FILE: "the data file does not exist or cannot be read",
    IS_DIRECTORY: "a directory was given instead of a data file",
    EMPTY_FILE: "the file holds no rows",
    UNKNOWN_FILE_TYPE: "no installed reader reads files with this ending",
    BAD_GZIP: "the gzip stream is damaged or ends early",
    GZIP_BOMB: "the gzip stream expands beyond the allowed ratio",
    WRONG_ENCODING: "the file is not encoded in UTF-8",
    NOT_AN_ARRAY: "a .json file contains neither an array of rows nor one row after another",
    ROW: "the row cannot be used",
    BROKEN_ARRAY: "the JSON array is cut off or malformed, so later rows cannot be found",
    MALFORMED: "the row is not valid JSON",
    BAD_UTF8: "the row holds bytes that are not UTF-8",
    NUL: "the row holds a NUL character",
    LONE_SURROGATE: "the row holds half of a surrogate pair, which is not a character",
    NOT_FINITE: "the row holds NaN, Infinity or a number beyond the range of a double",
    DUPLICATE_KEY: "an object names the same key twice, so one value would be lost",
    TOO_LONG_ROW: "the row is longer than the limit for one row",
    TOO_DEEP: "the row is nested too deeply",
    NOT_AN_OBJECT: "the row is valid JSON but not an object",
    MISSING_FIELD: "a field that the format needs is missing",
    WRONG_TYPE: "a field has the wrong JSON type",
    EMPTY_TEXT: "a text is empty or only whitespace",
    LENGTHS_DIFFER: "lists that belong together have different lengths",
    UNKNOWN_ROLE: "a message's role is unknown",
    ROLE_ORDER: "the roles of the messages are in an order that is not allowed",
    BAD_VALUE: "a field has a value that is not allowed",
    NO_FORMAT: "no installed format fits the rows",
    AMBIGUOUS_FORMAT: "several installed formats fit the rows",
    BAD_MEDIA: "an image or a video of a row cannot be read, or exceeds a limit",
    TEMPLATE_BROKEN: "the chat template cannot be compiled or does more work than allowed",
    TEMPLATE_REFUSED: "the chat template refuses this conversation",
    TEMPLATE_CHANGES_TEXT: "the chat template changes the text of a message, so its parts cannot be told apart",
    NO_TARGETS: "no token of the row is a target of the loss",
    TOO_LONG: "the row does not fit into data.max_seq_len, even after the truncation that data.too_long allows",
    WRONG_RECORD: "the method does not train on rows of this kind",
    NO_END_TOKEN: "a target turn does not end with the template's end token, so the model would never stop",
    PROMPT_DIFFERS: "the prompt in training would differ from the prompt in use",
    ID_OUT_OF_RANGE: "a token id is not below the vocabulary size",
    SAME_ANSWERS: "the preferred and the rejected answer are the same",
    CALIBRATION_TOO_SHORT: "the calibration data is shorter than the quantizer needs",
    NO_QUESTION: "the row does not end with a question and a reference answer, so there is no prompt to complete",
    NO_REFERENCE: "the reference answer, which completions are compared with, is empty",
    TOO_MANY_DROPPED: "more rows were dropped than data.max_drop allows",
    NOTHING_LEFT: "no row is left to train on",
    VOCABULARY_SIZE: "the vocabulary cannot have this size with this text",
    NOT_REPRESENTABLE: "the format cannot represent the record, for example tools or several completions",
    DAMAGED_TABLE: "a parquet or arrow file cannot be read",
    WHICH_SPLIT: "a data set directory has several splits and none was named, or it lacks the named one",
    NOT_A_DATASET: "the directory contains no readable data set",
    NOT_CONVERTED: "the rows cannot be converted without loss of rows or content",
    FILE_CHANGED: "a training file is not the one that the checkpoint was made with",
    SAMPLES_CHANGED: "the training files are unchanged, but the samples differ from those of the checkpoint",
    NO_TOKEN_FILE: "the file is not an index of token files, or its version is unknown",
    TOKEN_FILE_DAMAGED: "a token file and its index do not fit together",
    TOKEN_DTYPE: "the token file has a dtype that cannot hold token ids",
    NOT_FOR_TOKEN_FILES: "the method or a setting cannot be used with token files",
    CACHE_UNKEYED: "the encoder or the settings of a format contain an object from which no cache key can be computed",
    CACHE_LOST: "a file of the token cache was removed or changed while a run used it",
    CACHE_UNWRITABLE: "the directory of the token cache cannot be used",
    CHANGED_WHILE_READ: "the data file changed while it was read",
}
