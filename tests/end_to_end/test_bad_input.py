"""Bad input: one error that names the key or file, the right exit code, nothing left behind."""

import gzip
import struct

import pytest

from conftest import DECK

IDX = DECK.replace(
    'format = "synthetic"',
    'format = "idx"\ntrain = "train-images-idx3-ubyte.gz"\n' 'test = "train-images-idx3-ubyte.gz"',
).replace("synthetic_train = 200\nsynthetic_test = 37\n", "")


def write_idx(folder, pictures=64, labels=64, magic=0x803, rows=12, columns=12, label=3, cut=0):
    data = struct.pack(">IIII", magic, pictures, rows, columns) + bytes(pictures * rows * columns)
    packed = gzip.compress(data)
    (folder / "train-images-idx3-ubyte.gz").write_bytes(packed[: len(packed) - cut])
    (folder / "train-labels-idx1-ubyte.gz").write_bytes(
        gzip.compress(struct.pack(">II", 0x801, labels) + bytes([label]) * labels)
    )


def refuse(program, code, words, deck_text=IDX, overrides=(), ranks=4, command="train"):
    done = program.run(command, program.deck(deck_text), *overrides, ranks=ranks, timeout=120)
    text = done.stdout + done.stderr
    assert done.returncode == code, text
    for word in words:
        assert word in text, f"{word!r} is not in:\n{text}"
    assert done.stderr.count("error: ") == 1, f"not one error, once:\n{text}"
    checkpoints = program.folder / "runs" / "small" / "checkpoints"
    assert not checkpoints.exists() or not any(checkpoints.iterdir())


def test_the_good_idx_deck_trains(program):
    write_idx(program.folder)
    program.good("train", program.deck(IDX), ranks=4)


def test_missing_pictures(program):
    refuse(program, 4, ["train-images-idx3-ubyte.gz", "data.train"])


def test_a_directory_as_a_file(program):
    (program.folder / "train-images-idx3-ubyte.gz").mkdir()
    refuse(program, 4, ["train-images-idx3-ubyte.gz", "directory"])


def test_a_truncated_gzip(program):
    write_idx(program.folder, cut=9)
    refuse(program, 4, ["train-images-idx3-ubyte.gz", "truncated"])


def test_a_wrong_magic(program):
    write_idx(program.folder, magic=0x12345678)
    refuse(program, 4, ["train-images-idx3-ubyte.gz", "magic", "0x12345678"])


def test_a_label_out_of_range(program):
    write_idx(program.folder, label=10)
    refuse(program, 4, ["train-labels-idx1-ubyte.gz", "label 10", "model.classes"])


def test_pictures_of_another_size(program):
    write_idx(program.folder, rows=28, columns=28)
    refuse(program, 4, ["28", "model.image"])


def test_counts_that_differ(program):
    write_idx(program.folder, labels=63)
    refuse(program, 4, ["64", "63"])


@pytest.mark.parametrize("ranks", [1, 3, 5])
def test_a_world_of_another_size(program, ranks):
    refuse(program, 2, ["parallel.pipeline", "mpirun -n 4"], DECK, ranks=ranks)


def test_without_mpirun_the_world_has_one_rank(program):
    refuse(program, 2, ["mpirun -n 4"], DECK, ranks=0)


@pytest.mark.parametrize(
    "overrides,words",
    [
        (["batch.global=15"], ["batch.global", "15"]),
        (
            ["parallel.data=1", "parallel.tensor=2", "model.heads=1"],
            ["model.heads", "parallel.tensor"],
        ),
        (["model.heads=5"], ["model.heads", "model.dim"]),
        (["parallel.chunks=3"], ["parallel.chunks", "interleaved"]),
        (
            ["parallel.chunks=3", "parallel.schedule=interleaved"],
            ["parallel.chunks", "model.depth"],
        ),
        (["model.dmi=3"], ["model.dmi", "model.dim"]),
        (["parallel.schedule=1f2b"], ["parallel.schedule", "1f1b"]),
        (["run.device=cuda"], ["run.device", "without CUDA"]),
        (["memory.optimizer=nvme"], ["memory.optimizer", "memory.nvme_dir"]),
        (["memory.weights=nvme"], ["memory.weights", "memory.optimizer"]),
        (["data.format=tar", "data.train=x.tar", "data.test=y.tar"], ["data.format"]),
        (["run.steps=0"], ["run.steps"]),
    ],
)
def test_decks_that_cannot_be(program, overrides, words):
    arguments = [part for override in overrides for part in ("--set", override)]
    refuse(program, 2, words, DECK, arguments)


def test_all_errors_come_at_once_with_their_places(program):
    text = (
        DECK.replace("heads = 4", "heads = 5")
        .replace("dim = 32", "dmi = 32")
        .replace("lr = 1e-3", "lr = -1")
    )
    done = program.run("plan", program.deck(text))
    assert done.returncode == 2
    lines = text.splitlines()
    for key in ("dmi = 32", "lr = -1"):
        assert f"deck.toml:{lines.index(key) + 1}:" in done.stderr, done.stderr
    assert "model.dim" in done.stderr


def test_no_deck_and_bad_command_lines(program):
    for arguments in (["train", "nowhere.toml"], ["plan"], ["fly"], ["train", program.folder], []):
        done = program.run(*arguments)
        assert done.returncode == 2, (arguments, done.stdout, done.stderr)
        assert done.stderr.strip() or done.stdout.strip()


def test_a_word_that_an_option_does_not_know_is_answered_with_those_it_does(program):
    done = program.run("export", "a", "b", "--type", "f8")
    assert done.returncode == 2 and "f8: must be one of f16, bf16, f32" in done.stderr
    assert "ENUM" not in program.run("export", "--help").stdout
    done = program.run("submit", program.deck(), "--tasks-per-node", "0")
    assert done.returncode == 2 and "in range 1 to" in done.stderr


def test_memory_that_will_not_fit_is_exit_3(program):
    refuse(
        program, 3, ["memory.device_limit", "100"], DECK, ["--set", "memory.device_limit=100 kB"]
    )


def test_a_damaged_checkpoint_is_exit_4(program):
    deck = program.deck()
    program.good("train", deck, ranks=4)
    latest = program.folder / "runs/small/checkpoints/latest"
    shard = sorted(latest.glob("shard_*.h5"))[1]
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 0x10
    shard.write_bytes(data)
    done = program.run("verify", latest)
    assert done.returncode == 4 and shard.name in done.stderr
    shard.unlink()
    done = program.run("train", deck, "--set", "run.steps=20", ranks=4)
    assert done.returncode == 4 and shard.name in done.stderr + done.stdout
