# shellcheck shell=bash
# What every job script does once its allocation is there. A job script defines two functions,
# sources this file, and calls `run_job DECK [--set section.key=value]...`:
#
#   may_continue     true while the job may come back: not cancelled
#   continue_later   makes the queue start this job again; false when it will not
#
# The run's folder, as `voltapile status` reads it, says whether the work is done: srun returns 0
# after some node failures. A stop on purpose (exit 75: a signal, run.walltime) makes the job come
# back; a failure (exit 5, a killed rank) is restarted in this allocation from the last checkpoint,
# at most VOLTAPILE_RESTARTS times without a new one, each time after a longer pause; a mistake
# (exit 2, 3, 4) ends the job at once.
#
# Set by the user, all optional:
#   VOLTAPILE            the program; default: the one built or installed with this file, or on PATH
#   VOLTAPILE_ENV        a file to source first: modules, paths (see env_modules.sh)
#   VOLTAPILE_LAUNCHER   srun or mpirun; default: srun where Slurm speaks PMIx, else mpirun
#   VOLTAPILE_RESTARTS   3
#   VOLTAPILE_PAUSE      10: seconds before the first restart; doubled for each further one
#   VOLTAPILE_LINGER     30: seconds that mpirun may go on when all that it started has ended

jobscripts=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
stop_wanted=no # a signal asked for the end
stop_signal=   # the first that did
launcher_pid=
urging_pid=
lingering_pid=
job_folder=
helpers=()     # processes that end with the job
own_session=() # what makes the launcher deaf to a terminal, if that is wanted

# One line for each argument, with the time, so that a log of several starts can be read.
tell() { printf "[$(date '+%F %T')] %s\n" "$@" >&2; }

find_program() {
  voltapile=${VOLTAPILE:-}
  local place
  for place in "$jobscripts/../build/src" "$jobscripts/../../../bin"; do # built, installed
    [ -n "$voltapile" ] || [ ! -x "$place/voltapile" ] || voltapile=$(cd "$place" && pwd)/voltapile
  done
  voltapile=${voltapile:-voltapile}
  if ! command -v "$voltapile" >/dev/null; then
    tell "No program $voltapile: build it, or name it by VOLTAPILE=/path/to/voltapile."
    exit 2
  fi
}

# The signal is repeated while ranks run: one that comes before they listen is lost.
urge() {
  local nap=
  trap 'kill $nap; exit' TERM
  while kill -USR1 "$1" 2>/dev/null; do
    sleep 3 &
    nap=$!
    wait $nap
  done
}

# Open MPI's mpirun has been seen to stand still for good when a rank died while it reported to it.
# The ranks of its own node are its children, and live as long as those of other nodes: when none
# has been left for a while, it is ended and the run goes on.
end_when_alone() { # PID
  local alone=0 limit=300 nap='' children='' # some minutes until the first child is there
  local linger=${VOLTAPILE_LINGER:-30}
  local every=$((linger < 5 ? 1 : 5)) # at least that long: it may be just about to end
  ps -o stat= --ppid $$ >/dev/null 2>&1 || return 0 # one that cannot say whose child a process is
  trap '' USR1
  trap 'kill $nap; exit' TERM
  while kill -0 "$1" 2>/dev/null; do
    children=$(ps -o stat= --ppid "$1")
    [ -z "$children" ] || limit=$linger
    if [ -n "$children" ] && grep -qv '^Z' <<<"$children"; then # one that is no zombie
      alone=0
    elif [ $alone -ge "$limit" ] && [ $alone -gt 0 ]; then
      tell "mpirun has nobody left to wait for and does not end: it is ended."
      kill -KILL "$1"
      return
    fi
    sleep $every &
    nap=$!
    wait $nap
    alone=$((alone + every))
  done
}

request_stop() {
  [ $stop_wanted = no ] || return 0
  stop_wanted=yes
  # shellcheck disable=SC2034 # for the job scripts
  stop_signal=$1
  tell "Signal $1: asking the ranks to save and stop."
  if [ -n "$launcher_pid" ]; then
    urge "$launcher_pid" &
    urging_pid=$!
  fi
}

# wait_for PID: its exit code, whatever signals arrive meanwhile.
wait_for() {
  local code=0
  while :; do
    code=0
    wait "$1" || code=$?
    # Above 128 a trap may have cut the wait short.
    [ $code -gt 128 ] && kill -0 "$1" 2>/dev/null || return $code
  done
}

choose_launcher() {
  launcher=${VOLTAPILE_LAUNCHER:-}
  if [ -z "$launcher" ]; then
    launcher=mpirun
    if [ -n "${SLURM_JOB_ID:-}" ] && srun --mpi=list 2>&1 | grep -qw pmix; then launcher=srun; fi
  fi
  start_line=(${own_session[@]+"${own_session[@]}"})
  # Whoever starts the ranks goes with this script, and they with it, even after kill -9.
  local bound=()
  if setpriv --pdeathsig TERM true 2>/dev/null; then
    start_line+=(setpriv --pdeathsig TERM)
    bound=(setpriv --pdeathsig KILL)
  fi
  case $launcher in
    srun)
      # The first dead rank ends the step: the others would wait for it in MPI.
      start_line+=(srun --mpi=pmix --kill-on-bad-exit=1 --ntasks="$ranks")
      # Since Slurm 22.05 a step does not take this over from its job.
      [ -z "${SLURM_CPUS_PER_TASK:-}" ] || start_line+=(--cpus-per-task="$SLURM_CPUS_PER_TASK")
      # run_rank.sh binds to the memory of a rank's own GPU.
      [ -z "${SLURM_GPUS_ON_NODE:-}" ] || start_line+=(--cpu-bind=none)
      ;;
    mpirun)
      start_line+=(mpirun -n "$ranks" --bind-to none)
      local hosts=${PBS_NODEFILE:-${LSB_DJOB_HOSTFILE:-}} name
      if [ -n "$hosts" ]; then
        # An mpirun that knows the queue takes hosts from it, any other from this file, by ssh.
        start_line+=(--hostfile "$hosts")
        for name in PATH LD_LIBRARY_PATH; do
          [ -z "${!name:-}" ] || start_line+=(-x "$name")
        done
      fi
      # Ranks that are told to end may save first: mpirun would give them one second. It waits as
      # long when a rank has died.
      export OMPI_MCA_odls_base_sigkill_timeout=${OMPI_MCA_odls_base_sigkill_timeout-5}
      # No help page after the error that ended the job.
      export OMPI_MCA_orte_execute_quiet=${OMPI_MCA_orte_execute_quiet-1}
      ;;
    *)
      tell "VOLTAPILE_LAUNCHER=$launcher: srun or mpirun."
      exit 2
      ;;
  esac
  start_line+=(${bound[@]+"${bound[@]}"} bash "$jobscripts/run_rank.sh")
}

# status_of KEY: one line of the last `voltapile status`.
status_of() { sed -n "s/^$1  *//p" <<<"$status"; }

at_exit() {
  local helper
  for helper in ${helpers[@]+"${helpers[@]}"}; do kill "$helper" 2>/dev/null || true; done
  [ -z "$job_folder" ] || rm -rf "$job_folder"
}

# Ends the job when status cannot be told (a damaged checkpoint, say); else true when finished.
is_finished() {
  local code=0
  status=$("$voltapile" status "$deck" ${changes[@]+"${changes[@]}"}) || code=$?
  case $code in
    0 | 75) return $code ;;
    *) exit $code ;;
  esac
}

# What the ranks said. Their files know better than the launcher, which under srun reports the
# signal that ended the others. A mistake outweighs a failure, and that a stop on purpose.
judge() { # FOLDER LAUNCHER_CODE
  local code
  for code in 2 3 4 5; do
    if grep -qsx $code "$1"/*; then
      echo $code
      return
    fi
  done
  if grep -qsvxE '0|75' "$1"/*; then
    echo 5
  elif grep -qsx 75 "$1"/*; then
    echo 75
  elif [ "$2" = 0 ] || [ "$2" = 75 ]; then
    echo 5 # nobody said so, or the run's folder does not agree
  else
    echo "$2"
  fi
}

# One start of all ranks; sets `code`.
train_once() {
  attempt=$((attempt + 1))
  local codes=$job_folder/$attempt
  mkdir "$codes"
  "${start_line[@]}" "$codes" "$voltapile" train "$deck" ${changes[@]+"${changes[@]}"} &
  launcher_pid=$!
  if [ $stop_wanted = yes ]; then # it came just before there was anybody to tell
    urge "$launcher_pid" &
    urging_pid=$!
  fi
  if [ "$launcher" = mpirun ]; then
    end_when_alone "$launcher_pid" &
    lingering_pid=$!
  fi
  code=0
  wait_for "$launcher_pid" || code=$?
  launcher_pid=
  local helper
  for helper in $urging_pid $lingering_pid; do kill "$helper" 2>/dev/null || true; done
  urging_pid='' lingering_pid=''
  code=$(judge "$codes" $code)
}

come_back() {
  if ! may_continue; then
    tell "The job was cancelled; the same submission continues the run."
    exit 75
  fi
  if continue_later; then
    tell "The job will start again and continue."
  else
    tell "The queue does not start this job again: submit it once more to continue."
  fi
  exit 75
}

# run_job DECK [--set section.key=value]...
run_job() {
  trap at_exit EXIT
  trap 'request_stop USR1' USR1
  trap 'request_stop TERM' TERM
  if [ $# -lt 1 ]; then
    tell "usage: $(basename "$0") DECK [--set section.key=value]..."
    exit 2
  fi
  deck=$1
  shift
  changes=("$@")
  # shellcheck disable=SC1090 # the user's own file
  if [ -n "${VOLTAPILE_ENV:-}" ]; then . "$VOLTAPILE_ENV"; fi
  find_program
  # Before anything starts: a mistake in the deck is said once, here.
  ranks=$("$voltapile" ranks "$deck" ${changes[@]+"${changes[@]}"}) || exit $?
  if [ "${SLURM_NTASKS:-$ranks}" -lt "$ranks" ]; then
    tell "This job has $SLURM_NTASKS tasks and the deck needs $ranks: see 'voltapile submit $deck'."
    exit 2
  fi
  choose_launcher
  local restarts=0 pause=${VOLTAPILE_PAUSE:-10} saved
  attempt=0
  if is_finished; then
    tell "Nothing to do: $(status_of folder) is finished."
    exit 0
  fi
  local runs
  runs=$(dirname "$(status_of folder)")
  mkdir -p "$runs"
  job_folder=$(mktemp -d "$runs/.job_XXXXXX") # the ranks leave their exit codes here
  tell "$deck: $ranks ranks by $launcher on $(uname -n), from step $(status_of saved)."

  while :; do
    [ $stop_wanted = no ] || come_back
    saved=$(status_of saved)
    train_once
    if is_finished; then
      tell "Finished: $(status_of folder), step $(status_of saved)."
      exit 0
    fi
    case $code in
      2 | 3 | 4)
        tell "Exit code $code: this would fail again in the same way, so the job ends."
        exit "$code"
        ;;
    esac
    if [ "$code" = 75 ] || [ $stop_wanted = yes ]; then
      # The time limit of a deck may be too short for a single step.
      if [ $stop_wanted = no ] && [ "$(status_of saved)" = "$saved" ]; then
        tell "Stopped early without a step done: raise run.walltime, or leave it out."
        exit 75
      fi
      come_back
    fi
    if [ "$(status_of saved)" != "$saved" ]; then
      restarts=0 pause=${VOLTAPILE_PAUSE:-10}
    fi
    if [ $restarts -ge "${VOLTAPILE_RESTARTS:-3}" ]; then
      tell "Failed (exit code $code) again after $restarts restarts without a new checkpoint."
      exit 5
    fi
    restarts=$((restarts + 1))
    tell "Failed (exit code $code). Restart $restarts of ${VOLTAPILE_RESTARTS:-3} in $pause s," \
      "from step $(status_of saved)."
    sleep "$pause" &
    wait $! || true # a signal ends the pause
    pause=$((pause * 2))
  done
}
