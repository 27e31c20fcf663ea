"""A sample of the soak here; two hours of it where everything is run in full."""

import os
import pathlib
import subprocess
import sys

from conftest import FULL


def test_a_run_under_faults_is_the_same_run(tmp_path):
    minutes = os.environ.get("VOLTAPILE_SOAK_MINUTES", "120" if FULL else "0.5")
    command = [sys.executable, pathlib.Path(__file__).with_name("soak.py"), "--minutes", minutes]
    command += [] if FULL else ["--between", "5"]
    command += ["--folder", tmp_path]
    if figures := os.environ.get("VOLTAPILE_FIGURES"):
        command += ["--markdown", pathlib.Path(figures) / "soak.md"]
    done = subprocess.run(command, text=True, capture_output=True)
    assert done.returncode == 0, done.stdout + done.stderr
    print(done.stdout)
