# shellcheck shell=bash
# Installs what the build and the tests need, and builds. Source it from bash, in the top folder;
# run alone it installs and stops:  bash jobscripts/setup.sh

voltapile_packages=(
  g++ pkg-config meson ninja-build
  libopenmpi-dev openmpi-bin libhdf5-dev zlib1g-dev libxxhash-dev libhwloc-dev libdnnl-dev
  libpng-dev libjpeg-dev liburing-dev libeigen3-dev libtomlplusplus-dev libspdlog-dev libfmt-dev
  libcli11-dev nlohmann-json3-dev libgtest-dev python3-pytest python3-h5py
  dataset-fashion-mnist
)

# For the tests of the job scripts, which start a Slurm of their own.
# shellcheck disable=SC2034 # run_tests.sh's
slurm_packages=(slurm-wlm slurm-client munge iproute2)

# One line for each argument.
say() { printf "%s\n" "$@" >&2; }

# install_packages NAME...: the packages of Debian 12 or Ubuntu 24.04 that are not installed yet.
# Returns 1, having said what to do, when they cannot be installed from here.
install_packages() {
  local installed name missing=() as_root=()
  if ! command -v apt-get >/dev/null || ! command -v dpkg-query >/dev/null; then
    say "No apt here, so nothing is installed. Needed, as modules or packages of this machine:" \
      "a C++20 compiler, Meson 1.0, ninja, MPI, HDF5 (serial), Eigen 3.4, toml++ 3, spdlog, fmt," \
      "CLI11, nlohmann-json, xxHash, hwloc, zlib, GoogleTest; oneDNN, liburing, libpng and" \
      "libjpeg are optional." \
      "Python with h5py and pytest serves the tests, Fashion-MNIST (four gzipped IDX files) the" \
      "quickstart."
    return 1
  fi
  installed=$(dpkg-query -W -f '${db:Status-Status} ${Package}\n' "$@" 2>/dev/null || true)
  for name in "$@"; do
    grep -qxF "installed $name" <<<"$installed" || missing+=("$name")
  done
  [ ${#missing[@]} -gt 0 ] || return 0

  local line="apt-get install --no-install-recommends ${missing[*]}"
  if [ "$(id -u)" != 0 ]; then
    # With no terminal to ask on, only a sudo that needs no password helps.
    if command -v sudo >/dev/null && { [ -t 0 ] || sudo -n true 2>/dev/null; }; then
      as_root=(sudo)
    else
      say "Missing packages, and no way to become root here. Ask for:" "" "  sudo $line" ""
      return 1
    fi
  fi
  say "Installing by apt, with what they depend on (a few minutes the first time):" \
    "  ${missing[*]}"
  local log quiet=(env DEBIAN_FRONTEND=noninteractive apt-get -qq -o Dpkg::Use-Pty=0)
  log=$(mktemp)
  # The lists of packages are fetched once, whoever else sources this later on.
  if ! { { [ -n "${apt_lists_fetched-}" ] || "${as_root[@]}" "${quiet[@]}" update; } &&
    export apt_lists_fetched=1 &&
    "${as_root[@]}" "${quiet[@]}" install -y --no-install-recommends "${missing[@]}"; } \
    >"$log" 2>&1; then
    tail -n 20 "$log" >&2
    say "The installation failed; its last lines are above, all of them in $log. By hand:" \
      "  sudo $line"
    return 1
  fi
  rm -f "$log"
}

# configure FOLDER [MESON OPTIONS]: once; ninja keeps it up to date from then on.
configure() {
  local folder=$1
  shift
  [ -f "$folder/build.ninja" ] && return 0
  say "Configuring $folder"
  if ! meson setup "$folder" "$@" >"$folder.log" 2>&1; then
    cat "$folder.log" >&2
    say "Configuring $folder failed: the last lines above name what is missing."
    return 1
  fi
  mv "$folder.log" "$folder/setup.log"
}

if [ "${BASH_SOURCE[0]}" = "$0" ]; then
  install_packages "${voltapile_packages[@]}"
fi
