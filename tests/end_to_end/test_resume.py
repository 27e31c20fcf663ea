"""kill -9 and go on: the same bits as the run that was never stopped; and readers never notice."""

import fcntl
import os
import random
import signal
import subprocess
import sys
import threading
import time

import h5py
import numpy as np
import pytest

from conftest import DECK, FULL, fill_disk, kill_everything, losses, rank_processes, wait_for_step

STEPS = 400
LONG = DECK.replace("steps = 12", f"steps = {STEPS}").replace("every_steps = 4", "every_steps = 25")
VARIANTS = {
    "pipeline and data": [],
    "zero": [
        "--set",
        "optimizer.zero=1",
        "--set",
        "parallel.schedule=breadth_first",
        "--set",
        "parallel.chunks=2",
        "--set",
        "model.drop_path=0.2",
    ],
    "tensor and half": [
        "--set",
        "parallel.data=1",
        "--set",
        "parallel.tensor=2",
        "--set",
        "precision.type=f16",
        "--set",
        "memory.recompute=layers",
    ],
    "away from the device": [
        "--set",
        "memory.optimizer=nvme",
        "--set",
        "memory.weights=nvme",
        "--set",
        "memory.activations=host",
        "--set",
        "memory.nvme_dir=scratch",
    ],
    "host optimizer": [
        "--set",
        "memory.optimizer=host",
        "--set",
        "precision.type=bf16",
        "--set",
        "parallel.chunks=2",
        "--set",
        "parallel.schedule=breadth_first",
    ],
    "host optimizer, much of whose state waits for the disk": [
        "--set",
        "memory.optimizer=host",
        "--set",
        "checkpoint.pool=65536",
        "--set",
        "optimizer.zero=1",
        "--set",
        "optimizer.ema=0.99",
    ],
}


def tensors(run):
    found = {}
    with h5py.File(run / "checkpoints" / "latest" / "index.h5") as file:
        file.visititems(
            lambda name, item: (
                found.update({name: item[()]})
                if isinstance(item, h5py.Dataset) and name.split("/")[0] in ("model", "optimizer")
                else None
            )
        )
    return found


# Of each variant: 20 and more in all, or 200; half of them inside a save.
KILLS = 34 if FULL else 4


def saves_under_way(run):
    """The folders of saves that have not ended; what a kill left there is one for ever."""
    try:
        return {(path.name, path.stat().st_ino) for path in (run / "checkpoints").glob("*.partial")}
    except FileNotFoundError:
        return set()


def wait_for_save(run, process):
    before = saves_under_way(run)
    while process.poll() is None:
        if saves_under_way(run) - before:
            return True
        time.sleep(0.001)
    return False


def kill_one_or_all(rng, process):
    ranks = rank_processes(process.pid)
    if rng.random() < 0.5 and ranks:
        os.kill(rng.choice(ranks), signal.SIGKILL)
        process.wait(timeout=60)  # and leaves ranks that it killed and that are not yet gone
        assert process.returncode != 0
    else:
        kill_everything(process)


def expect_same_bits(program, run, unbroken):
    assert losses(run) == losses(unbroken)
    ours, theirs = tensors(run), tensors(unbroken)
    assert ours.keys() == theirs.keys() and len(ours) > 50
    for name in theirs:
        assert np.isfinite(theirs[name]).all(), name
        np.testing.assert_array_equal(ours[name], theirs[name], err_msg=name)
    assert "good." in program.good("verify", run)


@pytest.mark.parametrize("variant", list(VARIANTS))
def test_killed_runs_resume_to_the_same_bits(program, variant):
    overrides = VARIANTS[variant]
    deck = program.deck(LONG)
    program.good("train", deck, *overrides, ranks=4)
    unbroken = program.folder / "runs/small"

    rng = random.Random(variant)
    kills, inside, name = 0, 0, None
    for attempt in range(4 * KILLS):
        if kills >= KILLS and 2 * inside >= KILLS:
            break
        name = name or f"killed{attempt}"
        killed = program.folder / "runs" / name
        process = program.start("train", deck, "--set", f"run.name={name}", *overrides, ranks=4)
        have = len(losses(killed)) if (killed / "metrics.jsonl").exists() else 0
        left = saves_under_way(killed)
        if 2 * inside <= kills:
            alive = wait_for_save(killed, process)
            time.sleep(rng.uniform(0, 0.02))
        else:
            alive = wait_for_step(killed, min(have + rng.randint(10, 80), STEPS - 1), process)
        if alive:
            kill_one_or_all(rng, process)
            kills += len(losses(killed)) < STEPS  # not one that came too late
            inside += len(saves_under_way(killed) - left) > 0
        if not alive or len(losses(killed)) == STEPS:
            program.good("train", deck, "--set", f"run.name={name}", *overrides, ranks=4)
            expect_same_bits(program, killed, unbroken)
            name = None
    assert kills >= KILLS and 2 * inside >= KILLS
    if name:
        program.good("train", deck, "--set", f"run.name={name}", *overrides, ranks=4)
        expect_same_bits(program, killed, unbroken)
    assert "good." in program.good("verify", unbroken)


def test_plain_h5py_reads_metrics_through_runs_and_kills(program):
    deck = program.deck(LONG)
    run = program.folder / "runs/small"
    poller = subprocess.Popen(
        [
            sys.executable,
            "-c",
            f"""
import h5py, os, sys
path, stop = {str(run / 'metrics.h5')!r}, {str(program.folder / 'stop')!r}
reads = 0
while not os.path.exists(stop):
    if os.path.exists(path):
        with h5py.File(path) as file:
            steps = file['train/step'][:]
            assert (steps[1:] > steps[:-1]).all() and len(file['train/loss'][:]) == len(steps)
        reads += 1
print(reads)
""",
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        for step in (30, 90):
            process = program.start("train", deck, ranks=4)
            assert wait_for_step(run, step, process)
            kill_everything(process)
        program.good("train", deck, ranks=4)
    finally:
        (program.folder / "stop").touch()
    out, error = poller.communicate(timeout=30)
    assert poller.returncode == 0, error
    assert int(out) > 10


def test_a_stop_signal_saves_and_exits_75(program):
    deck = program.deck(LONG)
    process = program.start(
        "train", deck, "--set", "run.steps=100000", "--set", "checkpoint.every_steps=0", ranks=4
    )
    run = program.folder / "runs/small"
    assert wait_for_step(run, 3, process)
    os.kill(process.pid, signal.SIGUSR1)
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 75, out
    assert "stopped early" in out
    assert "good." in program.good("verify", run)


def test_the_time_limit_saves_and_exits_75(program):
    deck = program.deck(LONG)
    overrides = ["--set", "run.steps=1000000", "--set", "run.walltime=6s"]
    done = program.run("train", deck, *overrides, ranks=4)
    assert done.returncode == 75, done.stdout + done.stderr
    run = program.folder / "runs/small"
    assert "good." in program.good("verify", run)
    before = len(losses(run))
    assert program.run("train", deck, *overrides, ranks=4).returncode == 75
    assert len(losses(run)) > before


def test_gradients_that_stay_infinite_end_the_job_and_name_the_parameter(program):
    half = ["--set", "precision.type=f16", "--set", "precision.loss_scale=16777216"]
    done = program.run("train", program.deck(LONG), *half, ranks=4)
    assert done.returncode == 5
    assert "steps in a row" in done.stderr and "optimizer.lr" in done.stderr
    assert "first in pos_embed" in done.stderr  # the first of the parameters, in the model's order


def test_a_failing_rank_ends_the_job_and_names_itself(program):
    disk = program.folder / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "none", disk]
    if subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("needs the right to mount a small tmpfs")
    try:
        deck = program.deck(LONG)
        overrides = ["run.steps=1000000", f"run.dir={disk}", "checkpoint.every_steps=0"]
        changes = [part for text in overrides for part in ("--set", text)]
        process = program.start("train", deck, *changes, ranks=4)
        assert wait_for_step(disk / "small", 5, process)
        fill_disk(disk)
        out, _ = process.communicate(timeout=120)
        assert process.returncode == 5, out
        assert "rank 0 (pp0 dp0 tp0) on " in out and "metrics" in out, out
        assert out.count("error: ") == 1, out
    finally:
        subprocess.run(["umount", "-l", disk], check=True)


def test_a_changed_deck_is_refused_with_the_difference(program):
    deck = program.deck(DECK.replace("steps = 12", "steps = 4"))
    program.good("train", deck, ranks=4)
    done = program.run("train", deck, "--set", "run.steps=8", "--set", "model.dim=64", ranks=4)
    assert done.returncode == 2
    assert (
        "model.dim" in done.stderr
        and "32" in done.stderr
        and "64" in done.stderr
        and "--fresh" in done.stderr
    )


def test_a_job_may_follow_one_whose_ranks_are_still_dying(program):
    deck = program.deck(LONG)
    overrides = ["--set", "run.steps=100000", "--set", "checkpoint.every_steps=10"]
    process = program.start("train", deck, *overrides, ranks=4)
    run = program.folder / "runs/small"
    assert wait_for_step(run, 30, process)
    kill_everything(process)
    # mpirun ends before the ranks that it killed: for one of them, which is slow to go.
    with open(run / "run.lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        death = threading.Timer(4, fcntl.flock, (lock, fcntl.LOCK_UN))
        death.start()
        program.good("train", deck, "--set", "run.steps=200", ranks=4)
        death.join()
    assert len(losses(run)) >= 200


def test_a_second_job_on_the_same_folder_is_refused(program):
    deck = program.deck(LONG)
    first = program.start("train", deck, "--set", "run.steps=100000", ranks=4)
    try:
        assert wait_for_step(program.folder / "runs/small", 1, first)
        second = program.run("train", deck, "--set", "run.steps=100000", ranks=4)
        assert second.returncode == 5
        assert "in use by another job" in second.stderr
        assert first.poll() is None
    finally:
        kill_everything(first)
