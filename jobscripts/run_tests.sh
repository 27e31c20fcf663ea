#!/usr/bin/env bash
# Installs what is missing, builds, and runs every test: first the whole suite, then the unit and
# thread suites under AddressSanitizer with UndefinedBehaviorSanitizer, and what has threads under
# ThreadSanitizer.
# Where CUDA is installed, the program is built with it too, and with CUDA 12 for Volta; no GPU is
# needed for that. What the later stages need is compiled while the first is tested, each into its
# FOLDER/build.log. The last line counts individual test cases over all of it: `N passed, N failed`.
set -euo pipefail

usage() {
  cat <<'END'
usage: jobscripts/run_tests.sh [--quick | --full]

  --quick   no sanitizer builds, no build for Volta
  --full    every grid in full rather than a seeded sample, and two hours of soak
            (VOLTAPILE_SOAK_MINUTES); figures into docs/RELIABILITY.md
END
}

full=no quick=no
for argument in "$@"; do
  case $argument in
    --full) full=yes ;;
    --quick) quick=yes ;;
    -h | --help) usage && exit 0 ;;
    *) usage >&2 && exit 2 ;;
  esac
done

cd "$(dirname "${BASH_SOURCE[0]}")/.."
. jobscripts/setup.sh
. jobscripts/env_workstation.sh

# A sanitizer that only prints would let a test pass. MPI keeps what it allocates until the end.
export ASAN_OPTIONS=${ASAN_OPTIONS-detect_stack_use_after_return=1}
export UBSAN_OPTIONS=${UBSAN_OPTIONS-halt_on_error=1:print_stacktrace=1}
export TSAN_OPTIONS=${TSAN_OPTIONS-halt_on_error=1:second_deadlock_stack=1}

# Debugging information may name another folder than the one that a cached object was built in.
export CCACHE_NOHASHDIR=${CCACHE_NOHASHDIR-1}

patience=20 # Meson's time limits are meant for a free core each, and for no sanitizer
if [ $full = yes ]; then
  export VOLTAPILE_FULL=1
  export VOLTAPILE_FIGURES=$PWD/build/figures # what long tests measure, for the page
  rm -rf "$VOLTAPILE_FIGURES"
  mkdir -p "$VOLTAPILE_FIGURES"
  patience=100
fi

# begin_as OTHER FOLDER [MESON OPTIONS]: a new folder as a copy of another, with these options on
# top: ninja then compiles only what they change. Where this fails there is no such folder.
begin_as() {
  local other=$1 folder=$2
  shift 2
  if [ -f "$folder/build.ninja" ] || [ ! -f "$other/build.ninja" ]; then return 0; fi
  rm -rf "$folder"
  # Without build.ninja an interrupted copy is no folder to go on with.
  { cp -a "$other" "$folder" && rm "$folder/build.ninja" &&
    meson setup --reconfigure "$folder" "$@" >"$folder/setup.log" 2>&1; } || rm -rf "$folder"
}

# prepare FOLDER "SUITES" [MESON OPTIONS]: configures the folder and selects the tests of these
# suites (of all, if none is named; -NAME: without that one).
# like=OTHER before it: what a stage of the same options but these has compiled is taken over.
prepare() {
  local folder=$1 suites=$2 suite
  shift 2
  selection=()
  for suite in $suites; do
    case $suite in
      -*) selection+=(--no-suite "${suite#-}") ;;
      *) selection+=(--suite "$suite") ;;
    esac
  done
  if [ -n "${like-}" ]; then begin_as "$like" "$folder" "$@"; fi
  configure "$folder" "$@"
}

# begin_reports NAME FOLDER: an empty folder for the stage's reports; says where in $reports.
stages=()
begin_reports() {
  reports=$PWD/$2/test-reports
  stages+=("$1=$reports")
  rm -rf "$reports"
  mkdir -p "$reports"
}

# A stage is a function that calls run_stage or build_stage, whichever it is given, with
#   NAME FOLDER "COMMAND PREFIX" "SUITES" [MESON OPTIONS]
# run_stage builds what the tests of these suites need and runs them. Whatever goes wrong is left to
# be read from the reports: every stage runs and counts.
run_stage() {
  local name=$1 folder=$2 prefix=$3 reports selection
  say "" "Testing: $name"
  if ! prepare "$folder" "${@:4}"; then
    begin_reports "$name" "$folder"
    echo "not configured" >"$reports/not_run"
    return 0
  fi
  begin_reports "$name" "$folder"
  meson test -C "$folder" --print-errorlogs --timeout-multiplier "$patience" "${selection[@]}" \
    --wrapper "${prefix}sh '$PWD/tests/support/report_case.sh' '$reports'" || true
  if [ -z "$(ls -A "$reports")" ]; then echo "not built" >"$reports/not_run"; fi
}

# build_stage only builds. What fails here fails again, and is shown, when the stage is run.
build_stage() {
  local folder=$2 selection
  prepare "$folder" "${@:4}" &&
    meson test -C "$folder" "${selection[@]}" --wrapper true >"$folder/build.log" 2>&1
}

release() { "$@" release build "" "" -Dcuda=disabled; }

# Lines are all that a report needs; with the places of variables too (-g), some files take six
# times as long. Code that need not go on after a report is half as long, and -Og again compiles
# in two thirds of the time; ThreadSanitizer's build would gain a tenth of its time. Whole modules
# at once (unity) compile in half; in the other stages each file proves its includes alone.
lean=(-Db_lundef=false -Ddebug=false -Dc_args=-g1 -Dunity=on -Dunity_size=100
  -Donednn=disabled -Dcuda=disabled)
address() {
  "$@" "address, undefined" build-asan "" "unit thread fuzz" -Db_sanitize=address,undefined \
    -Doptimization=g "-Dcpp_args=-g1 -fno-sanitize-recover=all" "${lean[@]}"
}
thread() {
  # g++ 12's ThreadSanitizer cannot start under the widest address randomisation of newer kernels.
  local fixed_addresses=""
  if setarch -R true 2>/dev/null; then fixed_addresses="setarch -R "; fi
  "$@" thread build-tsan "$fixed_addresses" "unit thread -pure" -Db_sanitize=thread \
    -Doptimization=1 -Dcpp_args=-g1 "${lean[@]}"
}
cuda() {
  local suites=cuda archs=90
  if [ $full = yes ]; then archs=80,90; fi
  if [ -e /dev/nvidiactl ]; then suites="cuda gpu"; fi
  PATH=$(dirname "$nvcc"):$PATH like=build "$@" cuda build-cuda "" "$suites" \
    -Dcuda=enabled -Dgpu_arch=$archs
}
volta() {
  local cuda12=${VOLTAPILE_CUDA12-build-cuda12} reports # where it lies, or is to be unpacked
  if jobscripts/unpack_cuda12.sh "$cuda12"; then
    PATH=$(realpath "$cuda12")/tk/bin:$PATH like=build "$@" "cuda for Volta" build-volta \
      "" cuda -Dcuda=enabled -Dgpu_arch=70 \
      -Dpng=disabled -Djpeg=disabled # and what may be left out
  else
    begin_reports "cuda for Volta" build-volta
    echo "CUDA 12 could not be unpacked" >"$reports/not_run"
  fi
}

later=() # stages after release
if [ $quick = no ]; then later+=(address thread); fi
# nvcc is often installed without being on PATH.
if nvcc=$(PATH=$PATH:/usr/local/cuda/bin command -v nvcc); then
  later+=(cuda)
  if [ $quick = no ] && "$nvcc" --version | grep -q "release 1[3-9]"; then later+=(volta); fi
fi

# build_ahead STAGE...: builds one after another while release is tested, most of whose tests wait
# much of their time, and says which one it is through with. It takes only what those leave idle.
build_ahead() {
  local stage
  chrt --idle --pid 0 $BASHPID || renice -n 19 $BASHPID
  until compgen -G "build/test-reports/*" >/dev/null; do sleep 1; done
  for stage in "$@"; do
    $stage build_stage || true
    echo "$stage" >&3
  done
} 3>&1 >/dev/null 2>&1

install_packages "${voltapile_packages[@]}" || say "Going on with what this machine has."
install_packages "${slurm_packages[@]}" ||
  say "Without Slurm, the tests of its job script are skipped."

rm -rf build/test-reports
set -m # a process group of its own, to be ended as one
coproc ahead { build_ahead "${later[@]}"; }
set +m
# shellcheck disable=SC2064,SC2154 # the group of now; coproc sets it
trap "kill -- -$ahead_PID 2>/dev/null || true" EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
exec 4<&"${ahead[0]}"

release run_stage
for stage in ${later[@]+"${later[@]}"}; do
  # Nobody else may build in its folder meanwhile. Where the other has ended, there is nobody.
  while read -r built <&4 && [ "$built" != "$stage" ]; do :; done
  $stage run_stage
done

table=()
if [ $full = yes ]; then table=(--markdown docs/RELIABILITY.md --figures "$VOLTAPILE_FIGURES"); fi
python=/usr/bin/python3 # the one that has Debian's h5py and pytest, where there is one
[ -x $python ] || python=$(command -v python3) || {
  say "There is no python3, so Meson could not run either."
  echo "0 passed, 1 failed"
  exit 1
}
"$python" tests/support/count_cases.py "${table[@]}" "${stages[@]}"
