#!/usr/bin/env bash
# Trains a deck under LSF, for as many starts as it takes. `voltapile submit DECK` prints the line;
# by hand:
#
#   bsub -n 8 -R 'span[ptile=4]' -gpu num=4 -W 24:00 -r -Q 75 -wa USR1 -wt 5 \
#     jobscripts/lsf.sh DECK [--set section.key=value]...
#
# Five minutes before the limit LSF sends USR1 (-wa, -wt), the run saves, and the script ends with
# 75, for which LSF puts the job back into the queue (-Q). -r does so when a node fails.

# shellcheck source=jobscripts/run_job.sh
. "${VOLTAPILE_JOBSCRIPTS:-$(dirname "$0")}/run_job.sh"

# LSF decides both by itself: by the exit code, and not for a job that was killed.
may_continue() { true; }
continue_later() { true; }

run_job "$@"
