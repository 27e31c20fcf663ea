# shellcheck shell=bash
# An example for libraries from Spack, in a Spack of your own or the site's. Copy it, edit it, and
#   export VOLTAPILE_ENV=/path/to/my_env.sh
# before `voltapile submit` or sbatch. Once, on a node that has a network:
#
#   spack env create voltapile
#   spack -e voltapile add gcc@12 meson ninja pkgconf openmpi +cuda schedulers=slurm \
#     hdf5 ~mpi eigen spdlog fmt cli11 nlohmann-json xxhash hwloc zlib googletest
#   spack -e voltapile install
#
# toml++ may be missing there: it is one header, toml++/toml.h, found through CPLUS_INCLUDE_PATH and
# a tomlplusplus.pc on PKG_CONFIG_PATH. Where the site has its own Open MPI, tuned for its network,
# make it an external (`spack external find openmpi`) rather than build another.

# shellcheck disable=SC1091 # on the user's machine
. "${SPACK_ROOT:-$HOME/spack}/share/spack/setup-env.sh"
spack env activate voltapile

export PATH="$HOME/voltapile/build/src:$PATH"
