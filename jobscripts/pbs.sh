#!/usr/bin/env bash
#PBS -N voltapile
#PBS -j oe
#PBS -r y
# Trains a deck under PBS, for as many jobs as it takes. `voltapile submit DECK` prints the line; by
# hand, with a chunk for each node and `mpiprocs` ranks on it:
#
#   qsub -l select=2:ncpus=32:mpiprocs=4:ngpus=4 -l walltime=24:00:00 \
#     -v VOLTAPILE_DECK=DECK jobscripts/pbs.sh
#
# VOLTAPILE_CHANGES holds `--set` options, if any. Some minutes before the limit the run saves, and
# the same job is submitted again. PBS itself starts a job again whose node has failed (-r y).

cd "${PBS_O_WORKDIR:?run this by qsub}" || exit 2
about_me=$(qstat -f "$PBS_JOBID" | sed ':a;N;$!ba;s/\n\t//g') # long values are wrapped by a tab
attribute() { sed -n "s/^ *$1 = //p" <<<"$about_me"; }

# PBS runs a copy of this file, so its folder must be asked for.
folder=${VOLTAPILE_JOBSCRIPTS:-}
for folder in "$folder" "$PBS_O_WORKDIR/jobscripts" "$PBS_O_WORKDIR"; do
  [ ! -f "$folder/run_job.sh" ] || break
done
if [ ! -f "$folder/run_job.sh" ]; then
  echo "No run_job.sh found: qsub -v VOLTAPILE_JOBSCRIPTS=FOLDER,..." >&2
  exit 2
fi
# shellcheck source=jobscripts/run_job.sh
. "$folder/run_job.sh"

# qdel sends TERM; the limit's own TERM comes too late to matter.
may_continue() { [ "$stop_signal" != TERM ]; }

# With what this job was given. PBS does not start a job of its own accord that ended by itself.
continue_later() {
  local options=(-N "$PBS_JOBNAME" -W "depend=afterany:$PBS_JOBID") name value
  for name in select place walltime; do
    value=$(attribute "Resource_List\.$name")
    [ -z "$value" ] || options+=(-l "$name=$value")
  done
  [ -z "${PBS_QUEUE:-}" ] || options+=(-q "$PBS_QUEUE")
  value=$(attribute Account_Name)
  [ -z "$value" ] || options+=(-A "$value")
  local passed="VOLTAPILE_DECK=$VOLTAPILE_DECK,VOLTAPILE_JOBSCRIPTS=$folder"
  for name in VOLTAPILE VOLTAPILE_ENV VOLTAPILE_LAUNCHER VOLTAPILE_CHANGES VOLTAPILE_MARGIN; do
    [ -z "${!name:-}" ] || passed+=",$name=${!name}"
  done
  qsub "${options[@]}" -v "$passed" "$folder/pbs.sh"
}

# PBS sends no early signal of its own: VOLTAPILE_MARGIN seconds (300) before the limit this does.
walltime=$(attribute 'Resource_List\.walltime')
if [[ $walltime =~ ^([0-9]+):([0-9]+):([0-9]+)$ ]]; then
  seconds=$((10#${BASH_REMATCH[1]} * 3600 + 10#${BASH_REMATCH[2]} * 60 + 10#${BASH_REMATCH[3]}))
  seconds=$((seconds - ${VOLTAPILE_MARGIN:-300}))
  (
    sleep $((seconds > 0 ? seconds : 0)) &
    trap 'kill $!' TERM
    wait $! && kill -USR1 $$
  ) &
  helpers+=($!)
fi

# shellcheck disable=SC2086 # options, divided at blanks
set -- "${VOLTAPILE_DECK:-$1}" ${VOLTAPILE_CHANGES:-}
run_job "$@"
