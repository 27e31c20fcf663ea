"""A Slurm of the tests' own, and jobs in it."""

import contextlib
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import time

import numpy as np

from conftest import BINARY, ROOT, is_running, losses
from test_resume import tensors

FIXTURE = ROOT / "tests" / "support" / "slurm_fixture.sh"
NEEDED = ["slurmctld", "slurmd", "munged", "sbatch", "setpriv"]
ENDED = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "BOOT_FAIL"}

os.environ["PATH"] += os.pathsep + "/usr/sbin"  # where Debian keeps daemons, and ip


def why_not(nodes=1):
    """What keeps a Slurm of so many nodes from being started here."""
    needed = NEEDED + (["ip", "nsenter", "unshare"] if nodes > 1 else [])
    missing = [name for name in needed if shutil.which(name) is None]
    if missing:
        return f"no Slurm on this machine ({', '.join(missing)} not found)"
    if os.geteuid() != 0:
        return "Slurm's daemons need root here"
    if nodes > 1:
        script = "ip link add vp_probe type bridge && ip link delete vp_probe && unshare -nu true"
        done = subprocess.run(["sh", "-c", script], capture_output=True, text=True)
        if done.returncode != 0:
            return f"no networks may be made here: {done.stderr.strip()}"
    return ""


@contextlib.contextmanager
def started_slurm(nodes=1):
    """Its environment; the folder's name is short, since sockets lie in it."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="vp_slurm_"))
    try:
        environment = {**os.environ, "SLURM_FIXTURE_NODES": str(nodes)}
        subprocess.run([FIXTURE, "start", folder], check=True, timeout=60, env=environment)
        script = f". {folder}/env.sh && env -0"
        text = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True)
        yield dict(line.split("=", 1) for line in text.stdout.split("\0") if "=" in line)
    finally:
        subprocess.run([FIXTURE, "stop", folder], timeout=60)
        shutil.rmtree(folder, ignore_errors=True)


class Queue:
    def __init__(self, program, environment):
        self.program = program
        self.folder = program.folder
        # A restart's pause is for a cluster, not for a test.
        program.environment.update(environment, VOLTAPILE_PAUSE="1", VOLTAPILE=BINARY)
        self.jobs = []

    def call(self, *words):
        done = subprocess.run(
            [str(word) for word in words],
            cwd=self.folder,
            env=self.program.environment,
            text=True,
            capture_output=True,
            timeout=60,
        )
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
        return done.stdout.strip()

    def submit(self, deck, *changes, tasks_per_node=0, more=(), **settings):
        """By `voltapile submit`; returns the job's number."""
        words = [word for text in changes for word in ("--set", text)]
        words += [f"--more={word}" for word in ("--parsable", *more)]
        words += ["--tasks-per-node", tasks_per_node] if tasks_per_node else []
        self.program.environment.update(settings)
        out = self.program.good("submit", deck, "--time", "20m", "--go", *words)
        self.jobs.append(out.split()[-1])
        return self.jobs[-1]

    def sbatch(self, *words):
        """By hand, where submit would not ask for such a job."""
        self.jobs.append(self.call("sbatch", "--parsable", *words))
        return self.jobs[-1]

    def preempt(self):
        """A short job of the partition above, for which nothing is free."""
        return self.sbatch("--partition=high", "--ntasks=8", "--output=/dev/null", "--wrap=true")

    def show(self, job):
        text = self.call("scontrol", "show", "job", "-o", job)
        return dict(re.findall(r"(\w+)=(\S*)", text))

    def state(self, job):
        return self.show(job)["JobState"]

    def restarts(self, job):
        return int(self.show(job)["Restarts"])

    def wait(self, job, *states):
        wait_until(lambda: self.state(job) in (states or ENDED), f"job {job}", self)
        return self.state(job)

    def output(self):
        return "".join(path.read_text() for path in sorted(self.folder.glob("*.log")))

    def ranks(self):
        """Process ids of all ranks that were started in this test's folder."""
        found = []
        for entry in pathlib.Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and (entry / "comm").read_text().strip() == "voltapile":
                    if os.readlink(entry / "cwd") == str(self.folder) and is_running(entry.name):
                        if b"train" in (entry / "cmdline").read_bytes().split(b"\0"):
                            found.append(int(entry.name))
            except OSError:
                continue
        return sorted(found)


@contextlib.contextmanager
def empty_at_the_end(queue):
    """What a fixture does with a queue."""
    yield queue
    for job in queue.jobs:
        subprocess.run(["scancel", job], env=queue.program.environment)
    wait_until(lambda: not queue.call("squeue", "-h"), "an empty queue", queue)
    assert queue.ranks() == [], "ranks outlived their job"


def wait_until(condition, what, queue, patience=900):
    end = time.monotonic() + patience
    while not condition():
        assert time.monotonic() < end, f"waited in vain for {what}:\n{queue.output()}"
        time.sleep(0.05)


def recorded(run):
    try:
        return (run / "metrics.jsonl").read_text().count('"train"')
    except FileNotFoundError:
        return 0


def wait_for_steps(queue, run, count):
    """More steps than `count`, while ranks run that may make them."""
    wait_until(lambda: recorded(run) > count and queue.ranks(), f"step {count}", queue)


def assert_same(run, unbroken):
    assert losses(run) == losses(unbroken)
    ours, theirs = tensors(run), tensors(unbroken)
    assert ours.keys() == theirs.keys() and len(ours) > 50
    for name in theirs:
        np.testing.assert_array_equal(ours[name], theirs[name], err_msg=name)


LAUNCHERS = ["srun", "mpirun"]
