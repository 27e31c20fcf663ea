#!/usr/bin/env bash
# Volta's kernels on a later GPU: compiled by CUDA 12 to PTX for sm_70, which the driver of any GPU
# compiles further, they run the conformance tests. So the code path of a V100 is checked where
# there is none. Library products (cuBLASLt, NCCL) are those of the machine that runs the tests.
set -euo pipefail

usage() {
  cat <<'END'
usage: jobscripts/check_volta_ptx.sh --pack FOLDER
       jobscripts/check_volta_ptx.sh FOLDER [FAMILY...]

  --pack FOLDER   with CUDA 12's nvcc first on PATH, no GPU needed: compiles the kernels and puts
                  them and CUDA 12's static runtime into FOLDER (a few megabytes to carry)
  FOLDER          on a machine with a GPU and its own CUDA: links the conformance tests with what
                  --pack left, and runs them, or only the named ones (attention, layer_norm, ...)

The last line counts test cases: `N passed, N failed`.
END
}

cd "$(dirname "${BASH_SOURCE[0]}")/.."
. jobscripts/setup.sh

pack() {
  local folder=$1 build=build-volta-ptx library=cuda_kernels/libvoltapile_cuda.a toolkit
  configure $build -Dcuda=enabled -Dgpu_arch=70 -Dgpu_ptx_only=true -Dcpu_arch=x86-64-v3
  ninja -C $build $library
  toolkit=$(dirname "$(readlink -f "$(command -v nvcc)")")/..
  rm -f "$folder/libvoltapile_cuda.a"
  ar crs "$folder/libvoltapile_cuda.a" $build/$library.p/*.o # Meson's own only names its members
  cp -L "$toolkit/lib64/libcudart_static.a" "$folder/"
  say "Packed: $(du -sh "$folder" | cut -f 1) in $folder"
}

# parts_of PROGRAM: the objects and libraries, one a line, that it is linked of, but the kernels.
parts_of() {
  ninja -C $build -t commands -s "$1" | tail -n 1 | tr ' ' '\n' |
    grep -E '^[^/].*\.[oa]$' | grep -v libvoltapile_cuda.a
}

# link_packed FOLDER PROGRAM: as ninja would, but with the packed kernels and their runtime.
link_packed() {
  local command
  command=$(ninja -C $build -t commands -s "$2" | tail -n 1 |
    sed -E "s| [^ ]*libvoltapile_cuda\.a| $1/libvoltapile_cuda.a|g
      s| [^ ]*libcudart\.so| $1/libcudart_static.a -lrt -lpthread -ldl|g
      s| -o [^ ]+| -o $2.volta|")
  (cd $build && eval "$command")
}

case ${1:-} in
  -h | --help) usage && exit 0 ;;
  --pack)
    [ $# = 2 ] || { usage >&2 && exit 2; }
    mkdir -p "$2"
    pack "$(realpath "$2")"
    exit 0
    ;;
  "" | -*) usage >&2 && exit 2 ;;
esac

folder=$(realpath "$1") build=build-volta-check
shift
families=("$@")
if [ ${#families[@]} = 0 ]; then
  for test in tests/conformance/*_test.cpp; do families+=("$(basename "${test%_test.cpp}")"); done
fi
configure $build -Dcuda=enabled -Donednn=disabled
reports=$PWD/$build/test-reports
rm -rf "$reports"
mkdir -p "$reports"
programs=()
for family in "${families[@]}"; do programs+=("tests/conformance/${family}_conformance"); done
readarray -t parts < <(for program in "${programs[@]}"; do parts_of "$program"; done | sort -u)
say "Building the tests"
if ! ninja -C $build "${parts[@]}" >$build/ninja.log; then
  cat $build/ninja.log >&2
  say "The build failed; the compiler's messages are above."
  exit 1
fi
for program in "${programs[@]}"; do
  link_packed "$folder" "$program"
  sh tests/support/report_case.sh "$reports" "$build/$program.volta" \
    --gtest_brief=1 "--gtest_filter=*cuda*" || true
done

say "" "The machine's own:"
for library in libcublasLt libnccl libcudart; do
  ldd "$build/${programs[0]}.volta" | grep "$library\." >&2 ||
    say "        no $library"
done
python3 tests/support/count_cases.py "volta PTX=$reports"
