"""A job on two nodes, each with a name, an address and a shared memory of its own."""

import os
import pathlib
import signal

import h5py
import pytest

from conftest import DECK, FULL, Program
from slurm_jobs import LAUNCHERS, Queue, assert_same, empty_at_the_end, recorded, started_slurm
from slurm_jobs import wait_for_steps, wait_until, why_not

STEPS = 120
DECK_OF_8 = (
    DECK.replace("steps = 12", f"steps = {STEPS}")
    .replace("every_steps = 4", "every_steps = 25")
    .replace("data = 2\n", "data = 2\ntensor = 2\n")
    + '[trace]\nsteps = "5:8"\n'
)

pytestmark = pytest.mark.skipif(bool(why_not(nodes=2)), reason=why_not(nodes=2))


@pytest.fixture(scope="module")
def slurm():
    with started_slurm(nodes=2) as environment:
        yield environment


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    """The run that nothing ever stopped, on one node."""
    program = Program(tmp_path_factory.mktemp("unbroken"))
    program.good("train", program.deck(DECK_OF_8), ranks=8)
    return program.folder / "runs/small"


@pytest.fixture
def queue(slurm, tmp_path):
    with empty_at_the_end(Queue(Program(tmp_path), slurm)) as queue:
        yield queue


@pytest.mark.parametrize("launcher", LAUNCHERS if FULL else ["srun"])
def test_eight_ranks_on_two_nodes_come_back_with_the_same_bits(queue, unbroken, launcher):
    run = queue.folder / "runs/small"
    deck = queue.program.deck(DECK_OF_8)
    out = queue.program.good("submit", deck, "--time", "20m", "--tasks-per-node", "4")
    assert "--nodes=2 --ntasks=8 --ntasks-per-node=4" in out
    job = queue.submit(deck, tasks_per_node=4, VOLTAPILE_LAUNCHER=launcher)
    wait_for_steps(queue, run, 40)
    assert queue.show(job)["NodeList"] == "node[0-1]"
    queue.call("scontrol", "requeue", job)
    wait_until(lambda: queue.restarts(job) == 1, "a requeue", queue)
    # And a node that is gone for a moment, with the ranks on it.
    wait_for_steps(queue, run, recorded(run) + 20)
    queue.call("scontrol", "update", "nodename=node1", "state=down", "reason=test")
    wait_until(lambda: queue.restarts(job) == 2, "another start", queue)
    assert queue.wait(job) == "COMPLETED", queue.output()
    assert f"8 ranks by {launcher}" in queue.output() and "continuing from" in queue.output()
    assert_same(run, unbroken)
    with h5py.File(run / "trace.h5") as trace:
        hosts = [trace[f"rank_{rank:05}"].attrs["host"] for rank in range(8)]
    assert [str(host) for host in hosts] == 4 * ["node0"] + 4 * ["node1"]


@pytest.mark.parametrize("launcher", LAUNCHERS if FULL else ["mpirun"])
def test_a_rank_that_hangs_on_the_other_node_is_named(queue, unbroken, launcher):
    run = queue.folder / "runs/small"
    deck = queue.program.deck(DECK_OF_8)
    job = queue.submit(deck, "run.hang_timeout=3s", tasks_per_node=4, VOLTAPILE_LAUNCHER=launcher)
    wait_for_steps(queue, run, 40)
    ranks = {int(variable(process, "PMIX_RANK")): process for process in queue.ranks()}
    os.kill(ranks[6], signal.SIGSTOP)
    assert queue.wait(job) == "COMPLETED", queue.output()
    assert "rank 6 (pp1 dp1 tp0) on node1" in queue.output()
    assert "Restart 1 of 3" in queue.output() and queue.restarts(job) == 0
    assert_same(run, unbroken)


def variable(process, name):
    text = pathlib.Path(f"/proc/{process}/environ").read_text()
    return dict(line.split("=", 1) for line in text.split("\0") if "=" in line)[name]
