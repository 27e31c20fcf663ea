"""Checkpoints are written while training goes on, and a save that fails loses nothing."""

import resource
import shlex
import shutil
import subprocess
import time

import pytest

from conftest import DECK, kill_everything, losses, rank_processes


def test_saving_every_step_changes_no_loss(program):
    deck = program.deck()
    program.good("train", deck, "--set", "checkpoint.every_steps=0", ranks=4)
    plain = losses(program.folder / "runs" / "small")
    out = program.good(
        "train", deck, "--set", "checkpoint.every_steps=1", "--set", "run.name=saving", ranks=4
    )
    assert losses(program.folder / "runs" / "saving") == plain
    for step in range(1, 13):
        assert out.count(f"step {step}: saved ") == 1, f"step {step} is announced once\n{out}"
    program.good("verify", program.folder / "runs" / "saving")


@pytest.mark.parametrize("megabytes", [1, 2])
def test_a_full_disk_ends_the_run_and_keeps_the_last_good_checkpoint(program, megabytes):
    # About 70,000 parameters of three f32 each: 0.9 MB a checkpoint, and the logs.
    deck = program.deck(DECK.replace("steps = 12", "steps = 400").replace("dim = 32", "dim = 40"))
    disk, kept = program.folder / "disk", program.folder / "kept"
    disk.mkdir()
    train = shlex.join(
        program.command(
            4, "train", deck, "--set", f"run.dir={disk}", "--set", "checkpoint.keep_last=0"
        )
    )
    script = (
        f"mount -t tmpfs -o size={megabytes}m tmpfs {disk} || exit 99; "
        f"{train}; code=$?; cp -a {disk} {kept}; exit $code"
    )
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script],
        env=program.environment,
        text=True,
        capture_output=True,
        timeout=200,
    )
    if done.returncode == 99 or "unshare" in done.stderr:
        pytest.skip("no file system may be mounted here: " + done.stderr.strip())
    assert done.returncode == 5, done.stdout + done.stderr
    last = (done.stdout + done.stderr).strip().splitlines()[-1]
    assert "was not written" in last and "No space left on device" in last, last
    folders = sorted(path.name for path in (kept / "small" / "checkpoints").glob("step_*"))
    assert not [name for name in folders if name.endswith(".partial")]
    if folders:
        program.good("verify", kept / "small")


def in_a_mount_namespace(program, script):
    """Runs a shell script that may mount file systems for itself alone."""
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script],
        cwd=program.folder,
        env=program.environment,
        text=True,
        capture_output=True,
        timeout=200,
    )
    if done.returncode == 99 or "unshare" in done.stderr:
        pytest.skip("no file system may be mounted here: " + done.stderr.strip())
    return done


def test_with_on_error_continue_a_full_disk_is_a_warning_and_saving_works_again_later(program):
    # The disk of the checkpoints is full from the first save on, and is emptied during training.
    deck = program.deck(DECK.replace("steps = 12", "steps = 400").replace("dim = 32", "dim = 40"))
    run = program.folder / "runs" / "small"
    disk = run / "checkpoints"
    disk.mkdir(parents=True)
    kept = program.folder / "kept"
    out = program.folder / "out.txt"
    train = shlex.join(program.command(4, "train", deck, "--set", "checkpoint.on_error=continue"))
    script = f"""
      mount -t tmpfs -o size=8m tmpfs {disk} || exit 99
      head -c 7800000 /dev/zero > {disk}/filler
      {train} > {out} 2>&1 & job=$!
      while ! grep -q 'No space left' {out} && kill -0 $job; do sleep 0.05; done
      rm {disk}/filler
      wait $job; code=$?
      cp -a {disk} {kept}
      exit $code"""
    done = in_a_mount_namespace(program, script)
    said = out.read_text()
    assert done.returncode == 0, said + done.stderr
    assert "was not written" in said and "training goes on (checkpoint.on_error)" in said, said
    assert "step 400: saved" in said, said
    assert sorted(losses(run)) == list(range(1, 401))
    program.good("verify", kept / "step_00000400")


def test_with_on_error_continue_a_read_only_folder_keeps_the_last_good_checkpoint(program):
    # It stays read-only: the save after the last step ends the run, since nothing comes after it.
    deck = program.deck(DECK.replace("steps = 12", "steps = 300"))
    run = program.folder / "runs" / "small"
    disk = run / "checkpoints"
    disk.mkdir(parents=True)
    kept = program.folder / "kept"
    out = program.folder / "out.txt"
    train = shlex.join(program.command(4, "train", deck, "--set", "checkpoint.on_error=continue"))
    script = f"""
      mount -t tmpfs -o size=16m tmpfs {disk} || exit 99
      {train} > {out} 2>&1 & job=$!
      while ! test -e {disk}/latest && kill -0 $job; do sleep 0.02; done
      until mount -o remount,ro {disk}; do sleep 0.01; done
      wait $job; code=$?
      cp -a {disk} {kept}
      exit $code"""
    done = in_a_mount_namespace(program, script)
    said = out.read_text()
    assert done.returncode == 5, said + done.stderr
    assert said.count("training goes on (checkpoint.on_error)") > 1, said
    last = said.strip().splitlines()[-1]
    assert "was not written" in last and "Read-only file system" in last, last
    assert sorted(losses(run)) == list(range(1, 301))
    program.good("verify", kept)


@pytest.mark.parametrize("on_error", ["stop", "continue"])
def test_a_vanished_run_folder_is_said_and_not_made_again(program, on_error):
    deck = program.deck(DECK.replace("steps = 12", "steps = 300"))
    run = program.folder / "runs" / "small"
    job = program.start("train", deck, "--set", f"checkpoint.on_error={on_error}", ranks=4)
    try:
        while not (run / "checkpoints" / "latest").exists() and job.poll() is None:
            time.sleep(0.02)
        run.rename(program.folder / "elsewhere")
        out, _ = job.communicate(timeout=200)
    finally:
        kill_everything(job)
    assert job.returncode == 5, out
    assert "runs/small" in out.strip().splitlines()[-1], out
    assert ("training goes on" in out) == (on_error == "continue"), out
    assert not run.exists()
    program.good("verify", program.folder / "elsewhere")


def test_every_minutes_saves_by_time_at_one_step_for_all_ranks(program):
    # 0.6 s between saves.
    deck = program.deck(
        DECK.replace("steps = 12", "steps = 100000").replace("every_steps = 4", "every_steps = 0")
    )
    out = program.run(
        "train", deck, "--set", "checkpoint.every_minutes=0.01", "--set", "run.walltime=8s", ranks=4
    )
    assert out.returncode == 75, out.stdout + out.stderr
    saves = [line for line in out.stdout.splitlines() if ": saved " in line]
    assert len(saves) >= 3, out.stdout
    assert sorted(losses(program.folder / "runs" / "small"))[0] == 1
    program.good("verify", program.folder / "runs" / "small")


def test_a_damaged_latest_checkpoint_is_refused_or_gives_way(program):
    deck = program.deck()
    program.good("train", deck, ranks=4)
    run = program.folder / "runs" / "small"
    unbroken = losses(run)
    shard = run / "checkpoints" / "step_00000012" / "shard_00001.h5"
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 16
    shard.write_bytes(data)
    more = ["train", deck, "--set", "run.steps=12"]
    done = program.run(*more, ranks=4)
    assert done.returncode == 4, done.stdout + done.stderr
    for words in ["shard_00001.h5", "checkpoint.fallback = true"]:
        assert words in done.stdout + done.stderr, done.stdout + done.stderr
    done = program.run("eval", deck, ranks=4)
    assert done.returncode == 4 and "shard_00001.h5" in done.stdout + done.stderr
    done = program.run(*more, "--set", "checkpoint.fallback=true", ranks=4)
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    assert "step_00000012 is damaged" in said and "step_00000008 (step 8 of 12)" in said, said
    assert losses(run) == unbroken
    program.good("verify", run)
    index = run / "checkpoints" / "step_00000012" / "index.h5"
    index.write_bytes(index.read_bytes()[:-1])
    assert program.run("status", deck).returncode == 4
    done = program.run("status", deck, "--set", "checkpoint.fallback=true")
    assert done.returncode == 75 and "8" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize("home", ["device", "host"])
def test_a_limit_on_the_size_of_files_ends_the_run_and_keeps_the_last_good_checkpoint(
    program, home
):
    # What a quota does to a write, played by RLIMIT_FSIZE: quotas are not to be had everywhere. (A
    # home on nvme would meet the limit in its own file.)
    deck = program.deck(DECK.replace("steps = 12", "steps = 3000"))
    run = program.folder / "runs" / "small"
    homes = ["--set", f"memory.optimizer={home}", "--set", "checkpoint.pool=65536"]
    job = program.start("train", deck, *homes, ranks=4)
    try:
        while not (run / "checkpoints" / "latest").exists() and job.poll() is None:
            time.sleep(0.02)
        last = rank_processes(job.pid)[-1]
        resource.prlimit(last, resource.RLIMIT_FSIZE, (100_000, 100_000))
        out, _ = job.communicate(timeout=200)
    finally:
        kill_everything(job)
    assert job.returncode == 5, out
    said = out.strip().splitlines()[-1]
    assert "was not written: rank 3: " in said and "File too large" in said, out
    assert not list((run / "checkpoints").glob("*.partial"))
    program.good("verify", run)


def test_another_runs_shard_of_the_same_step_is_refused_and_named(program):
    deck = program.deck()
    program.good("train", deck, ranks=4)
    program.good("train", deck, "--set", "run.name=other", "--set", "run.seed=4", ranks=4)
    shard = "checkpoints/step_00000012/shard_00001.h5"
    runs = program.folder / "runs"
    shutil.copyfile(runs / "other" / shard, runs / "small" / shard)
    for command in (["verify", runs / "small"], ["train", deck, "--set", "run.steps=16"]):
        done = program.run(*command, ranks=4 if command[0] == "train" else 0)
        said = done.stdout + done.stderr
        assert done.returncode == 4, said
        assert "shard_00001.h5" in said and "is it another checkpoint's file?" in said, said
    program.good("verify", runs / "other")
