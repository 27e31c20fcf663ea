"""Ends an mpirun job in every bad way and looks at how it ends: soon, with the exit code of the
cause, the cause named, and nobody left waiting. Usage: failing_job.py MPIRUN PROGRAM"""

import os
import re
import subprocess
import sys
import tempfile

MPIRUN, PROGRAM = sys.argv[1:3]
LIMIT_S = 60  # only a hang takes so long: each case ends within seconds

# what -> (exit code, what must be in the output)
CASES = {
    "kill": (137, [r"exited on signal 9"]),
    "throw": (4, [r"cause on 1: rank 1 read nonsense"]),
    "abort": (
        5,
        [
            r"echo on 0: all_reduce of 'dp\(pp0 tp0\)' on rank 0 of 3 "
            r"was given up: rank 1 gives up",
            r"echo on 2: .*rank 1 gives up",
        ],
    ),
    "size": (5, [r"cause on \d: .*(bytes, \d+ were expected|truncated)"]),
}

failed = False
for what, (code, patterns) in CASES.items():
    for attempt in range(10 if os.environ.get("VOLTAPILE_FULL") == "1" else 1):
        try:
            with tempfile.TemporaryDirectory() as folder:
                job = subprocess.run(
                    [MPIRUN, "-n", "3", PROGRAM, what, folder],
                    env={**os.environ, "OMPI_MCA_orte_execute_quiet": "0"},
                    timeout=LIMIT_S,
                    text=True,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                )
        except subprocess.TimeoutExpired as hang:
            print(f"{what}: still running after {LIMIT_S} s\n{hang.output}")
            failed = True
            continue
        missing = [p for p in patterns if not re.search(p, job.stdout)]
        if job.returncode != code or missing:
            print(
                f"{what}: exit code {job.returncode}, expected {code}; "
                f"missing {missing}\n{job.stdout}"
            )
            failed = True
sys.exit(failed)
