"""What `voltapile doctor` says of a node, sound or with a real fault."""

import os
import re
import subprocess

import pytest

from conftest import BINARY, ROOT


def examine(environment=None, *wrapper):
    done = subprocess.run(
        [*wrapper, BINARY, "doctor"],
        env=environment or os.environ,
        text=True,
        capture_output=True,
        timeout=60,
    )
    return done.returncode, done.stdout


def line_of(text, what):
    return next((line for line in text.splitlines() if what in line), "")


def test_a_node_is_described_and_variables_that_nothing_reads_are_named():
    unread = ["NCCL_ASYNC_ERROR_HANDLING", "OMPI_MCA_btl_vader_nonsense", "VOLTAPILE_NONSENSE"]
    read = ["OMPI_MCA_btl_vader_single_copy_mechanism"]
    for script in [ROOT / "docs" / "CLUSTER.md", *(ROOT / "jobscripts").glob("*.sh")]:
        read += re.findall(r"\bVOLTAPILE(?:_[A-Z0-9]+)*\b", script.read_text())
    _, text = examine({**os.environ, **{name: "1" for name in unread + read}})
    for what in ("CPUs", "free memory", "/dev/shm", "Open MPI"):
        assert what in text
    for name in unread:
        assert "warning" in line_of(text, name), text
    for name in read:
        assert f"{name}:" not in text, text


def test_what_mpirun_sets_for_its_ranks_is_no_fault():
    _, text = examine(None, "mpirun", "-n", "1")
    assert "CPUs" in text and "OMPI_MCA" not in text, text


def test_too_few_files_are_a_problem():
    code, text = examine(None, "sh", "-c", 'ulimit -n 64; exec "$0" "$1"')
    assert code == 5 and "PROBLEM" in line_of(text, "open files"), text


def test_shared_memory_that_is_too_small_is_a_problem():
    small = 'mount -t tmpfs -o size=1m none /dev/shm && exec "$0" "$1"'
    code, text = examine(None, "unshare", "-rm", "sh", "-c", small)
    if not text:
        pytest.skip("needs the right to make a namespace")
    assert code == 5 and "PROBLEM" in line_of(text, "/dev/shm"), text
