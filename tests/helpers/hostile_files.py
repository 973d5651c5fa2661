"""What a hostile or broken file may be, as tables: JSON texts that no reader may fall over, and things that are no files."""

import json
import os
import random
import re
import socket

DEEP = 20_000

#: name -> content of a file that should hold a JSON object
JSON_TEXTS = {
    "empty": b"",
    "cut": b'{"a": ',
    "deep lists": b"[" * DEEP + b"]" * DEEP,
    "deep objects": b'{"a":' * DEEP + b"1" + b"}" * DEEP,
    "deep value": b'{"model_type": ' + b"[" * DEEP + b"]" * DEEP + b"}",
    "long name": b'{"' + b"x" * 100_000 + b'": 1}',
    "many digits": b'{"model_type": ' + b"9" * 6000 + b"}",
    "digits of a float": b'{"model_type": 1.' + b"9" * 6000 + b"}",
    "list": b"[]",
    "text": b'"a"',
    "number": b"1",
    "null": b"null",
    "not UTF-8": b'{"a": "\xff"}',
    "UTF-16": '{"a": 1}'.encode("utf-16"),
    "NUL": b"\x00" * 100,
}
#: name -> content of a file of settings in YAML
YAML = {
    "empty": b"",
    "a list": b"- a\n- b\n",
    "text": b"only text\n",
    "NUL": b"\0" * 100,
    "not UTF-8": b"run: {seed: \xff}\n",
    "UTF-16": "run: {seed: 1}\n".encode("utf-16"),
    "a tag": b"run: !!python/object/apply:os.system ['touch hacked']\n",
    "a tag of a class": b"!!python/object:subprocess.Popen {args: [touch, hacked]}\n",
    "anchors": b"a: &a [x]\n" + b"".join(b"b%d: &b%d [*%s, *%s]\n" % (n, n, p, p) for n, p in
                                        ((n, b"a" if n == 0 else b"b%d" % (n - 1)) for n in range(40))),
    "an anchor in itself": b"run: &a {seed: *a}\n",
    "merge keys": b"a: &a {x: 1}\nrun: {<<: [*a, *a, *a], seed: 1}\n",
    "deep flow": b"run: " + b"[" * DEEP + b"]" * DEEP,
    "deep block": b"".join(b" " * n + b"a:\n" for n in range(3000)),
    "twice": b"run: {seed: 1}\nrun: {seed: 2}\n",
    "a complex key": b"? [a, b]\n: 1\n",
    "a number as key": b"1: 2\n",
    "a long key": b"k" * 200_000 + b": 1\n",
    "a long number": b"run: {seed: " + b"9" * 6000 + b"}\n",
    "many keys": b"".join(b"k%d: 1\n" % n for n in range(50_000)),
    "tabs": b"run:\n\tseed: 1\n",
    "escapes": b'"\\x1b[31m": 1\n',
    "a key that commands": b"\x1b[31mred: 1\n",
    "direction": "\u202egnp: 1\n".encode(),
    "infinity": b"train: {learning_rate: .inf}\n",
    "documents": b"run: {seed: 1}\n---\nrun: {seed: 2}\n",
    "a date": b"run: {seed: 2001-01-01}\n",
    "binary": b"run: {name: !!binary aGVsbG8=}\n",
    "a set": b"run: !!set {a, b}\n",
    "sexagesimal": b"run: {seed: 1:20:30}\n",
}  # fmt: skip
#: values that have the wrong type almost everywhere
WRONG = [5, -1, 1.5, True, "x", "", [], [1], ["\x1b[31m"], {}, {"a": 1}, {"content": 5}]


def special(path, kind):
    """Put something at ``path`` that is no file: a ``pipe``, ``socket``, ``device`` or ``directory``."""
    if path.is_file() or path.is_symlink():
        path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as listener:
            old = os.getcwd()
            os.chdir(path.parent)  # names of sockets are short
            listener.bind(path.name)
            os.chdir(old)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        path.mkdir()


SPECIAL = ("pipe", "socket", "device", "directory")


def edit(path, **values):
    """Change keys of a JSON file."""
    content = json.loads(path.read_text()) if path.is_file() else {}
    path.write_text(json.dumps({**content, **values}))


def assert_refused(outcome, codes, *named):
    """A documented end: one of the exit codes, and unless that is 0, an error of the user's in the one shape of errors, which
    says all of ``named``; nothing that commands a terminal."""
    code, out, err = outcome
    assert code in codes, (code, out[-300:], err[-1500:])
    assert "this is a bug" not in err
    assert "Traceback" not in err
    control = [c for c in out + err if (ord(c) < 32 and c not in "\n\t") or 127 <= ord(c) < 160]
    assert not control, control
    if code:
        assert re.search(r"\bERN-[A-Z]\d{3}\b", out + err), (out[-300:], err[-300:])
        for text in named:
            assert text in out + err, (text, out[-300:], err[-1500:])


def damage(path, kind, seed):
    """``flip`` a bit of a file, ``cut`` it, write a ``hole`` or ``noise`` over a part, or put ``extra`` bytes into it; returns
    whether it has changed."""
    before = path.read_bytes()
    data, rng = bytearray(before), random.Random(f"{path.name} {kind} {seed}")
    at = rng.randrange(len(data))
    if kind == "flip":
        data[at] ^= 1 << rng.randrange(8)
    elif kind == "cut":
        del data[at:]
    elif kind == "hole":
        data[at : at + 64] = bytes(len(data[at : at + 64]))
    elif kind == "noise":
        data[at : at + 32] = rng.randbytes(len(data[at : at + 32]))
    else:
        data[at:at] = rng.randbytes(16)
    path.write_bytes(data)
    return bytes(data) != before


def with_header(model, change):
    """Write the weight file with a header that ``change`` has edited."""
    file = model / "model.safetensors"
    data = file.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    change(header)
    text = json.dumps(header).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + length :])


def shown(value):
    """The name of a case with this value."""
    return json.dumps(value)[:20]
