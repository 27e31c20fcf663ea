"""Checkpoints are written while training goes on, and a save that fails loses nothing."""

import shlex
import subprocess

import pytest

from conftest import DECK, losses


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
