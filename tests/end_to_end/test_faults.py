"""Faults put into a running job from outside: memory that changes, a clock that jumps, a slow rank.
Each is found, named, and handled as the deck says. (A full disk: test_saving.py. Unreadable data:
test_bad_input.py and below. Killed and stopped ranks: test_failures.py and test_hang.py.)"""

import math
import os
import pathlib
import re
import signal
import socket
import struct
import threading
import time

import h5py
import pytest

from conftest import DECK, kill_everything, losses, metrics, rank_of, rank_processes, wait_for_step

# Weights that stay as they are, so that they can be found in memory by their bytes.
STILL = DECK.replace("lr = 1e-3", "lr = 0.0").replace("every_steps = 4", "every_steps = 10")
TENSOR = "blocks.3.mlp.fc1.weight"
OWNER = 3  # has its master weights, too: a copy alone is renewed by the next update
HOST = socket.gethostname()


def overwrite(process, old, new):
    """Replaces bytes wherever they stand in the memory of a process; how often they did."""
    count = 0
    with open(f"/proc/{process}/mem", "r+b", buffering=0) as memory:
        for line in pathlib.Path(f"/proc/{process}/maps").read_text().splitlines():
            fields = line.split()
            if not fields[1].startswith("rw") or (len(fields) > 5 and fields[5] == "[vvar]"):
                continue
            begin, end = (int(text, 16) for text in fields[0].split("-"))
            try:
                memory.seek(begin)
                held = memory.read(end - begin)
            except (OSError, ValueError):
                continue
            at = held.find(old)
            while at >= 0:
                memory.seek(begin + at)
                memory.write(new)
                count += 1
                at = held.find(old, at + 1)
    return count


def weights_in_memory(run, name, values=16):
    """Some bytes out of the middle of a tensor, by a checkpoint."""
    with h5py.File(run / "checkpoints/latest/index.h5") as file:
        flat = file["model"][name][:].ravel()
    middle = flat[len(flat) // 2 :][:values].astype("<f4").tobytes()
    assert len(set(middle)) > 8
    return middle


class Job:
    """A run on its way past its first checkpoint."""

    def __init__(self, program, deck, ranks, *overrides):
        changes = [part for text in overrides for part in ("--set", text)]
        self.run = program.folder / "runs/small"
        self.process = program.start("train", program.deck(deck), *changes, ranks=ranks)
        assert wait_for_step(self.run, 25, self.process), self.process.communicate()[0]
        while not (self.run / "checkpoints/latest").exists():
            time.sleep(0.01)
        self.ranks = {rank_of(each): each for each in rank_processes(self.process.pid)}

    def change_memory(self, rank, name, change):
        victim = self.ranks[rank]
        os.kill(victim, signal.SIGSTOP)  # the others wait for it, so the run does not end before
        old = weights_in_memory(self.run, name)
        try:
            found = overwrite(victim, old, change(old))
        except PermissionError:
            pytest.skip("the memory of another process may not be written here")
        finally:
            os.kill(victim, signal.SIGCONT)
        assert found > 0, "the weights are not where they should be"

    def end(self):
        try:
            return self.process.communicate(timeout=200)[0]
        finally:
            kill_everything(self.process)


def with_nan(old):
    return old[:4] + struct.pack("<f", math.nan) + old[8:]


def with_flipped_bit(old):
    return old[:5] + bytes([old[5] ^ 0x10]) + old[6:]


def test_a_nan_in_one_layer_is_named_with_the_rank_that_holds_it(program):
    job = Job(program, STILL, 4, "run.steps=100000", "run.skip_limit=5")
    job.change_memory(OWNER, TENSOR, with_nan)
    out = job.end()
    assert job.process.returncode == 5, out
    said = [line for line in out.splitlines() if "the run has diverged" in line][-1]
    assert "5 steps in a row" in said and f"weights of {TENSOR} on " in said, out
    assert f"rank 3 (pp1 dp1 tp0) on {HOST}" in said and "pp0" not in said, out


def test_a_nan_is_left_behind_by_going_back(program):
    rewind = ["run.on_divergence=rewind", "run.skip_limit=5"]
    job = Job(program, STILL, 4, "run.steps=150", *rewind)
    job.change_memory(OWNER, TENSOR, with_nan)
    out = job.end()
    assert job.process.returncode == 0, out
    assert f"not finite are weights of {TENSOR} on " in out and "rewind 1 of 3" in out, out
    assert sorted(losses(job.run)) == list(range(1, 151))
    assert not any(line["skipped"] for line in metrics(job.run))
    [back] = metrics(job.run, "rewind")
    assert back["rewinds"] == 1 and back["step"] < back["from_step"]
    assert "good." in program.good("verify", job.run)


def test_a_flipped_bit_in_a_weight_of_one_data_rank_names_that_rank(program):
    three = ["parallel.pipeline=1", "parallel.data=3", "batch.global=18", "optimizer.zero=0"]
    job = Job(program, STILL, 3, "run.steps=100000", "run.check_every_steps=5", *three)
    job.change_memory(1, TENSOR, with_flipped_bit)
    out = job.end()
    assert job.process.returncode == 5, out
    place = re.escape(f"rank 1 (pp0 dp1 tp0) on {HOST}")
    assert "silent corruption, found after step " in out, out
    assert re.search(rf"weights of chunk 0.*: {place} differ from the other 2 copies", out), out
    last = [line for line in out.splitlines() if line.strip()][-1]
    assert "leave its host out" in last, out


@pytest.mark.parametrize("seconds", [-86400, 86400])
def test_a_clock_that_jumps_changes_nothing(program, seconds):
    jump = program.folder / "jump"
    program.environment |= {
        "LD_PRELOAD": os.environ["VOLTAPILE_CLOCK_AHEAD_LIBRARY"],
        "VOLTAPILE_CLOCK_AHEAD": str(seconds),
        "VOLTAPILE_CLOCK_WHEN": str(jump),
    }
    job = Job(program, DECK, 4, "run.steps=120", "run.hang_timeout=20s", "run.walltime=1h")
    jump.touch()
    out = job.end()
    assert job.process.returncode == 0, out
    assert sorted(losses(job.run)) == list(range(1, 121))
    assert all(0 < line["seconds"] < 3600 for line in metrics(job.run))


def test_a_slow_rank_is_named_by_the_report(program):
    size = ["model.dim=96", "model.image=24", "run.steps=40", "trace.steps=6:36"]
    changes = [part for text in size for part in ("--set", text)]
    process = program.start("train", program.deck(), *changes, ranks=4)
    run = program.folder / "runs/small"
    over = threading.Event()

    def hold_up(rank):
        # Stopped for three quarters of the time.
        while not over.is_set():
            for sign, seconds in ((signal.SIGSTOP, 0.03), (signal.SIGCONT, 0.01)):
                try:
                    os.kill(rank, sign)
                except ProcessLookupError:
                    return
                time.sleep(seconds)

    try:
        assert wait_for_step(run, 2, process)
        ranks = {rank_of(each): each for each in rank_processes(process.pid)}
        slowing = threading.Thread(target=hold_up, args=[ranks[2]])
        slowing.start()
        out = process.communicate(timeout=200)[0]
        over.set()
        slowing.join()
    finally:
        over.set()
        kill_everything(process)
    assert process.returncode == 0, out
    report = program.good("report", "runs/small")
    assert "rank 2 (pp1 dp0 tp0) is slow" in report, report
    assert re.search(rf"on {re.escape(HOST)} it takes [0-9.]+ times as long", report), report


def test_data_that_only_one_rank_cannot_read_names_that_rank(program):
    text = DECK.replace('format = "synthetic"', 'format = "idx"\ntrain = "images-idx3"').replace(
        "synthetic_train = 200\nsynthetic_test = 37\n", ""
    )
    header = struct.pack(">IIII", 0x803, 64, 12, 12)
    good, bad = program.folder / "good", program.folder / "bad"
    for folder, pictures in ((good, 64), (bad, 63)):
        folder.mkdir()
        (folder / "images-idx3").write_bytes(header + bytes(pictures * 144))
        (folder / "labels-idx1").write_bytes(struct.pack(">II", 0x801, 64) + bytes(64))
    # The deck names files beside it; each rank starts with a copy of its own node's, so to say.
    wrapper = program.folder / "rank.sh"
    wrapper.write_text(
        f"""#!/bin/sh
folder={good}
[ "$OMPI_COMM_WORLD_RANK" = 1 ] && folder={bad}
mount --bind $folder {program.folder}/data || exit 99
exec "$@"
"""
    )
    wrapper.chmod(0o755)
    (program.folder / "data").mkdir()
    deck = program.deck(text.replace('"images-idx3"', '"data/images-idx3"'))
    command = program.command(4, "train", deck)
    at = command.index("4") + 1
    program.command = lambda *_: [*command[:at], "unshare", "--mount", str(wrapper), *command[at:]]
    done = program.run()
    if done.returncode == 99 or "unshare" in done.stderr:
        pytest.skip("no file system may be mounted here: " + done.stderr.strip())
    assert done.returncode == 4, done.stderr
    assert "data/images-idx3" in done.stderr and "cut short" in done.stderr, done.stderr
    assert re.search(r"rank 1\b", done.stderr), done.stderr
