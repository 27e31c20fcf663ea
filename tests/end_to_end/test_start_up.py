"""Ranks that do not belong together: what differs is shown, and stops the job where it must."""

import os
import re
import subprocess

from conftest import BINARY, DECK

SHORT = DECK.replace("steps = 12", "steps = 3")


def run_ranks(program, *ranks):
    """mpirun of one process a command line."""
    command = ["mpirun"]
    for rank in ranks:
        command += ([":"] if len(command) > 1 else []) + ["-n", "1", *map(str, rank)]
    return subprocess.run(
        command,
        cwd=program.folder,
        env=program.environment,
        text=True,
        capture_output=True,
        timeout=120,
    )


def test_another_deck_on_one_rank_is_refused_with_its_keys(program):
    good = program.deck(SHORT)
    other = program.deck(SHORT.replace("lr = 1e-3", "lr = 2e-3"), "other.toml")
    train = [BINARY, "train"]
    done = run_ranks(program, *[[*train, good]] * 3, [*train, other, "--set", "run.name=small"])
    assert done.returncode == 2, done.stderr
    assert "optimizer.lr: 0.001 on rank 0, 0.002 on rank 3" in done.stderr
    assert re.search(r"deck +0-2 +\w{16}\n +3 +\w{16}\n", done.stderr), done.stderr
    assert not (program.folder / "runs").exists()


def test_another_build_and_a_wrong_clock_are_shown(program):
    notes = subprocess.run(["readelf", "-n", BINARY], text=True, capture_output=True, check=True)
    build = re.search(r"Build ID: (\w+)", notes.stdout).group(1)
    contents = open(BINARY, "rb").read()
    changed = bytes.fromhex("00" * 8 + build[16:])
    assert contents.count(bytes.fromhex(build)) == 1
    copy = program.folder / "voltapile"
    copy.write_bytes(contents.replace(bytes.fromhex(build), changed))
    copy.chmod(0o755)
    train = ["train", program.deck(SHORT)]
    ahead = ["env", "VOLTAPILE_CLOCK_AHEAD=3600"]
    ahead.append("LD_PRELOAD=" + os.environ["VOLTAPILE_CLOCK_AHEAD_LIBRARY"])
    plain = [BINARY, *train]
    done = run_ranks(program, plain, plain, [copy, *train], [*ahead, *plain])
    assert done.returncode == 0, done.stderr
    warned = done.stderr + done.stdout
    assert re.search(rf"build +0, 1, 3 +{build[:16]}\n +2 +0{{16}}\n", warned), warned
    assert re.search(r"time +0-2 +\S+ \S+ UTC\n +3 +\S+ \S+ UTC", warned), warned
