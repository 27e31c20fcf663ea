"""kill -9 of any rank at any point: the job is over soon, says who it was, leaves nobody behind,
and the same command goes on to the same result."""

import os
import random
import re
import signal
import subprocess
import time

import pytest

from conftest import DECK, FULL, Program, kill_everything, losses, rank_of, rank_processes
from conftest import ranks_in, wait_for_step, wait_until_gone

LIBRARY = os.environ.get("VOLTAPILE_KILL_AT_LIBRARY")
STEPS = 40
SHORT = DECK.replace("steps = 12", f"steps = {STEPS}").replace("every_steps = 4", "every_steps = 5")
EVALUATION = ["--set", "eval.every_steps=4", "--set", "data.synthetic_test=3000"]
LIMIT_S = 30
# What a rank is killed in: a call of some library, and how many of them every rank makes at least;
# or None for a moment after some step.
PHASES = {
    "start": [("MPI_Comm_split", 7)],
    "forward": [None],
    "collective": [("MPI_Isend", 400)],
    "save": [("fsync", 8), ("pwrite", 40)],
    "evaluate": [None],
    "end": [("MPI_Finalize", 1)],
}


def cases():
    rng = random.Random(7)
    if FULL:
        drawn = [(rng.choice(list(PHASES)), rng.randrange(4), rng.random()) for _ in range(100)]
    else:
        drawn = [(phase, rng.randrange(4), rng.random()) for phase in PHASES]
    return [pytest.param(*case, id=f"{i}-{case[0]}-{case[1]}") for i, case in enumerate(drawn)]


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    found = {}
    for name, more in (("plain", []), ("evaluate", EVALUATION)):
        program = Program(tmp_path_factory.mktemp(name))
        program.good("train", program.deck(SHORT), *more, ranks=4)
        found[name] = losses(program.folder / "runs/small")
    return found


def train_and_kill(program, arguments, phase, victim, chance):
    """Output of a job one of whose ranks was killed."""
    point = random.Random(chance).choice(PHASES[phase])
    run = program.folder / "runs/small"
    if point is not None:
        call, most = point
        program.environment |= {
            "LD_PRELOAD": LIBRARY,
            "VOLTAPILE_KILL_CALL": call,
            "VOLTAPILE_KILL_RANK": str(victim),
            "VOLTAPILE_KILL_COUNT": str(1 + int(chance * most)),
        }
    process = program.start(*arguments, ranks=4)
    for name in [name for name in program.environment if name.startswith("VOLTAPILE_KILL_")]:
        del program.environment[name]
    program.environment.pop("LD_PRELOAD", None)
    try:
        if point is None:
            assert wait_for_step(run, 4 if phase == "evaluate" else 1 + int(chance * 20), process)
            ranks = {rank_of(each): each for each in rank_processes(process.pid)}
            time.sleep(0.03 * chance)
            os.kill(ranks[victim], signal.SIGKILL)
        out, _ = process.communicate(timeout=60 + LIMIT_S)
    except subprocess.TimeoutExpired:
        kill_everything(process)
        pytest.fail("the job is not over")
    assert process.returncode == 137, out
    return out


@pytest.mark.parametrize("phase, victim, chance", cases())
def test_a_killed_rank_ends_the_job_and_the_run_goes_on(program, unbroken, phase, victim, chance):
    if LIBRARY is None:
        pytest.skip("VOLTAPILE_KILL_AT_LIBRARY is not set")
    more = EVALUATION if phase == "evaluate" else []
    program.environment["OMPI_MCA_orte_execute_quiet"] = "1"  # as the job scripts set it
    arguments = ["train", program.deck(SHORT), *more]
    out = train_and_kill(program, arguments, phase, victim, chance)
    # What mpirun has killed may take a moment to go.
    end = time.monotonic() + 10
    while ranks_in(program.folder) and time.monotonic() < end:
        time.sleep(0.05)
    left = ranks_in(program.folder)
    wait_until_gone(left)
    assert not left, out
    run = program.folder / "runs/small"
    if phase != "end":
        last = out.strip().splitlines()[-1]
        place = f"rank {victim} (pp{victim // 2} dp{victim % 2} tp0) on "
        assert last.startswith("error: ") and place in last and "is gone" in last, out
        assert re.search(r"step \d+", last) or "starting" in last, out
    program.good(*arguments, ranks=4)
    assert losses(run) == unbroken["evaluate" if more else "plain"]
    assert "good." in program.good("verify", run)
