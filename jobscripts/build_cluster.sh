#!/usr/bin/env bash
# Builds and installs voltapile on a cluster: no root, a folder of your choice, the site's modules
# for compiler, MPI, HDF5 and CUDA, and no network.
set -euo pipefail

usage() {
  cat <<'END'
usage: jobscripts/build_cluster.sh --prefix DIR [--env FILE] [--pack FILE] [-- MESON OPTIONS]
       jobscripts/build_cluster.sh --fetch FILE

  --prefix DIR   install there: bin/voltapile, share/voltapile/{jobscripts,input_decks}
  --env FILE     source it first: modules, as in jobscripts/env_modules.sh; jobs need the same
  --pack FILE    take header libraries, Meson and ninja from here, where the site lacks them
  --fetch FILE   on a machine that has them (jobscripts/setup.sh installs them): write that pack

The CPU kernels are built for x86-64-v3 (AVX2), so that login and compute nodes may differ; for one
kind of node: -- -Dcpu_arch=native on it, or -Dcpu_arch=skylake-avx512.
END
}

say() { printf '%s\n' "$@" >&2; }
die() { say "build_cluster.sh: $1" "${@:2}" && exit 1; }

# Header libraries: pkg-config's name, a header, what to copy from beside it, and the definitions
# that make it do without a library.
libraries=(
  "eigen3|Eigen/Core|Eigen unsupported|"
  "tomlplusplus|toml++/toml.h|toml++|-DTOML_HEADER_ONLY=1"
  "fmt|fmt/core.h|fmt|-DFMT_HEADER_ONLY"
  "spdlog|spdlog/spdlog.h|spdlog|-DSPDLOG_FMT_EXTERNAL"
  "CLI11|CLI/CLI.hpp|CLI|"
  "nlohmann_json|nlohmann/json.hpp|nlohmann|"
  "libxxhash|xxhash.h|xxhash.h xxh3.h|-DXXH_INLINE_ALL"
)

# folder_with PACKAGE HEADER: the include folder that holds it.
folder_with() {
  local folder
  for folder in $(pkg-config --cflags-only-I "$1" 2>/dev/null | sed 's/-I//g') \
    "$(pkg-config --variable=includedir "$1" 2>/dev/null)" /usr/local/include /usr/include; do
    if [ -e "$folder/$2" ]; then
      echo "$folder"
      return
    fi
  done
  return 1
}

# Meson is a Python package: its folder and a line that starts it are all it needs.
pack_tools() { # TARGET
  local meson python package
  mkdir -p "$1"
  meson=$(command -v meson) || return 1
  python=$(sed -n '1s/^#! *\([^ ]*python[^ ]*\).*/\1/p' "$meson")
  package=$("${python:-python3}" -c 'import mesonbuild as m; print(m.__path__[0])')
  cp -rL "$package" "$1/mesonbuild"
  find "$1/mesonbuild" -name __pycache__ -prune -exec rm -rf {} +
  cat >"$1/meson" <<'END'
#!/usr/bin/env python3
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))
from mesonbuild.mesonmain import main

sys.exit(main())
END
  chmod +x "$1/meson"
  cp -L "$(command -v ninja)" "$1/ninja"
}

fetch() { # FILE
  local work entry name header parts flags folder part missing=()
  work=$(mktemp -d)
  # shellcheck disable=SC2064 # now, not when it is gone
  trap "rm -rf '$work'" EXIT
  mkdir -p "$work/pack/include" "$work/pack/lib/pkgconfig"
  for entry in "${libraries[@]}"; do
    IFS='|' read -r name header parts flags <<<"$entry"
    if ! folder=$(folder_with "$name" "$header"); then
      missing+=("$name")
      continue
    fi
    for part in $parts; do
      # Some releases have all in one header.
      [ ! -e "$folder/$part" ] || cp -rL "$folder/$part" "$work/pack/include/"
    done
    cat >"$work/pack/lib/pkgconfig/$name.pc" <<END
prefix=\${pcfiledir}/../..
Name: $name
Description: headers only, packed by build_cluster.sh
Version: $(pkg-config --modversion "$name" 2>/dev/null || echo 0)
Cflags: -I\${prefix}/include $flags
END
  done
  if [ ${#missing[@]} -gt 0 ]; then
    die "not on this machine: ${missing[*]}" "Install them first: bash jobscripts/setup.sh"
  fi
  pack_tools "$work/pack/tools" || say "No Meson here: the pack holds headers only."
  tar -C "$work" -czf "$1" pack
  say "$1: header libraries, Meson and ninja. Copy it to the cluster, then there:" \
    "  jobscripts/build_cluster.sh --prefix DIR --pack $(basename "$1")"
}

prefix='' environment='' pack='' file=''
while [ $# -gt 0 ]; do
  case $1 in
    --prefix | --env | --pack | --fetch)
      [ $# -ge 2 ] || { usage >&2 && exit 2; }
      case $1 in
        --prefix) prefix=$2 ;;
        --env) environment=$2 ;;
        --pack) pack=$(realpath "$2") ;;
        --fetch) file=$2 ;;
      esac
      shift 2
      ;;
    --) shift && break ;;
    -h | --help) usage && exit 0 ;;
    *) usage >&2 && exit 2 ;;
  esac
done
if [ -n "$file" ]; then
  fetch "$file"
  exit 0
fi
[ -n "$prefix" ] || { usage >&2 && exit 2; }

source_folder=$(realpath "$(dirname "${BASH_SOURCE[0]}")/..")
mkdir -p "$prefix" || die "$prefix cannot be made: choose another --prefix"
prefix=$(realpath "$prefix")
share=$prefix/share/voltapile
mkdir -p "$share"
# shellcheck disable=SC1090 # the user's own file
if [ -n "$environment" ]; then . "$environment"; fi
if [ -n "$pack" ]; then
  rm -rf "$share/pack"
  tar -C "$share" -xzf "$pack"
  export PKG_CONFIG_PATH=$share/pack/lib/pkgconfig${PKG_CONFIG_PATH:+:$PKG_CONFIG_PATH}
  export PATH=$PATH:$share/pack/tools # after the site's own
fi
for tool in meson ninja pkg-config "${CXX:-g++}"; do
  command -v "${tool%% *}" >/dev/null ||
    die "no $tool on PATH" "Load its module (--env FILE), or bring a pack (--pack FILE)."
done

build=$share/build
options=(--prefix "$prefix" -Dtests=false -Dcpu_arch=x86-64-v3 "$@")
rm -rf "$build"
if ! meson setup "$build" "$source_folder" "${options[@]}" >"$share/setup.log" 2>&1; then
  cat "$share/setup.log" >&2
  die "the lines above name what is missing" \
    "MPI, HDF5, zlib and CUDA come from modules (--env FILE), the rest from a pack (--pack FILE)."
fi
ninja -C "$build"
meson install -C "$build" --quiet
mkdir -p "$share/jobscripts" "$share/input_decks"
cp -r "$source_folder/jobscripts/." "$share/jobscripts/"
cp -r "$source_folder/input_decks/." "$share/input_decks/"
rm -rf "$build"

"$prefix/bin/voltapile" plan "$share/input_decks/quickstart.toml" >/dev/null ||
  die "$prefix/bin/voltapile does not run here"
say "Installed: $prefix/bin/voltapile" \
  "Next:  export PATH=$prefix/bin:\$PATH${environment:+ VOLTAPILE_ENV=$(realpath "$environment")}" \
  "       voltapile doctor    # on a login node, then in a job" \
  "       voltapile submit DECK"
