#!/usr/bin/env bash
# Installs what is missing, builds, and runs every test: first the whole suite, then the unit and
# thread suites under AddressSanitizer with UndefinedBehaviorSanitizer, and what has threads under
# ThreadSanitizer.
# Where CUDA is installed, the program is built with it too, and with CUDA 12 for Volta; no GPU is
# needed for that. The last line counts individual test cases over all of it: `N passed, N failed`.
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

stages=()
# run_stage NAME FOLDER "COMMAND PREFIX" "SUITES" [MESON OPTIONS]: configures the folder, builds
# what the tests of these suites need (of all, if none is named; -NAME: without that one) and runs
# them. Whatever goes wrong is left to be read from the reports: every stage runs and counts.
# like=OTHER before it: what a stage of the same options but these has compiled is taken over.
run_stage() {
  local name=$1 folder=$2 prefix=$3 suites=$4 suite selection=()
  shift 4
  local reports=$PWD/$folder/test-reports
  say "" "Testing: $name"
  stages+=("$name=$reports")
  for suite in $suites; do
    case $suite in
      -*) selection+=(--no-suite "${suite#-}") ;;
      *) selection+=(--suite "$suite") ;;
    esac
  done
  if [ -n "${like-}" ]; then begin_as "$like" "$folder" "$@"; fi
  if ! configure "$folder" "$@"; then
    mkdir -p "$reports"
    echo "not configured" >"$reports/not_run"
    return 0
  fi
  rm -rf "$reports"
  mkdir -p "$reports"
  meson test -C "$folder" --print-errorlogs --timeout-multiplier "$patience" "${selection[@]}" \
    --wrapper "${prefix}sh '$PWD/tests/support/report_case.sh' '$reports'" || true
  if [ -z "$(ls -A "$reports")" ]; then echo "not built" >"$reports/not_run"; fi
}

install_packages "${voltapile_packages[@]}" || say "Going on with what this machine has."
install_packages "${slurm_packages[@]}" ||
  say "Without Slurm, the tests of its job script are skipped."
run_stage release build "" "" -Dcuda=disabled
if [ $quick = no ]; then
  # Lines are all that a report needs; with the places of variables too (-g), some files take six
  # times as long. Code that need not go on after a report is half as long, and -Og again compiles
  # in two thirds of the time; ThreadSanitizer's build would gain a tenth of its time.
  lean=(-Db_lundef=false -Ddebug=false -Dc_args=-g1 -Donednn=disabled -Dcuda=disabled)
  suites="unit thread fuzz"
  run_stage "address, undefined" build-asan "" "$suites" -Db_sanitize=address,undefined \
    -Doptimization=g "-Dcpp_args=-g1 -fno-sanitize-recover=all" "${lean[@]}"
  # g++ 12's ThreadSanitizer cannot start under the widest address randomisation of newer kernels.
  fixed_addresses=""
  if setarch -R true 2>/dev/null; then fixed_addresses="setarch -R "; fi
  run_stage thread build-tsan "$fixed_addresses" "unit thread -pure" -Db_sanitize=thread \
    -Doptimization=1 -Dcpp_args=-g1 "${lean[@]}"
fi

# nvcc is often installed without being on PATH.
if nvcc=$(PATH=$PATH:/usr/local/cuda/bin command -v nvcc); then
  suites=cuda archs=90
  if [ $full = yes ]; then archs=80,90; fi
  if [ -e /dev/nvidiactl ]; then suites="cuda gpu"; fi
  PATH=$(dirname "$nvcc"):$PATH like=build run_stage cuda build-cuda "" "$suites" \
    -Dcuda=enabled -Dgpu_arch=$archs
  if [ $quick = no ] && "$nvcc" --version | grep -q "release 1[3-9]"; then
    cuda12=${VOLTAPILE_CUDA12-build-cuda12} # where it lies, or is to be unpacked
    if jobscripts/unpack_cuda12.sh "$cuda12"; then
      PATH=$(realpath "$cuda12")/tk/bin:$PATH like=build run_stage "cuda for Volta" build-volta \
        "" cuda -Dcuda=enabled -Dgpu_arch=70 \
        -Dpng=disabled -Djpeg=disabled # and what may be left out
    else
      stages+=("cuda for Volta=$PWD/build-volta/test-reports")
      mkdir -p build-volta/test-reports
      echo "CUDA 12 could not be unpacked" >build-volta/test-reports/not_run
    fi
  fi
fi

table=()
if [ $full = yes ]; then table=(--markdown docs/RELIABILITY.md --figures "$VOLTAPILE_FIGURES"); fi
python=/usr/bin/python3 # the one that has Debian's h5py and pytest, where there is one
[ -x $python ] || python=$(command -v python3) || {
  say "There is no python3, so Meson could not run either."
  echo "0 passed, 1 failed"
  exit 1
}
"$python" tests/support/count_cases.py "${table[@]}" "${stages[@]}"
