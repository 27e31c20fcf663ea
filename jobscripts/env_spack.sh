# shellcheck shell=bash
# An example for libraries from Spack, in a Spack of your own or the site's. Copy it, edit it, and
#   export VOLTAPILE_ENV=/path/to/my_env.sh
# before `voltapile submit` or sbatch. Once, on a node that has a network, in the top folder:
#
#   spack repo add packaging/spack_repo/voltapile        # Spack 1.0 or later
#   spack env create voltapile
#   spack -e voltapile add voltapile@main +cuda cuda_arch=70 ^cuda@12 ^openmpi schedulers=slurm
#   spack -e voltapile develop --path "$PWD" voltapile@main
#   spack -e voltapile install
#
# Where the site has its own Open MPI, tuned for its network, make it an external (`spack external
# find openmpi`) rather than build another.

# shellcheck disable=SC1091 # on the user's machine
. "${SPACK_ROOT:-$HOME/spack}/share/spack/setup-env.sh"
spack env activate voltapile
