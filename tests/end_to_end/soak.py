"""A run under faults without end, against the same run left alone.

    soak.py [--minutes 120] [--between 20] [--seed 1] [--folder DIR] [--markdown FILE]

jobscripts/mpirun.sh trains on CPU ranks while at random times a rank or the launcher is killed, a
rank is stopped for good or for a moment, the disk fills up, or the job is asked to stop and is
submitted again, as a queue does after preemption. Beside it the same run is left alone, in one
piece, with each rank's memory and open files sampled. When the minutes are over both stop with a
checkpoint, the one behind goes on to the other's step, and both must have the same losses, weights
and moments, bit for bit. The faults need the right to mount a small disk; without it the disk does
not fill up, and that is said.
"""

import argparse
import json
import os
import pathlib
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

from conftest import BINARY, MPI_ENVIRONMENT, ROOT, fill_disk, kill_everything, losses
from conftest import rank_of, rank_processes, ranks_in, wait_until_gone

DECK = """
[run]
name = "soak"
steps = 1000000000
seed = 5
threads = 1
log_every = 1000
hang_timeout = "8s"
check_every_steps = 50
[model]
image = 24
channels = 1
patch = 4
dim = 128
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
lr = 1e-4
schedule = "constant"
[data]
format = "synthetic"
synthetic_train = 2000
mean = [0.5]
std = [0.5]
[checkpoint]
every_steps = 20
keep_last = 2
"""
RANKS = 4
TRAPS_S = 1  # until a job script listens to signals
PATIENCE_S = 300  # in which any fault is over, and a further step done
SAMPLES = 200  # of memory and files, at most
LONG_S = 60  # a run shorter than this is mostly start, and says nothing of growth
LINE_BYTES = 256  # that the first rank keeps of each step, for metrics.h5


class Soak:
    def __init__(self, folder, seed):
        self.folder, self.rng = folder, random.Random(seed)
        self.deck = folder / "soak.toml"
        self.deck.write_text(DECK)
        self.disk = folder / "disk"
        self.disk.mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", "size=96m", "none", self.disk]
        self.mounted = subprocess.run(mount, capture_output=True).returncode == 0
        self.run = self.disk / "soak"
        self.environment = {
            **os.environ,
            **MPI_ENVIRONMENT,
            "VOLTAPILE": BINARY,
            "VOLTAPILE_PAUSE": "1",
            "VOLTAPILE_RESTARTS": "20",
        }
        self.job, self.log = None, open(folder / "log.txt", "wb", buffering=0)
        self.counts = {}
        self.submitted = 0.0
        self.patience = Patience(self.run)

    def submit(self, *settings):
        self.submitted = time.time()
        self.job = subprocess.Popen(
            [ROOT / "jobscripts/mpirun.sh", self.deck, "--set", f"run.dir={self.disk}", *settings],
            cwd=self.folder,
            env=self.environment,
            stdout=self.log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def processes(self):
        """Those of the job's ranks that train, by rank."""
        found = {}
        for process in ranks_in(self.folder):
            try:
                found[rank_of(process)] = process
            except (KeyError, FileNotFoundError, ProcessLookupError, PermissionError):
                continue
        return found

    def strike(self, process, *signals, pause=0.0):
        try:
            for number, each in enumerate(signals):
                time.sleep(pause if number else 0)
                os.kill(process, each)
        except ProcessLookupError:
            pass

    def fault(self):
        """One at random; its name, or None where there is nobody to meet it."""
        processes = self.processes()
        if not processes or self.job.poll() is not None:
            return None
        if time.time() < self.submitted + TRAPS_S:
            return None
        victim = self.rng.choice(sorted(processes.values()))
        kinds = ["killed rank", "killed launcher", "stopped rank", "pause", "requeue"]
        kind = self.rng.choice(kinds + (["full disk"] if self.mounted else []))
        if kind == "killed rank":
            self.strike(victim, signal.SIGKILL)
        elif kind == "killed launcher":
            stat = pathlib.Path(f"/proc/{victim}/stat").read_text()
            parent = int(stat.rsplit(")", 1)[1].split()[1])
            if parent == self.job.pid or parent <= 1:
                return None
            self.strike(parent, signal.SIGKILL)
        elif kind == "stopped rank":
            self.strike(victim, signal.SIGSTOP)
        elif kind == "pause":
            self.strike(victim, signal.SIGSTOP, signal.SIGCONT, pause=1.0)
        elif kind == "full disk":
            fill_disk(self.disk)
            time.sleep(self.rng.uniform(0.5, 4))
            (self.disk / "filler").unlink()
        elif kind == "requeue":
            self.strike(self.job.pid, signal.SIGUSR1)
        return kind

    def keep_going(self):
        """Submits again what stopped on purpose; anything else that ends the job is a failure."""
        self.expect_progress()
        if self.job.poll() is None:
            return
        if self.job.returncode != 75:
            sys.exit(f"the job ended with {self.job.returncode}:\n{self.tail()}")
        self.submit()

    def expect_progress(self):
        if self.patience.is_over():
            sys.exit(f"no step since {self.patience.newest} in {PATIENCE_S} s:\n{self.tail()}")

    def tail(self):
        return (self.folder / "log.txt").read_text(errors="replace")[-4000:]

    def endure(self, alone, minutes, between):
        end = time.monotonic() + 60 * minutes
        self.submit()
        while time.monotonic() < end:
            time.sleep(min(self.rng.expovariate(1 / between), end - time.monotonic() + 0.01))
            try:
                kind = self.fault()
            except FileNotFoundError:  # it ended by itself just then
                kind = None
            if kind:
                self.counts[kind] = self.counts.get(kind, 0) + 1
            time.sleep(0.2)
            self.keep_going()
            if alone.job.poll() is not None:
                sys.exit(f"the run without faults ended with {alone.job.returncode}")
        self.stop()

    def stop(self):
        """With a checkpoint, by the signal that a queue sends, once it trains."""
        for _ in range(20):
            self.keep_going()
            saved, end = self.saved(), time.monotonic() + 120
            while self.job.poll() is None and not self.trains(saved) and time.monotonic() < end:
                time.sleep(0.1)
            self.strike(self.job.pid, signal.SIGUSR1)
            self.job.wait(timeout=120)
            if self.job.returncode == 75 and self.saved() == self.recorded() > saved:
                return
        sys.exit(f"the job does not stop with a checkpoint:\n{self.tail()}")

    def reach(self, step):
        """Goes on to a step without a fault, and ends there."""
        if self.saved() < step:
            self.submit("--set", f"run.steps={step}")
            while self.job.poll() is None:
                self.expect_progress()
                time.sleep(1)
            if self.job.returncode != 0:
                sys.exit(f"the job does not reach step {step}:\n{self.tail()}")

    def trains(self, saved):
        """Whether this submission has done a step: there may be lines of an earlier one."""
        lines = self.run / "metrics.jsonl"
        fresh = lines.exists() and lines.stat().st_mtime > self.submitted + TRAPS_S
        return fresh and self.recorded() > saved

    def recorded(self):
        return recorded(self.run)

    def saved(self):
        return saved(self.run)

    def close(self):
        for process in ranks_in(self.folder):
            wait_until_gone([process])
        if self.job and self.job.poll() is None:
            self.job.kill()
        if self.mounted:
            subprocess.run(["umount", "-l", self.disk], capture_output=True)


def sample(process):
    """(resident bytes, open files) of a process."""
    status = pathlib.Path(f"/proc/{process}/status").read_text()
    resident = int(status.split("VmRSS:")[1].split()[0]) * 1024
    return resident, len(os.listdir(f"/proc/{process}/fd"))


def recorded(run):
    """Newest step of a run that may be about to write its first line, or within a line."""
    try:
        lines = (run / "metrics.jsonl").read_text().split("\n")[:-1]
    except FileNotFoundError:
        return 0
    return max(
        (line["step"] for line in map(json.loads, lines) if line["kind"] == "train"), default=0
    )


def saved(run):
    latest = run / "checkpoints/latest"
    return int(os.readlink(latest).split("_")[1]) if latest.is_symlink() else 0


class Patience:
    """With a run that should do a further step now and then."""

    def __init__(self, run):
        self.run, self.newest, self.since = run, 0, time.monotonic()

    def is_over(self):
        step = recorded(self.run)
        if step > self.newest:
            self.newest, self.since = step, time.monotonic()
        return time.monotonic() - self.since > PATIENCE_S


class Alone:
    """The same run without a fault, with samples of each rank: {rank: [(bytes, files)]}."""

    def __init__(self, soak):
        self.folder = soak.folder / "left_alone"  # where no fault looks for ranks
        self.folder.mkdir()
        self.run, self.samples = self.folder / "alone", {}
        self.log, self.began = open(self.folder / "log.txt", "wb"), time.monotonic()
        arguments = ["train", soak.deck, "--set", "run.name=alone"]
        self.job = subprocess.Popen(
            ["mpirun", "-n", str(RANKS), BINARY, *arguments, "--set", f"run.dir={self.folder}"],
            cwd=self.folder,
            env=soak.environment,
            stdout=self.log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self.watcher = threading.Thread(target=self.watch, daemon=True)
        self.watcher.start()

    def watch(self):
        every = 0.25
        while self.job.poll() is None:
            for process in rank_processes(self.job.pid):
                try:
                    self.samples.setdefault(rank_of(process), []).append(sample(process))
                except (OSError, KeyError, IndexError):
                    continue  # it is just ending
            if self.samples and len(self.samples[min(self.samples)]) >= SAMPLES:
                self.samples = {rank: taken[::2] for rank, taken in self.samples.items()}
                every *= 2
            time.sleep(every)

    def stop_past(self, step):
        """With a checkpoint at or behind this step; the step."""
        patience = Patience(self.run)
        while recorded(self.run) < step and self.job.poll() is None:
            if patience.is_over():
                sys.exit(f"no step since {patience.newest} in {PATIENCE_S} s without faults")
            time.sleep(1)
        if self.job.poll() is None:
            self.job.send_signal(signal.SIGUSR1)
        self.seconds = time.monotonic() - self.began
        if self.job.wait(timeout=PATIENCE_S) != 75 or saved(self.run) != recorded(self.run):
            log = (self.folder / "log.txt").read_text(errors="replace")[-4000:]
            sys.exit(f"the run without faults ended with {self.job.returncode}:\n{log}")
        self.watcher.join()
        return saved(self.run)

    def close(self):
        if self.job.poll() is None:
            kill_everything(self.job)


def growth(values):
    """Medians of the second and the last quarter of the samples: the first is the start."""
    quarter = max(1, len(values) // 4)
    return statistics.median(values[quarter : 2 * quarter]), statistics.median(values[-quarter:])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    minutes = float(os.environ.get("VOLTAPILE_SOAK_MINUTES", 120))
    parser.add_argument("--minutes", type=float, default=minutes)
    parser.add_argument("--between", type=float, default=20, help="faults, seconds on average")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=pathlib.Path, help="kept; default: one that goes")
    parser.add_argument("--markdown", type=pathlib.Path, help="where the figures go as a table")
    options = parser.parse_args()
    folder = options.folder or pathlib.Path(tempfile.mkdtemp(prefix="voltapile_soak_"))
    folder.mkdir(parents=True, exist_ok=True)
    soak = Soak(folder.resolve(), options.seed)
    alone = Alone(soak)
    try:
        soak.endure(alone, options.minutes, options.between)
        endured = soak.saved()
        steps = alone.stop_past(endured)
        soak.reach(steps)
        figures = judge(soak, alone, endured, steps, options.minutes)
    finally:
        alone.close()
        soak.close()
    if options.folder is None:
        shutil.rmtree(folder)
    print(json.dumps(figures, indent=2))
    if options.markdown:
        rows = [f"| {name} | {value} |" for name, value in figures.items()]
        options.markdown.write_text("\n".join(["| soak | |", "| --- | --- |", *rows]) + "\n")


def judge(soak, alone, endured, steps, minutes):
    seconds = alone.seconds
    if losses(soak.run) != losses(alone.run):
        sys.exit("the losses differ from those of the run that was left alone")
    diff = subprocess.run(
        [BINARY, "diff", soak.run, alone.run, "--moments"], text=True, capture_output=True
    )
    if diff.returncode != 0:
        sys.exit(f"weights or moments differ:\n{diff.stdout}{diff.stderr}")
    log = (soak.folder / "log.txt").read_text(errors="replace")
    resident, files = [], []
    for rank, taken in sorted(alone.samples.items()):
        early, late = growth([each for each, _ in taken])
        resident.append(f"{early / 1e6:.1f} to {late / 1e6:.1f}")
        long = seconds >= LONG_S
        if long and late > 1.05 * early + (LINE_BYTES * steps if rank == 0 else 0):
            sys.exit(f"rank {rank} of the run that was left alone grew: {resident[-1]} MB")
        early, late = growth([each for _, each in taken])
        files.append(f"{early:g} to {late:g}")
        if long and late > early:
            sys.exit(f"rank {rank} of the run that was left alone opened files: {files[-1]}")
    return {
        "minutes of faults": f"{minutes:g}",
        "ranks": RANKS,
        "faults": ", ".join(f"{count} {kind}" for kind, count in sorted(soak.counts.items())),
        "restarts by the job script": log.count("] Failed "),
        "steps under faults": endured,
        "steps compared": steps,
        "seconds left alone": f"{seconds:.0f}"
        + ("" if seconds >= LONG_S else ", too short to judge growth"),
        "equal to the run left alone": "losses, weights and moments, bit for bit",
        "MB of each rank left alone, second quarter to last": ", ".join(resident),
        "its open files": ", ".join(files),
    }


if __name__ == "__main__":
    main()
