# shellcheck shell=sh
# Open MPI on one machine with few cores, perhaps as root in a container. Source it before mpirun:
#   . jobscripts/env_workstation.sh
# It sets only what is not set already. Not for a cluster, whose ranks have cores of their own.

set_default() { eval "export $1=\"\${$1-$2}\""; }

# More ranks than cores: let them share, bind none, and yield while waiting.
set_default OMPI_MCA_rmaps_base_oversubscribe 1
set_default OMPI_MCA_hwloc_base_binding_policy none
set_default OMPI_MCA_mpi_yield_when_idle 1
# Shared memory only. Single-copy needs ptrace, which containers forbid.
set_default OMPI_MCA_btl self,vader
set_default OMPI_MCA_btl_vader_single_copy_mechanism none
# The cause of a failure stays the last thing on the screen.
set_default OMPI_MCA_orte_execute_quiet 1
if [ "$(id -u)" = 0 ]; then
  set_default OMPI_ALLOW_RUN_AS_ROOT 1
  set_default OMPI_ALLOW_RUN_AS_ROOT_CONFIRM 1
fi

unset -f set_default
