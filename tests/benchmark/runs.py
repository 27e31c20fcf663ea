"""What the benchmark scripts share: a run of voltapile and its metrics, figures over rounds, a
child process that works on request, and the GPU memory that the driver reports."""

import ctypes
import json
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = pathlib.Path(os.environ.get("VOLTAPILE_BINARY", ROOT / "build/src/voltapile"))


def settings(**keys):
    """Overrides for the command line: settings(**{"run.steps": 8}) is ["--set", "run.steps=8"]."""
    return [part for key, value in keys.items() for part in ("--set", f"{key}={value}")]


def read_metrics(run, kind="train"):
    """The records of a kind ("train", "eval") of a run folder, as far as they are written."""
    path = pathlib.Path(run) / "metrics.jsonl"
    if not path.exists():
        return []
    lines = path.read_text().split("\n")[:-1]  # a last line without an end is still being written
    return [record for record in map(json.loads, lines) if record["kind"] == kind]


def train(deck, *overrides, read=read_metrics):
    """Runs a deck to its end in a folder that goes away; what `read` finds in the run folder."""
    with tempfile.TemporaryDirectory() as folder:
        where = settings(**{"run.dir": folder, "run.name": "bench", "checkpoint.at_end": "false"})
        done = subprocess.run(
            [PROGRAM, "train", deck, *where, *overrides], text=True, capture_output=True
        )
        if done.returncode != 0:
            sys.exit(f"voltapile train {deck}: exit {done.returncode}\n{done.stdout}{done.stderr}")
        return read(pathlib.Path(folder) / "bench")


class PausedRun:
    """One `voltapile train` that is stopped (SIGSTOP) between rounds, so that it starts and tunes
    once. Steps in flight end while it is stopped, so the first steps of a round are left out."""

    def __init__(self, deck, folder, name, *overrides):
        self.run = pathlib.Path(folder) / name
        where = settings(**{"run.dir": folder, "run.name": name, "checkpoint.at_end": "false"})
        self.log = open(pathlib.Path(folder) / f"{name}.log", "w+")
        self.process = subprocess.Popen(
            [PROGRAM, "train", deck, *where, *overrides],
            stdout=self.log,
            stderr=subprocess.STDOUT,
        )

    def round(self, steps, skipped):
        """Goes on for `skipped` + `steps` steps, then stops; seconds of the last `steps`."""
        begin = len(read_metrics(self.run))
        self.process.send_signal(signal.SIGCONT)
        while len(records := read_metrics(self.run)) < begin + skipped + steps:
            if self.process.poll() is not None:
                self.log.seek(0)
                sys.exit(f"voltapile ended with {self.process.returncode}\n{self.log.read()}")
            time.sleep(0.01)
        self.process.send_signal(signal.SIGSTOP)
        return [record["seconds"] for record in records[begin + skipped :][:steps]]

    def end(self):
        self.process.kill()
        self.process.wait()
        self.log.close()


class Child:
    """A Python script that answers each JSON line on its input with one on its output."""

    def __init__(self, script, *arguments, python=sys.executable):
        self.process = subprocess.Popen(
            [python, script, *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, **request):
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            sys.exit(f"{self.process.args}: exit {self.process.wait()}")
        return json.loads(answer)

    def end(self):
        self.process.stdin.close()
        self.process.wait()


def serve(answer):
    """The other side of Child: answer(**request) for every line, until the input ends."""
    for line in sys.stdin:
        print(json.dumps(answer(**json.loads(line))), flush=True)


class GpuMemory:
    """Bytes in use on a GPU, by everybody, as the driver reports them (NVML)."""

    class Info(ctypes.Structure):
        _fields_ = [(name, ctypes.c_ulonglong) for name in ("total", "free", "used")]

    def __init__(self, index=0):
        self.nvml = ctypes.CDLL("libnvidia-ml.so.1")
        self.device = ctypes.c_void_p()
        self.check(self.nvml.nvmlInit_v2())
        self.check(self.nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(self.device)))

    @staticmethod
    def check(code):
        if code != 0:
            raise RuntimeError(f"NVML error {code}")

    def used(self):
        info = self.Info()
        self.check(self.nvml.nvmlDeviceGetMemoryInfo(self.device, ctypes.byref(info)))
        return info.used


class PeakMemory:
    """with PeakMemory(gpu) as peak: ...; peak.bytes is the most in use meanwhile."""

    def __init__(self, gpu, every_seconds=0.003):
        self.gpu, self.every_seconds, self.bytes = gpu, every_seconds, 0
        self.over = threading.Event()
        self.thread = threading.Thread(target=self.sample)

    def sample(self):
        while True:
            self.bytes = max(self.bytes, self.gpu.used())
            if self.over.wait(self.every_seconds):
                return

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        self.thread.join()


def spread(values, digits=3, unit=""):
    """ "median (lowest to highest)" """
    low, middle, high = min(values), statistics.median(values), max(values)
    return f"{middle:.{digits}f}{unit} ({low:.{digits}f} to {high:.{digits}f})"
