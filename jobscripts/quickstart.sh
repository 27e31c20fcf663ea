#!/usr/bin/env bash
# Installs what is missing, builds, and trains a small Vision Transformer on Fashion-MNIST with four
# ranks. Safe to run again: an unfinished run goes on, a finished one says so.
set -euo pipefail

if [ "${1:-}" = -h ] || [ "${1:-}" = --help ]; then
  cat <<'END'
usage: jobscripts/quickstart.sh [options of `voltapile train`]

  --fresh                     start over in a new numbered folder under runs/
  --set section.key=value     change the deck, for example --set run.seed=2

Installs missing packages (apt; says which first), builds into build/, trains
input_decks/quickstart.toml under mpirun and says what to try next.
END
  exit 0
fi

cd "$(dirname "${BASH_SOURCE[0]}")/.."
. jobscripts/setup.sh
. jobscripts/env_workstation.sh

deck=input_decks/quickstart.toml
voltapile=build/src/voltapile

# Without apt or root the libraries may be there all the same: Meson finds out.
install_packages "${voltapile_packages[@]}" || say "Going on with what this machine has."
configure build
say "Building (minutes the first time, seconds later)"
if ! ninja -C build src/voltapile >build/ninja.log 2>&1; then
  cat build/ninja.log >&2
  say "The build failed; the compiler's messages are above."
  exit 1
fi

changes=() # what changes the deck, and so perhaps the ranks it needs
for argument in "$@"; do [ "$argument" = --fresh ] || changes+=("$argument"); done
ranks=$("$voltapile" ranks "$deck" ${changes[@]+"${changes[@]}"})
command="mpirun -n $ranks $voltapile train $deck"
say "$command $*"
code=0
mpirun -n "$ranks" "$voltapile" train "$deck" "$@" || code=$?
case $code in
  0) ;;
  75) say "Stopped early; the same command goes on from the checkpoint." ;;
  *) say "Training ended with exit code $code (see: $voltapile --help)." ;;
esac
[ $code = 0 ] || exit $code

cat <<END

On your own, from this folder:
  . jobscripts/env_workstation.sh           # MPI on few cores; once in a shell
  $voltapile plan $deck
The same training on another mesh, with the same losses up to rounding:
  $command --fresh --set parallel.pipeline=1 --set parallel.tensor=2
END
