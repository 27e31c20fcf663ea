# shellcheck shell=bash
# An example for sites with environment modules (Lmod, Tcl modules). Copy it, edit the names, and
#   export VOLTAPILE_ENV=/path/to/my_env.sh
# before `voltapile submit` or sbatch: every job sources it first. Source it before building too, so
# that the program runs with the libraries that it was built with.

# Lmod's function is not there in every batch shell.
# shellcheck disable=SC1091 # on the user's machine
type module >/dev/null 2>&1 || . /etc/profile.d/modules.sh

module purge
module load gcc/12       # C++20; 11 or later
module load cuda/12.4    # 12.x for a V100 (CUDA 13 has no sm_70), 12 or 13 for later GPUs
module load openmpi/4.1  # with threads: ompi_info | grep -i thread
module load hdf5/1.14    # the serial build
module load python/3.11  # sweep tables only

# What modules do not name. Keep these few; run_rank.sh has the defaults that suit every node.
export PATH="$HOME/voltapile/build/src:$PATH"
# More than one network? Name the fast one's interface for NCCL's first handshake:
# export NCCL_SOCKET_IFNAME=ib0
# srun finds no PMIx, or another than Open MPI was built for:
# export VOLTAPILE_LAUNCHER=mpirun
