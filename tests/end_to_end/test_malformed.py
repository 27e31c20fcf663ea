"""Hundreds of malformed decks and command lines: each is exit 2 with a place and what to do, and
none brings the program down."""

import pathlib
import re

import pytest

from conftest import BINARY, DECK, ROOT, Program

LINES = DECK.strip("\n").split("\n")
# Never a value of any key: not its type, or below every range.
NEVER = {"date": "1979-05-27", "table": "{ a = 1 }", "below": "-7", "nested": "[[[1]]]"}


def keys():
    """(section, key) of all, from the reference that the schema generates."""
    found, section = [], None
    for line in (ROOT / "input_decks/README.md").read_text().split("\n"):
        if header := re.match(r"## \[(\w+)\]", line):
            section = header.group(1)
        elif section and (row := re.match(r"\| `(\w+)` \|", line)):
            found.append((section, row.group(1)))
    return found


def put(section, line):
    """The good deck with this line in a section, in its key's place, and the line's number."""
    key = line.split("=")[0].strip()
    lines, here, at = [], None, None
    for old in LINES:
        if old.startswith("["):
            here = old[1:-1]
        elif here == section and old.split("=")[0].strip() == key:
            continue
        lines.append(old)
        if old == f"[{section}]":
            lines.append(line)
            at = len(lines)
    if at is None:
        lines += [f"[{section}]", line]
        at = len(lines)
    return "\n".join(lines) + "\n", at


def wrong_values():
    """Of every key."""
    for number, (section, key) in enumerate(keys()):
        for kind in ("below", list(NEVER)[number % 2], "nested"):
            text, line = put(section, f"{key} = {NEVER[kind]}")
            yield f"{section}.{key}-{kind}", text, line, [f"{section}.{key} = ", ": must be "]


def unknown_names():
    for number, (section, key) in enumerate(keys()):
        if number % 3 == 0:
            text, line = put(section, f"{key}x = 1")
            yield f"{section}.{key}x", text, line, [f"{section}.{key}x", "did you mean"]
    for section in sorted({section for section, _ in keys()}):
        text = "\n".join([*LINES, f"[{section}s]", "a = 1"])
        yield f"[{section}s]", text, len(LINES) + 1, [f"[{section}s]", f"did you mean [{section}]"]


def twice():
    for at, old in enumerate(LINES):
        if "=" in old:
            text = "\n".join([*LINES[: at + 1], old, *LINES[at + 1 :]])
            yield f"twice-{old}", text, at + 2, ["twice"]
    yield "section-twice", "\n".join([*LINES, "[run]", "seed = 3"]), len(LINES) + 1, ["run"]


# Not TOML. What stands on the line `threads = 1` of a good deck.
BROKEN = [
    "threads",
    "threads =",
    "threads = = 1",
    "threads 1",
    "= 1",
    "threads = 1 2",
    "threads = 1,",
    "threads = [1",
    "threads = [1 2]",
    "threads = [,]",
    "threads = 1]",
    "threads = {",
    "threads = { a = 1",
    "threads = { a 1 }",
    "threads = { a = 1, a = 2 }",
    'threads = "auto',
    "threads = 'auto",
    'threads = """auto',
    'threads = "a\\qb"',
    'threads = "\\u12"',
    "threads = 01",
    "threads = 1__0",
    "threads = _1",
    "threads = 1_",
    "threads = 0x",
    "threads = 0b2",
    "threads = 0o8",
    "threads = 1.",
    "threads = .5",
    "threads = 1e",
    "threads = +-1",
    "threads = truee",
    "threads = yes",
    "threads = nil",
    "threads = 99999999999999999999999",
    "threads = 2020-13-45",
    "threads = 25:00:00",
    "threads.a = 1\nthreads = 1",
    "[run",
    "[]",
    "[run]]",
    "[[run]]",
    "[run.]",
    "[.run]",
    "[&",
    "]",
    "}",
    "\\",
    '"threads = 1',
    "thr\x00eads = 1",
    "threads = 1 \x01",
    "thr\u00e9ads = 1",
    "threads = \ufffd",
    "\t=\t",
    "threads = [" + "[" * 300,
    "threads = " + "9" * 5000,
]


def not_toml():
    at = LINES.index("threads = 1")
    for number, line in enumerate(BROKEN):
        yield f"broken-{number}", "\n".join([*LINES[:at], line, *LINES[at + 1 :]]), None, []


CONTRADICTIONS = [
    ("batch", "global = 15", ["batch.global"]),
    ("batch", "micro = 64", ["batch.micro"]),
    ("batch", "micro = 3", ["batch.micro"]),
    ("model", "heads = 5", ["model.heads", "model.dim"]),
    ("model", "patch = 5", ["model.patch"]),
    ("model", "patch = [4, 5]", ["model.patch"]),
    ("model", "image = [12, 13]", ["model.patch"]),
    ("model", "dim = 33", ["model.heads"]),
    ("model", "depth = 1", ["model.depth"]),
    ("parallel", "pipeline = 64", ["parallel.pipeline"]),
    ("parallel", "tensor = 3", ["parallel.tensor"]),
    ("parallel", "tensor = 8", ["parallel.tensor"]),
    ("parallel", "data = 3", ["parallel.data"]),
    ("parallel", "data = 16", ["parallel.data"]),
    ("parallel", "chunks = 2", ["parallel.chunks"]),
    ("parallel", 'schedule = "file"', ["parallel.schedule_file"]),
    ("parallel", 'schedule = "1f2b"', ["parallel.schedule", "1f1b"]),
    ("parallel", 'schedule_file = "x.txt"', ["parallel.schedule_file"]),
    ("parallel", 'transport = "nccl"', ["parallel.transport"]),
    ("precision", 'loss_scale = "dynamic"', ["precision.loss_scale"]),
    ("precision", 'type = "fp16"', ["precision.type", "f16"]),
    ("optimizer", "min_lr = 1", ["optimizer.min_lr"]),
    ("optimizer", "betas = [0.9]", ["optimizer.betas"]),
    ("optimizer", "betas = [0.9, 1.0]", ["optimizer.betas"]),
    ("optimizer", "lr = nan", ["optimizer.lr"]),
    ("optimizer", "lr = inf", ["optimizer.lr"]),
    ("optimizer", "zero = 2", ["optimizer.zero"]),
    ("memory", 'optimizer = "nvme"', ["memory.nvme_dir"]),
    ("memory", 'weights = "host"', ["memory.optimizer"]),
    ("memory", 'device_limit = "32 XB"', ["memory.device_limit"]),
    ("run", 'walltime = "soon"', ["run.walltime"]),
    ("run", 'name = "a/b"', ["run.name"]),
    ("run", 'name = ".."', ["run.name"]),
    ("run", "epochs = 2", ["run.epochs", "run.steps"]),
    ("run", "steps = 0", ["run.steps"]),
    ("run", 'on_divergence = "rollback"', ["run.on_divergence", "rewind"]),
    ("data", 'format = "idx"', ["data.train"]),
    ("data", "mean = [0.5, 0.5]", ["data.mean"]),
    ("data", "std = []", ["data.std"]),
    ("trace", 'steps = "5:2"', ["trace.steps"]),
]


def contradictions():
    for section, line, words in CONTRADICTIONS:
        text, _ = put(section, line)
        yield f"{section}.{line}", text, None, words


def missing():
    for at, old in enumerate(LINES):
        key = old.split("=")[0].strip()
        if key in ("image", "patch", "dim", "depth", "classes", "global", "format", "steps"):
            text = "\n".join(LINES[:at] + LINES[at + 1 :])
            yield f"without-{key}", text, None, [f".{key}: required"]
    yield "empty", "", None, ["model.dim: required"]


DECKS = [
    *wrong_values(),
    *unknown_names(),
    *twice(),
    *not_toml(),
    *contradictions(),
    *missing(),
]

# Of a good deck; {deck} is its file. With the words that must be said.
COMMAND_LINES = [
    ([], ["subcommand"]),
    (["fly"], ["fly"]),
    (["fly", "{deck}"], ["fly"]),
    (["--fly"], ["--fly"]),
    (["plan"], ["deck"]),
    (["plan", "nowhere.toml"], ["nowhere.toml"]),
    (["plan", "."], ["."]),
    (["plan", "/dev/null"], ["/dev/null", "required"]),
    (["plan", "{deck}", "{deck}"], ["deck.toml"]),
    (["plan", "{deck}", "--fly"], ["--fly"]),
    (["plan", "{deck}", "--set"], ["--set"]),
    (["plan", "{deck}", "--hardware", "nowhere.toml"], ["nowhere.toml"]),
    (["plan", "{deck}", "--hardware", "{deck}"], ["deck.toml"]),
    (["ranks"], ["deck"]),
    (["ranks", "nowhere.toml"], ["nowhere.toml"]),
    (["status", "nowhere.toml"], ["nowhere.toml"]),
    (["submit", "{deck}", "--queue", "cron"], ["cron", "slurm"]),
    (["submit", "{deck}", "--queue", "slurm", "--time", "soon"], ["soon"]),
    (["submit", "{deck}", "--gpus-per-node", "-1"], ["--gpus-per-node"]),
    (["submit", "{deck}", "--gpus-per-node", "many"], ["--gpus-per-node", "many"]),
    (["submit", "{deck}", "--cpus-per-task", "0"], ["--cpus-per-task"]),
    (["submit", "{deck}", "--tasks-per-node", "1.5"], ["--tasks-per-node"]),
    (["verify"], ["folder"]),
    (["export"], ["folder"]),
    (["export", "runs"], ["file"]),
    (["export", "runs", "x", "--type", "f8"], ["--type", "f8"]),
    (["import"], ["file"]),
    (["import", "x.safetensors"], ["deck"]),
    (["diff", "runs"], ["B"]),
    (["report"], ["folder"]),
    (["report", "nowhere", "--fly"], ["--fly"]),
    (["train"], ["deck"]),
    (["train", "nowhere.toml"], ["nowhere.toml"]),
    (["train", "{deck}", "--fresher"], ["--fresher"]),
    (["eval"], ["deck"]),
    (["bench", "--fly"], ["--fly"]),
    (["doctor", "--fly"], ["--fly"]),
] + [
    (["plan", "{deck}", "--set", text], ["--set", *words])
    for text, words in [
        ("", []),
        ("=", []),
        ("a", ["section.key=value"]),
        ("run", []),
        ("run=1", []),
        ("run.steps", []),
        ("run.steps=", ["run.steps"]),
        (".steps=1", []),
        ("run.=1", []),
        ("run.stps=1", ["run.steps"]),
        ("rnu.steps=1", ["run"]),
        ("run.steps=zero", ["run.steps"]),
        ("run.steps=-1", ["run.steps"]),
        ("run.steps=1.5", ["run.steps"]),
        ("run.steps=99999999999999999999", ["run.steps"]),
        ("run.steps=[", ["run.steps"]),
        ("run.steps.more=1", []),
        ("model.dim=[32]", ["model.dim"]),
        ("optimizer.betas=[0.9", ["optimizer.betas"]),
        ("parallel.tensor=0", ["parallel.tensor"]),
        ("run.name=\x01", ["run.name"]),
    ]
]


def refuse(program, arguments, words):
    done = program.run(*arguments, timeout=60)
    said = done.stdout + done.stderr
    assert done.returncode == 2, (done.returncode, said)
    for word in words:
        assert word in said, f"{word!r} is not in:\n{said}"
    for fault in ("terminate called", "Assertion", "failed check", "VP_CHECK"):
        assert fault not in said, said
    return done.stderr


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    return Program(tmp_path_factory.mktemp("decks"))


@pytest.mark.parametrize("text, line, words", [pytest.param(*c[1:], id=c[0]) for c in DECKS])
def test_a_malformed_deck_is_refused_with_its_place(shared, text, line, words):
    path = shared.folder / "deck.toml"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    said = refuse(shared, ["plan", path], words)
    place = rf"deck\.toml:{line or r'[1-9][0-9]*'}:[1-9][0-9]*: "
    assert re.search(place, said), f"no {place} in:\n{said}"


@pytest.mark.parametrize("arguments, words", COMMAND_LINES)
def test_a_malformed_command_line_is_refused(shared, arguments, words):
    deck = shared.deck()
    refuse(shared, [deck if word == "{deck}" else word for word in arguments], words)


def test_there_are_hundreds_and_none_twice():
    texts = {text for _, text, _, _ in DECKS}
    lines = {tuple(arguments) for arguments, _ in COMMAND_LINES}
    assert len(texts) == len(DECKS) and len(lines) == len(COMMAND_LINES)
    assert len(texts) + len(lines) >= 200


def test_ranks_say_it_once(program):
    text, line = put("model", "dim = -7")
    done = program.run("train", program.deck(text), ranks=4, timeout=120)
    assert done.returncode == 2 and done.stderr.count("model.dim = -7") == 1, done.stderr
    assert f"deck.toml:{line}:" in done.stderr
    assert pathlib.Path(BINARY).exists() and not (program.folder / "runs").exists()
