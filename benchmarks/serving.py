"""Load on an OpenAI-compatible server, and a soak of ours.

    python -m benchmarks.serving --url http://127.0.0.1:8000/v1 --name MODEL --rate 2 --requests 200
    python -m benchmarks.serving --size 0.3b --form wint8 --keep DIR --clients 8 --rounds 3 [--llama-server PATH]
    python -m benchmarks.serving --model DIR --soak 60

``--rate R`` is an open loop with R arrivals per second (Poisson), ``--clients N`` a closed one. ``--prompt`` and ``--new`` are
distributions of tokens: ``constant:128``, ``uniform:64:256``, ``lognormal:128:0.6:1024``. Told are time to first token (TTFT),
time per further token (TPOT), time of the whole answer, each as p50 to p99, throughput, and goodput: requests per second that
keep ``--ttft`` and ``--tpot``. A server that holds half characters back sends its first chunk late, often so with random
weights: every ``--probes``-th request is for one token, and the time to the end of its answer (``one_token_ms``) is what servers
can be compared by. Without ``--url`` the server is started: ours on ``--model DIR``, or on a model of ``--size`` with random
weights in ``--form``, which is made in ``--keep``; with ``--llama-server`` llama.cpp's too, on a GGUF file of the same model and
bit width, in turns, and the ratios of both. ``--soak MINUTES``: mixed requests with random disconnects; see
``benchmarks/soak.py``.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import load, soak, under_load
from benchmarks.machine import describe
from benchmarks.real_models import SIZES
from benchmarks.real_sizes import Bench

#: our form of weights -> llama.cpp's with as many bits
GGUF = {"wint8": "q8_0", "wint4": "q4_0", "bf16": "bf16"}


def main() -> int:
    """Run what the arguments ask for; 1: requests failed, or the soak found something."""
    arguments = _parser().parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        home = (arguments.keep or Path(temporary)).resolve()
        home.mkdir(parents=True, exist_ok=True)
        if arguments.soak:
            rows = [soak.run(_model(arguments, home), home, minutes=arguments.soak, seed=arguments.seed,
                             settings=arguments.settings, think=arguments.think)]  # fmt: skip
            failed = bool(rows[0]["found"])
        else:
            rows = list(_loads(arguments, home))
            failed = any(row["failed"] for row in rows)
            rows += compared(rows)
    for row in rows:
        print("  ".join(f"{name}={value}" for name, value in row.items()), flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps({"machine": describe(), "rows": rows}, indent=1) + "\n", encoding="utf-8")
    return int(failed)


def _loads(arguments: argparse.Namespace, home: Path) -> Iterator[dict[str, Any]]:
    """A row per server and round; the first request of a server warms it and is not counted."""
    wanted = _load(arguments)
    if arguments.url:
        yield _measure("server", load.Target(arguments.url, arguments.name, arguments.key), wanted, arguments, 0)
        return
    model = _model(arguments, home)
    file = _gguf(arguments, home) if arguments.llama_server else None
    for number in range(arguments.rounds):
        with under_load.ours(model, home / "ernie.log", arguments.settings, rows=arguments.rows) as (target, _):
            yield _measure("ernie serve", target, wanted, arguments, number)
        if file is not None:
            how: Any = {"rows": arguments.rows, "context": arguments.context}
            with under_load.llama(arguments.llama_server, file, home / "llama.log", **how) as (target, _):
                yield _measure("llama.cpp", target, wanted, arguments, number)


def compared(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Ours over llama.cpp's, of the medians over all rounds; nothing where there is only one of them."""
    told: dict[str, Any] = {"what": "ours / llama.cpp"}
    for name in (
        "new_tokens_per_s",
        "ttft_ms_p95",
        "one_token_ms_p50",
        "one_token_ms_p95",
        "tpot_ms_p50",
        "e2e_ms_p95",
    ):
        medians = [
            median(values)
            for what in ("ernie serve", "llama.cpp")
            if (values := [row[name] for row in rows if row["what"] == what and name in row])
        ]
        if len(medians) == 2:
            told[name] = round(medians[0] / medians[1], 3)
    return [told] if len(told) > 1 else []


def _measure(
    what: str, target: load.Target, wanted: load.Load, arguments: argparse.Namespace, number: int
) -> dict[str, Any]:
    one = load.Lengths("constant", (8,))
    load.run(target, load.Load(2, one, one, clients=1, vocabulary=wanted.vocabulary, seed=99))
    found, seconds = load.run(target, wanted)
    told = load.summary(found, seconds, ttft=arguments.ttft, tpot=arguments.tpot)
    return {"what": what, "round": number + 1, **told}


def _load(arguments: argparse.Namespace) -> load.Load:
    return load.Load(
        arguments.requests, load.Lengths.parse(arguments.prompt), load.Lengths.parse(arguments.new), arguments.rate,
        arguments.clients, arguments.vocabulary, arguments.shared, arguments.seed, arguments.probes,
    )  # fmt: skip


def _bench(arguments: argparse.Namespace, home: Path) -> Bench:
    return Bench(home, SIZES[arguments.size], (arguments.form,), 0, 0, 0, (), 0)


def _model(arguments: argparse.Namespace, home: Path) -> Path:
    """The directory that is served, made if it is not there."""
    found: Path = arguments.model or _bench(arguments, home).packed(arguments.form)
    return found.resolve()


def _gguf(arguments: argparse.Namespace, home: Path) -> Path:
    """The same weights with as many bits, for llama.cpp."""
    form = GGUF[arguments.form]
    file = home / f"{form}.gguf"
    if not file.exists():
        bench = _bench(arguments, home)
        bench.good("export", bench.source(), "--to", "gguf", "--dtype", form, "--out", file)
    return file if file.is_file() else next(file.glob("*.gguf"))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    where = parser.add_argument_group("server")
    where.add_argument("--url", help="address that ends with /v1, of a server that runs")
    where.add_argument("--name", default="bench", help="name of the model at --url")
    where.add_argument("--key", default="", help="API key of --url")
    where.add_argument("--model", type=Path, help="model directory to serve")
    where.add_argument("--size", choices=SIZES, default="0.3b", help="or random weights of this size")
    where.add_argument("--form", choices=GGUF, default="wint8", help="and in this form")
    where.add_argument("--keep", type=Path, help="directory for models and logs; without it they go at the end")
    where.add_argument("--llama-server", type=Path, metavar="PROGRAM", help="llama.cpp's server, to compare with")
    where.add_argument("--rows", type=int, default=8, help="requests that are decoded together; slots of llama.cpp")
    where.add_argument("--context", type=int, default=1024, help="tokens of each slot of llama.cpp")
    where.add_argument("--rounds", type=int, default=1, help="turns of the servers")
    what = parser.add_argument_group("load")
    what.add_argument("--requests", type=int, default=64)
    what.add_argument("--rate", type=float, default=0.0, help="arrivals per second; 0: a closed loop")
    what.add_argument("--clients", type=int, default=8, help="of a closed loop")
    what.add_argument("--prompt", default="uniform:64:256", help="tokens of prompts")
    what.add_argument("--new", default="uniform:32:96", help="tokens of answers")
    what.add_argument("--vocabulary", type=int, default=290, help="ids of prompts are below it")
    what.add_argument("--shared", type=int, default=0, help="tokens that all prompts begin with")
    what.add_argument("--seed", type=int, default=0)
    what.add_argument(
        "--probes", type=int, default=0, help="every so many-th request is for one token, timed to its end"
    )
    what.add_argument("--ttft", type=float, default=1.0, help="seconds to the first token, for goodput")
    what.add_argument("--tpot", type=float, default=0.1, help="seconds per further token, for goodput")
    what.add_argument("--soak", type=float, default=0.0, metavar="MINUTES", help="instead: look for leaks for so long")
    what.add_argument(
        "--think", type=float, default=0.0, help="mean seconds of a client of the soak between two requests"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows")
    parser.add_argument("settings", nargs="*", help="KEY=VALUE of ernie serve")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
