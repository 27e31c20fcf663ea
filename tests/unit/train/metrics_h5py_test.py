"""metrics.h5 through plain h5py while a writer publishes and is killed, and tools/plot_loss.py.

usage: metrics_h5py_test.py WRITE_METRICS TOOLS
"""
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

import h5py
import numpy as np

WRITE_METRICS, TOOLS = sys.argv[1], Path(sys.argv[2])
FULL = os.environ.get("VOLTAPILE_FULL") == "1"
TRAIN = ["grad_norm", "learning_rate", "loss", "loss_scale", "samples_per_second", "seconds",
         "skipped", "step"]
EVAL = ["loss", "samples", "step", "top1", "top5"]


def read(path):
    """Everything in the file; checks that it is one moment of the run."""
    with h5py.File(path, "r") as file:
        train = {name: file["train"][name][:] for name in file["train"]}
        test = {name: file["eval"][name][:] for name in file["eval"]}
    assert sorted(train) == TRAIN and sorted(test) == EVAL
    steps = len(train["step"])
    np.testing.assert_array_equal(train["step"], np.arange(1, steps + 1))
    np.testing.assert_array_equal(train["loss"], 1.0 / train["step"])
    assert all(len(column) == steps for column in train.values())
    assert all(len(column) == len(test["step"]) for column in test.values())
    return steps


class WhileRunning(unittest.TestCase):
    def setUp(self):
        self.folder = Path(tempfile.mkdtemp(prefix="vp_metrics_"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.file = self.folder / "metrics.h5"

    def write(self, resume, last):
        return subprocess.Popen([WRITE_METRICS, self.folder, str(resume), str(last)])

    def test_a_poller_never_fails_through_publishing_and_kills(self):
        kills = 60 if FULL else 8
        chance = random.Random(7)
        resume = polls = 0
        for _ in range(kills):
            writer = self.write(resume, 10**9)
            try:
                # Some polls, then a kill between any two instructions of the writer.
                wanted, seen = chance.randint(2, 20), 0
                while seen < wanted:
                    self.assertIsNone(writer.poll(), "the writer ended by itself")
                    if self.file.exists():  # from the first publication on
                        read(self.file)
                        seen += 1
                time.sleep(chance.uniform(0, 0.01))
            finally:
                writer.send_signal(signal.SIGKILL)
                writer.wait()
            polls += seen
            steps = read(self.file)
            lines = (self.folder / "metrics.jsonl").read_text().splitlines()
            recorded = [json.loads(line) for line in lines]  # no torn line either
            written = sum(line["kind"] == "train" for line in recorded)
            self.assertGreaterEqual(written, steps)
            resume = chance.randint(0, written)  # a checkpoint may be older than the last line
        self.assertGreater(polls, kills)

    def test_plot_loss_draws_text_and_says_what_a_picture_needs(self):
        self.assertEqual(self.write(0, 40).wait(), 0)
        drawn = subprocess.run([sys.executable, TOOLS / "plot_loss.py", self.folder],
                               capture_output=True, text=True)
        self.assertEqual(drawn.returncode, 0, drawn.stderr)
        self.assertGreater(drawn.stdout.count("*"), 20)
        self.assertIn("step 40: test loss 0.5000, top-1 90.00 %", drawn.stdout)
        picture = self.folder / "loss.svg"
        made = subprocess.run([sys.executable, TOOLS / "plot_loss.py", self.folder, "--out",
                               picture], capture_output=True, text=True)
        if made.returncode == 0:
            self.assertGreater(picture.stat().st_size, 1000)
        else:
            self.assertIn("matplotlib", made.stderr)

    def test_plot_loss_of_a_run_that_has_just_begun(self):
        self.assertEqual(self.write(0, 0).wait(), 0)
        drawn = subprocess.run([sys.executable, TOOLS / "plot_loss.py", self.file],
                               capture_output=True, text=True)
        self.assertEqual(drawn.returncode, 0, drawn.stderr)
        self.assertIn("no steps yet", drawn.stdout)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
