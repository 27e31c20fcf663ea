"""The job scripts under a real Slurm: what a job does when nobody watches it."""

import os
import random
import re
import shutil
import signal
import subprocess

import pytest

from conftest import DECK, FULL, ROOT, Program, losses, metrics
from slurm_jobs import (
    ENDED,
    LAUNCHERS,
    Queue,
    assert_same,
    empty_at_the_end,
    recorded,
    started_slurm,
    wait_for_steps,
    wait_until,
    why_not,
)

STEPS = 400
LONG = DECK.replace("steps = 12", f"steps = {STEPS}").replace("every_steps = 4", "every_steps = 25")
ENDLESS = ["run.steps=1000000", "checkpoint.every_steps=0"]
pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not())


@pytest.fixture(scope="session")
def slurm():
    with started_slurm() as environment:
        yield environment


@pytest.fixture(scope="session")
def unbroken(tmp_path_factory):
    """The run that nothing ever stopped."""
    program = Program(tmp_path_factory.mktemp("unbroken"))
    program.good("train", program.deck(LONG), ranks=4)
    return program.folder / "runs/small"


@pytest.fixture
def queue(slurm, tmp_path):
    with empty_at_the_end(Queue(Program(tmp_path), slurm)) as queue:
        yield queue


@pytest.mark.parametrize("launcher", LAUNCHERS if FULL else ["srun"])
def test_a_job_runs_to_its_end(queue, unbroken, launcher):
    deck = queue.program.deck(LONG)
    job = queue.submit(deck, more=["--gpus-per-node=4"], VOLTAPILE_LAUNCHER=launcher)
    assert queue.wait(job) == "COMPLETED", queue.output()
    assert f"4 ranks by {launcher}" in queue.output() and "Finished: " in queue.output()
    assert_same(queue.folder / "runs/small", unbroken)
    assert not list((queue.folder / "runs").glob(".job_*"))
    # Once more: there is nothing to do, and nothing is done.
    before = (queue.folder / "runs/small/metrics.jsonl").read_bytes()
    job = queue.submit(deck)
    assert queue.wait(job) == "COMPLETED"
    assert "Nothing to do" in queue.output()
    assert (queue.folder / "runs/small/metrics.jsonl").read_bytes() == before


@pytest.mark.parametrize("launcher", LAUNCHERS if FULL else ["srun"])
def test_five_preemptions_change_no_bit(queue, launcher):
    steps = 3 * STEPS  # the queue takes a second or two to preempt, and training goes on
    deck = queue.program.deck(LONG.replace(f"steps = {STEPS}", f"steps = {steps}"))
    queue.program.good("train", deck, "--set", "run.name=unbroken", ranks=4)
    run = queue.folder / "runs/small"
    job = queue.submit(deck, VOLTAPILE_LAUNCHER=launcher)
    for times in range(1, 6):
        wait_for_steps(queue, run, recorded(run) + 10)
        assert queue.wait(queue.preempt()) == "COMPLETED"
        assert recorded(run) < steps, "the preemption came too late to matter"
        assert queue.restarts(job) == times, queue.output()
    assert queue.wait(job) == "COMPLETED", queue.output()
    assert queue.output().count("stopped early after step") == 5
    assert_same(run, queue.folder / "runs/unbroken")


@pytest.mark.parametrize("launcher", LAUNCHERS if FULL else ["mpirun"])
def test_a_job_saves_before_its_time_limit_and_comes_back(queue, launcher):
    deck, run = queue.program.deck(LONG), queue.folder / "runs/small"
    queue.program.environment["VOLTAPILE_LAUNCHER"] = launcher
    script = ROOT / "jobscripts" / "slurm.sbatch"
    changes = [word for text in ENDLESS for word in ("--set", text)]
    job = queue.sbatch("--ntasks=4", "--time=1", "--signal=B:USR1@50", script, deck, *changes)
    wait_until(lambda: queue.restarts(job) == 1, "a requeue", queue)
    saved = len(losses(run))
    assert "Signal USR1" in queue.output() and f"stopped early after step {saved}" in queue.output()
    wait_for_steps(queue, run, saved)
    assert f"continuing from runs/small/checkpoints/step_{saved:08}" in queue.output()


@pytest.mark.parametrize("launcher", LAUNCHERS if FULL else ["srun"])
def test_a_decks_own_time_limit_makes_the_job_come_back(queue, unbroken, launcher):
    seconds = sum(line["seconds"] for line in metrics(unbroken))
    for share in (0.6, 0.4, 0.2):  # this time the machine may be quicker than it was
        limit, name = f"run.walltime={2.5 + share * seconds:.1f}s", f"limited_{share}"
        deck = queue.program.deck(LONG.replace('name = "small"', f'name = "{name}"'))
        job = queue.submit(deck, limit, VOLTAPILE_LAUNCHER=launcher)
        assert queue.wait(job) == "COMPLETED", queue.output()
        assert_same(queue.folder / "runs" / name, unbroken)
        if queue.restarts(job) > 0:
            return
    pytest.fail("every run was over before its time")


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_cancelled_job_saves_and_stays_cancelled(queue, launcher):
    run = queue.folder / "runs/small"
    job = queue.submit(queue.program.deck(LONG), *ENDLESS, VOLTAPILE_LAUNCHER=launcher)
    wait_for_steps(queue, run, 3)
    queue.call("scancel", job)
    wait_until(lambda: queue.state(job) in ENDED or queue.restarts(job), "its end", queue)
    assert (queue.state(job), queue.restarts(job)) == ("CANCELLED", 0), queue.output()
    wait_until(lambda: not queue.ranks(), "the ranks' end", queue)
    assert "good." in queue.program.good("verify", run), queue.output()


@pytest.mark.parametrize("launcher", LAUNCHERS if FULL else ["mpirun"])
def test_a_requeued_job_continues(queue, unbroken, launcher):
    run = queue.folder / "runs/small"
    job = queue.submit(queue.program.deck(LONG), VOLTAPILE_LAUNCHER=launcher)
    wait_for_steps(queue, run, 60)
    queue.call("scontrol", "requeue", job)
    assert queue.wait(job) == "COMPLETED", queue.output()
    assert queue.restarts(job) == 1
    assert "continuing from" in queue.output()
    assert_same(run, unbroken)


@pytest.mark.parametrize("launcher", LAUNCHERS if FULL else ["srun"])
def test_a_killed_rank_is_restarted_within_the_allocation(queue, unbroken, launcher):
    run = queue.folder / "runs/small"
    job = queue.submit(queue.program.deck(LONG), VOLTAPILE_LAUNCHER=launcher)
    wait_for_steps(queue, run, 60)
    os.kill(random.Random(launcher).choice(queue.ranks()), signal.SIGKILL)
    assert queue.wait(job) == "COMPLETED", queue.output()
    assert queue.restarts(job) == 0
    assert "Restart 1 of 3 in 1 s" in queue.output()
    assert_same(run, unbroken)


def test_a_run_that_fails_again_and_again_ends(queue):
    deck = queue.program.deck(LONG)
    overflow = ["precision.type=f16", "precision.loss_scale=16777216"]
    job = queue.submit(deck, *overflow, VOLTAPILE_RESTARTS="1")
    assert queue.wait(job) == "FAILED"
    assert queue.show(job)["ExitCode"] == "5:0" and queue.restarts(job) == 0
    output = queue.output()
    # Steps that were skipped before the checkpoint at step 25 count as well.
    assert output.count("50 steps in a row had a gradient") == 2
    assert max(losses(queue.folder / "runs/small")) == 49
    assert "again after 1 restarts" in output


def test_a_launcher_that_reports_success_is_not_believed(queue, unbroken):
    commands = queue.folder / "commands"
    commands.mkdir()
    srun, real = commands / "srun", shutil.which("srun")
    srun.write_text(f"""#!/bin/sh
case "$*" in *" train "*) [ -e {commands}/lied ] || {{ touch {commands}/lied; exit 0; }};; esac
exec {real} "$@"
""")
    srun.chmod(0o755)
    path = f"{commands}:{os.environ['PATH']}"
    job = queue.submit(queue.program.deck(LONG), PATH=path)
    assert queue.wait(job) == "COMPLETED", queue.output()
    assert (commands / "lied").exists() and "Restart 1 of 3" in queue.output()
    assert_same(queue.folder / "runs/small", unbroken)


NOWHERE = [
    "data.format=idx",
    "data.train=nowhere-images-idx3-ubyte.gz",
    "data.test=nowhere-images-idx3-ubyte.gz",
]


def test_mistakes_end_the_job_at_once(queue):
    deck, script = queue.program.deck(), ROOT / "jobscripts" / "slurm.sbatch"
    queue.program.good("train", deck, ranks=4)
    cases = [
        (2, ["model.heads=5"], "model.heads"),
        # From here on, the ranks alone can see it.
        (2, ["run.steps=20", "model.dim=64"], "was started with another deck"),
        (3, ["run.name=apart", "memory.device_limit=100 kB"], "memory.device_limit"),
        (4, ["run.name=apart", *NOWHERE], "nowhere-images-idx3"),
    ]
    options = ["--ntasks=4", "--mem=1G", "--output=%j.log"]
    jobs = [
        queue.sbatch(*options, script, deck, *(f"--set={text}" for text in changes))
        for _, changes, _ in cases
    ]
    for job, (code, _, words) in zip(jobs, cases):
        assert queue.wait(job) == "FAILED"
        shown, log = queue.show(job), (queue.folder / f"{job}.log").read_text()
        assert (shown["ExitCode"], shown["Restarts"]) == (f"{code}:0", "0"), log
        assert words in log and "Restart 1" not in log


def test_a_sweep_is_one_array_with_a_ranked_table(queue):
    deck = queue.program.deck()
    sweep = [ROOT / "jobscripts" / "sweep.sh", deck, "optimizer.lr=1e-3,1e-5", "run.seed=1,2"]
    out = queue.call(*sweep, "--", "--time", "10m")
    array = re.search(r"job array (\d+)", out).group(1)
    queue.jobs.append(array)
    table = next((queue.folder / "runs/sweeps").iterdir()) / "table.txt"
    wait_until(lambda: table.exists() and "\n4 " in table.read_text(), "the table", queue)
    rows = [line.split() for line in table.read_text().splitlines()[1:]]
    assert [row[0] for row in rows] == ["1", "2", "3", "4"]
    accuracies = [float(row[1]) for row in rows]
    assert accuracies == sorted(accuracies, reverse=True)
    runs = {row[-1] for row in rows}
    assert len(runs) == 4
    for run in runs:
        assert len(losses(queue.folder / run)) == 12, run


def test_a_sweep_with_one_bad_combination_submits_nothing(queue):
    sweep = [ROOT / "jobscripts" / "sweep.sh", queue.program.deck(), "model.heads=4,5"]
    done = subprocess.run(
        [*sweep, "--", "--time", "10m"],
        cwd=queue.folder,
        env=queue.program.environment,
        text=True,
        capture_output=True,
    )
    assert done.returncode == 2 and "model.heads=5" in done.stderr
    assert not queue.call("squeue", "-h")
