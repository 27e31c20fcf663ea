#!/usr/bin/env bash
# Trains a deck by mpirun where there is no queue: a workstation, or nodes that you hold already.
# Restarts after failures, as the other job scripts do.
#
#   jobscripts/mpirun.sh DECK [--set section.key=value]...
#
# Ctrl-C saves and stops with 75; a second one stops at once. The same line continues.
# VOLTAPILE_ENV=jobscripts/env_workstation.sh where ranks share few cores.

# shellcheck source=jobscripts/run_job.sh
. "$(dirname "${BASH_SOURCE[0]}")/run_job.sh"

may_continue() { true; }
continue_later() { false; }

# mpirun would take the terminal's Ctrl-C as an order to kill. In a session of its own it hears only
# from this script.
own_session=(setsid)
on_interrupt() {
  if [ $stop_wanted = yes ] && [ -n "$launcher_pid" ]; then kill -TERM "$launcher_pid"; fi
  request_stop INT
}
trap on_interrupt INT
VOLTAPILE_LAUNCHER=mpirun
run_job "$@"
