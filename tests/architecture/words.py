"""Words that are not ours to use: what each retired word looks like in a name and in a text, and where sources have one.

docs/reference/glossary.md has the words that replace them. A word with a second, standard meaning (row, shard of a key,
answer to a question) is matched in its retired use only: by phrase, or in the folders where it had that use.
"""

import ast
import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
#: what may speak of retired words: history, decisions, tables of aliases, and this test
EXEMPT = re.compile(
    r"^(CHANGELOG\.md|docs/adr/|plugins/libraries/catalog/erniecore_catalog/retired\.py|tests/architecture/(test_)?words|tests/fixtures/|tests/config/test_config_retired"
    # pages of docstrings, which are checked where they are written
    r"|docs/reference/api/)"
)


@dataclass(frozen=True)
class Rule:
    """A retired word.

    Attributes:
        word: what reports call it.
        say: the word of the field.
        name: regular expression for identifiers, which are compared as words: ``AskedTeacher`` is ``asked teacher``; one with
            capital letters is compared with the identifier itself. Empty: names may have it.
        text: regular expression for docstrings, comments, messages and pages. Empty: texts may have it.
        where: regular expression for the paths that the rule is about.
    """

    word: str
    say: str
    name: str = ""
    text: str = ""
    where: str = ""


def _both(word, say, pattern="", where=""):
    pattern = pattern or word
    return Rule(word, say, rf"\b({pattern})\b", rf"\b({pattern.replace(' ', '[ _-]')})\b", where)


def _name(word, say, pattern="", where=""):
    return Rule(word, say, rf"\b({pattern or word})\b", "", where)


def _class(word, say, where=""):
    return Rule(word, say, rf"^_?{word}$", "", where)


MODELS = r"^(plugins/(models|libraries/ops)|erniecore/engine/models)/"
QUANTIZERS = r"^plugins/(quantizers/(?!ccq)|commands/quantize|libraries/ops)"
CLI = r"^(erniecore/(cli|config)|plugins/commands)/"
PARALLEL = r"^(plugins/parallel|erniecore/(checkpoint|engine))/"
GENERATION = r"^(plugins/(commands/chat|libraries/generation)|erniecore/(api|types)|benchmarks/decoding)"
METHODS = r"^plugins/(methods|libraries/generation|commands/(chat|eval))/"

RULES = (
    # data
    _both("learned tokens", "loss tokens", "learned tokens?"),
    _name("held", "eval split, local shard", "held|held out"),
    _class("Feed", "DataLoader"),
    _class("DataPlan", "BatchSampler"),
    _both("ledger", "row statistics", "ledgers?"),
    _name("account", "row statistics", "^accounts?$"),
    _both(
        "picture",
        "image, media",
        "pictures?",
        r"^(plugins/(models/ernie45_vl|formats)|docs/how-to/(vision|data-formats))",
    ),
    _name("marks", "sentinels", "marks", r"^(erniecore|plugins)/(?!.*/tests/)"),
    _name("blank", "whitespace", "blanks?", r"^(erniecore|plugins)/(?!.*/tests/)"),
    Rule("words", "arguments, overrides", r"^words$", r"words of (`|``|a command|the command|ernie)", CLI),
    # model and generation
    _name("stream", "hidden states", "streams?", MODELS),
    _both("look ahead", "multi-token prediction", "look ahead"),
    _name("ahead", "multi-token prediction", "ahead", MODELS),
    _name("guess", "draft", "guess(es|er|ers|ed|ing)?", GENERATION),
    _both("follow up", "n-gram lookup", "follow ups?", GENERATION),
    Rule("answer", "completion", r"\b(answers?)\b", r"\b(?<!reference )(?<!final )(?<!`)answers?\b", METHODS),
    _name("attempt", "completion, rollout", "attempts?|tried", METHODS),
    _both("scorer", "reward function", "scorers?"),
    _name("idle", "frozen", "idle", MODELS),
    Rule("beside", "extra trainable", text=r"\b(trained|training|trains?)[_ ]beside\b"),
    _name("beside", "extra trainable", where=r"^(erniecore/engine|plugins/(models|adapters))"),
    _name("asked teacher", "online teacher"),
    _name("kept teacher", "cached teacher"),
    _class("Rated", "unpaired preference"),
    _name("sees", "attends to"),
    _class("Seeing", "multimodal model"),
    # training
    _both("made again", "recomputed"),
    Rule("for a moment", "transient, workspace", r"\bfor a moment\b", r"\bfor a moment\b"),
    _name("working", "workspace", "working"),
    # quarantine.json is a file of an earlier version
    _both("quarantine", "skipped steps", r"quarantined?(?!\.json)"),
    Rule("pulse", "hang watchdog", r"\b(pulse|heartbeats? of pulse|beats?)\b", r"\b(pulse|gets? ahead)\b"),
    _class("Prepared", "RunContext"),
    _class("Loaded", "settings"),
    Rule("bag", "RunContext", r"\bbag\b", r"\bbags?\b"),
    _both("circumstances", "runtime fingerprint", "circumstances?"),
    Rule("way on", "resume hint", r"\bway on\b", r"\bthe way on\b"),
    _both("remark", "warning, note", "remarks?"),
    _name("notice", "warning, note", "notices?", r"^(erniecore|plugins)/"),
    _both("in vain", "failed restarts"),
    _name("aloud", "with a warning"),
    _class("Compared", "reference"),
    _class("Board", "metric accumulator"),
    _name("stand in", "placeholder"),
    # experts and processes
    _name("journey", "dispatch plan"),
    _name("visited", "dispatch, combine", where=MODELS),
    _class("Ranks", "process group"),
    _name("exchange", "all_gather_object"),
    _name("alike", "replication factor"),
    _name("piece", "shard", "pieces?", PARALLEL),
    _name("shares", "write plan, shard", "shares", PARALLEL),
    _both("made whole", "full tensor"),
    _name("bring", "gather", "bring|brings|brought", PARALLEL),
    _name("starter", "launcher agent", "starters?"),
    Rule("meeting", "rendezvous, connection, node", "^_?(Meeting|Line|Site|Door)$", where=PARALLEL),
    _both("roll call", "monitored barrier", "roll ?calls?"),
    _name("deal", "assign, partition", "deal|deals|dealt|dealing"),
    _both("most alive", "in-flight micro-batches"),
    _name("under way", "in-flight micro-batches"),
    _name("lay out", "build stage"),
    _name("part", "pipeline stage", "parts?", r"^plugins/parallel/"),
    _name("share rows", "context parallelism"),
    _name("spread experts", "shard experts"),
    # low bit
    _name("codes", "quantized values", "codes", QUANTIZERS),
    _both("packed numbers", "dequantize"),
    _name("product", "matmul", "products?", QUANTIZERS),
    _name("form", "scheme, quant dtype", "forms?", QUANTIZERS),
    _name("watch", "observer", "watch|watching|watched|seen", QUANTIZERS),
    Rule("what came", "calibration statistics", text=r"\b(what came|everything that came)\b"),
    _name("untouched", "without hooks"),
    # planning
    _both("outlook", "estimate, forecast", "outlooks?"),
    _both("dearest", "most expensive"),
    _both("roomiest", "lowest-memory"),
    _name("crowd", "contention factor"),
    _name("keeps", "saved activations", "answers|keeps", r"^plugins/commands/planner"),
    # --card and the key `cards:` are retired spellings that still work
    Rule("card", "accelerator, GPU", r"\bcards?\b", r"(?<!model )(?<!host )(?<!--)\bcards?\b(?!:)"),
    # American spelling
    Rule(
        "spelling",
        "American spelling",
        *(
            # settings_customise_sources is a method of pydantic-settings
            r"(?i)\b(?<!settings )(?!settings_customise)\w*("
            r"(quanti|normali|initiali|optimi|memori|recogni|seriali|tokeni|materiali|parallieli|paralleli|organi|"
            r"generali|regulari|utili|minimi|maximi|summari|reali|speciali|customi|synchroni|vectori|finali|emphasi|"
            r"visuali|randomi|categori|factori|penali|locali|canonicali|standardi|discreti|ser?iali)s(e|es|ed|er|ers|ing|ation|ations)"
            r"|colou?r(?<=our)\w*|behaviour\w*|favour\w*|neighbour\w*|honour\w*|centred?|centres|analys(e|ed|ing)|catalogue|"
            r"artefacts?|modell(ed|ing)|labell(ed|ing)|distils?|licence|defence|programme|judgement|metres?)\b",
        )
        * 2,
    ),
)
#: the finding for public docstrings that are too short to say something
SHORT = "short docstring"
ENOUGH = 4


def words_of(name):
    """``AskedTeacher``, ``asked_teacher`` -> ``asked teacher``."""
    split = re.sub(r"([a-z0-9])([A-Z])|([A-Z]+)([A-Z][a-z])", r"\1\3_\2\4", name)
    return " ".join(split.lower().replace("_", " ").split())


def files():
    """Every source and page that the rules are about, by its path from the root."""
    tops = ("erniecore", "plugins", "third_party_kernels", "examples", "benchmarks", "docs", "tests")
    found = [
        *ROOT.glob("*.md"),
        *(p for top in tops for ending in ("py", "md") for p in (ROOT / top).rglob(f"*.{ending}")),
    ]
    paths = {p.relative_to(ROOT).as_posix(): p for p in found if not any(".venv" in part for part in p.parts)}
    return {name: path for name, path in sorted(paths.items()) if not EXEMPT.match(name)}


def names_of(nodes):
    """The names that a module defines: functions, classes, parameters, variables, attributes."""
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name, node.lineno
        elif isinstance(node, ast.arg):
            yield node.arg, node.lineno
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id, node.lineno
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr, node.lineno


#: a string is matched so that no comment begins in it
STRING_OR_COMMENT = re.compile(
    r"""(\"{3}|'{3})(?:\\.|(?!\1).)*\1|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|#[^\n]*""", re.DOTALL
)


def texts_of(source, nodes):
    """Docstrings, strings with a space in them (messages), and comments."""
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value.strip():
            yield node.value, node.lineno
    for match in STRING_OR_COMMENT.finditer(source) if "#" in source else ():
        if match[0][0] == "#":
            yield match[0], source.count("\n", 0, match.start()) + 1


def short_docstrings(nodes):
    """Public modules, classes and functions whose docstring has fewer words than a sentence needs."""
    for node in nodes:
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) or getattr(node, "name", "")[:1] == "_":
            continue
        docstring = ast.get_docstring(node)
        if docstring is not None and len(docstring.split()) < ENOUGH:
            yield docstring, getattr(node, "lineno", 1)


def find(name, source):
    """(word, line, what was found) for each retired word in the file ``name`` with the text ``source``."""
    if name.endswith(".md"):
        named, texts = [], [(source, 1)]
    else:
        nodes = list(ast.walk(ast.parse(source)))
        named, texts = list(names_of(nodes)), list(texts_of(source, nodes))
        if "tests" not in Path(name).parts:
            yield from ((SHORT, line, text) for text, line in short_docstrings(nodes))
    named += [(part, 1) for part in Path(name).with_suffix("").parts]
    # the name of a test is a sentence
    texts += [(words_of(identifier), line) for identifier, line in named if identifier.startswith("test_")]
    named = {
        identifier: (line, words_of(identifier)) for identifier, line in named if not identifier.startswith("test_")
    }
    every_name, every_text = "\n".join(spoken for _, spoken in named.values()), "\n".join(text for text, _ in texts)
    for rule in RULES:
        if not re.search(rule.where, name):
            continue
        raw = rule.name.startswith("^_?")
        if rule.name and (raw or re.search(rule.name, every_name, re.MULTILINE)):
            for identifier, (line, spoken) in named.items():
                if re.search(rule.name, identifier if raw else spoken):
                    yield rule.word, line, identifier
        if rule.text and re.search(rule.text, every_text, re.IGNORECASE):
            for text, line in texts:
                for found in re.finditer(rule.text, text, re.IGNORECASE):
                    yield rule.word, line + text[: found.start()].count("\n"), found.group()


def findings():
    """{(path, word): [``line: what``]} of the whole repository."""
    found = {}
    for name, path in files().items():
        for word, line, what in find(name, path.read_text(encoding="utf-8")):
            found.setdefault((name, word), []).append(f"{line}: {what}")
    return found
