"""The program as a user runs it: real mpirun, real files, plain h5py."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BINARY = os.environ.get("VOLTAPILE_BINARY", str(ROOT / "build" / "src" / "voltapile"))
FULL = os.environ.get("VOLTAPILE_FULL") == "1"

# Few cores, many ranks, perhaps root: oversubscribe, bind nothing, do not spin.
MPI_ENVIRONMENT = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "OMPI_MCA_hwloc_base_binding_policy": "none",
    "OMPI_MCA_mpi_yield_when_idle": "1",
    "OMPI_MCA_btl": "self,vader",
    "OMPI_MCA_btl_vader_single_copy_mechanism": "none",
}

DECK = """
[run]
name = "small"
steps = 12
seed = 3
threads = 1
log_every = 5
[model]
image = 12
channels = 1
patch = 4
dim = 32
depth = 4
heads = 4
classes = 10
[parallel]
pipeline = 2
data = 2
schedule = "1f1b"
[batch]
global = 16
micro = 2
[optimizer]
lr = 1e-3
warmup_steps = 3
[data]
format = "synthetic"
synthetic_train = 200
synthetic_test = 37
mean = [0.5]
std = [0.5]
[checkpoint]
every_steps = 4
"""


class Program:
    def __init__(self, folder):
        self.folder = folder
        self.environment = {**os.environ, **MPI_ENVIRONMENT}

    def deck(self, text=DECK, name="deck.toml"):
        path = self.folder / name
        path.write_text(text)
        return path

    def command(self, ranks, *arguments):
        mpirun = ["mpirun", "-n", str(ranks)] if ranks else []
        return [*mpirun, BINARY, *map(str, arguments)]

    def run(self, *arguments, ranks=0, timeout=300):
        return subprocess.run(
            self.command(ranks, *arguments),
            cwd=self.folder,
            env=self.environment,
            text=True,
            capture_output=True,
            timeout=timeout,
        )

    def good(self, *arguments, **options):
        done = self.run(*arguments, **options)
        assert (
            done.returncode == 0
        ), f"{arguments}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def start(self, *arguments, ranks=0):
        # A session of its own, so that a test can end every process that it started.
        return subprocess.Popen(
            self.command(ranks, *arguments),
            cwd=self.folder,
            env=self.environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def kill_everything(process):
    """kill -9 of mpirun and of every rank below it; returns when none is left."""
    ranks = rank_processes(process.pid)  # before mpirun goes, and they lose their parent
    for target in [process.pid, *ranks]:
        try:
            os.kill(target, signal.SIGKILL)
        except ProcessLookupError:
            pass
    process.wait()
    wait_until_gone(ranks)


def fill_disk(disk):
    with open(disk / "filler", "wb", buffering=0) as filler, pytest.raises(OSError):
        while True:
            filler.write(bytes(4096))


def wait_until_gone(processes):
    """Ends what is left of them, so that the run's lock is free."""
    for process in processes:
        while is_running(process):
            try:
                os.kill(process, signal.SIGKILL)
            except ProcessLookupError:
                pass
            time.sleep(0.01)


def is_running(process):
    try:
        state = pathlib.Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def rank_processes(mpirun):
    """Process ids of the ranks, which mpirun puts into process groups of their own."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            name = (entry / "comm").read_text().strip()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(fields[1]) == mpirun and name == "voltapile" and fields[0] != "Z":
            found.append(int(entry.name))
    return sorted(found)


def ranks_in(folder):
    """Process ids of the ranks that work in a folder, whoever is their parent now."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        try:
            if not entry.name.isdigit() or (entry / "comm").read_text().strip() != "voltapile":
                continue
            if pathlib.Path(os.readlink(entry / "cwd")) == folder and is_running(entry.name):
                found.append(int(entry.name))
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
    return sorted(found)


def rank_of(process):
    """The rank that a process has in its job."""
    variables = pathlib.Path(f"/proc/{process}/environ").read_text().split("\0")
    return int(dict(v.split("=", 1) for v in variables if "=" in v)["OMPI_COMM_WORLD_RANK"])


def wait_for_step(run, step, process):
    while process.poll() is None:
        try:
            if (run / "metrics.jsonl").read_text().count('"train"') >= step:
                return True
        except FileNotFoundError:
            pass
        time.sleep(0.01)
    return False


def metrics(run, kind="train"):
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if line["kind"] == kind]


def losses(run):
    return {line["step"]: line["loss"] for line in metrics(run)}


@pytest.fixture
def program(tmp_path):
    return Program(tmp_path)


if sys.version_info < (3, 9):
    pytest.exit("the end-to-end tests need Python 3.9 or later")
