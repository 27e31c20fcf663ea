"""A rank that is stopped, which answers nobody: the job ends by itself and says who it was."""

import os
import random
import re
import signal
import time

import pytest

from conftest import DECK, FULL, is_running, losses, rank_of, rank_processes
from conftest import wait_for_step, wait_until_gone

STEPS = 400
LONG = DECK.replace("steps = 12", f"steps = {STEPS}").replace("every_steps = 4", "every_steps = 25")
PLACES = ["pp0 dp0 tp0", "pp0 dp1 tp0", "pp1 dp0 tp0", "pp1 dp1 tp0"]


def start(program, *overrides):
    changes = [part for text in overrides for part in ("--set", text)]
    process = program.start("train", program.deck(LONG), *changes, ranks=4)
    assert wait_for_step(program.folder / "runs/small", 30, process)
    return process, {rank_of(each): each for each in rank_processes(process.pid)}


# Rank 0 judges; when it is the one, the last rank does.
@pytest.mark.parametrize("victim", range(4) if FULL else [0, random.choice([1, 2, 3])])
def test_a_stopped_rank_is_named_and_the_job_is_over(program, victim):
    process, ranks = start(program, "run.steps=100000", "run.hang_timeout=2s")
    os.kill(ranks[victim], signal.SIGSTOP)
    began = time.monotonic()
    out, _ = process.communicate(timeout=60)
    seconds = time.monotonic() - began
    assert process.returncode == 5, out
    assert not [each for each in ranks.values() if is_running(each)]
    last = [line for line in out.splitlines() if line.startswith("error: ")][-1]
    assert f"rank {victim} ({PLACES[victim]}) on " in last and "does not answer" in last, out
    assert re.search(r" of step \d+", last), out
    if FULL:
        assert seconds < 10, out  # twice a step, which takes milliseconds, and 10 s
    written = program.folder / "runs/small/hang"
    for rank in set(range(4)) - {victim}:
        text = (written / f"rank_{rank:05}.txt").read_text()
        assert f"rank {rank} ({PLACES[rank]})" in text
        assert "Training::finish_step" in text and "begun" in text and "all_reduce" in text, text
    program.good("train", program.deck(LONG), ranks=4)
    assert len(losses(program.folder / "runs/small")) >= STEPS


def test_a_job_that_was_suspended_as_a_whole_goes_on(program):
    process, ranks = start(program, "run.steps=1500", "run.hang_timeout=1s")
    everybody = [process.pid, *ranks.values()]
    for target in everybody:
        os.kill(target, signal.SIGSTOP)
    time.sleep(6)
    for target in everybody:
        os.kill(target, signal.SIGCONT)
    out, _ = process.communicate(timeout=240)
    assert process.returncode == 0, out


def test_ranks_end_when_their_launcher_is_gone(program):
    process, ranks = start(program, "run.steps=100000")
    try:
        # Nobody tells the ranks: their launcher is stopped first, and only then killed.
        process.send_signal(signal.SIGSTOP)
        process.kill()
        process.wait()
        end = time.monotonic() + 30
        while any(map(is_running, ranks.values())) and time.monotonic() < end:
            time.sleep(0.1)
        assert not [each for each in ranks.values() if is_running(each)]
    finally:
        wait_until_gone(ranks.values())
