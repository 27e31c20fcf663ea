#!/usr/bin/env bash
# Starts one rank, under srun or mpirun: gives it what its node can offer, and writes its exit code
# into a file, since launchers do not tell it apart from the codes of ranks that they ended.
#   run_rank.sh FOLDER COMMAND...
codes=$1
shift

# The launcher's own variables first: mpirun in a Slurm job inherits Slurm's.
first_of() {
  local name
  for name in "$@"; do
    [ -z "${!name:-}" ] || break
  done
  echo "${!name:-0}"
}
rank=$(first_of OMPI_COMM_WORLD_RANK PMIX_RANK PMI_RANK SLURM_PROCID)
local_rank=$(first_of OMPI_COMM_WORLD_LOCAL_RANK MPI_LOCALRANKID SLURM_LOCALID)

set_default() { [ -n "${!1+set}" ] || export "$1=$2"; }
# NCCL's warnings hold the first cause of a failure; by default it is silent.
set_default NCCL_DEBUG WARN
# GPU numbers as nvidia-smi counts them, also where a node has several kinds.
set_default CUDA_DEVICE_ORDER PCI_BUS_ID
# Open MPI's old InfiniBand transport has no support for threads; UCX serves InfiniBand.
set_default OMPI_MCA_btl '^openib'
# Some parallel file systems refuse HDF5's locks. voltapile locks its run folder itself, and
# publishes finished files by rename.
set_default HDF5_USE_FILE_LOCKING FALSE
# A core dump of every rank would fill the disk.
ulimit -S -c 0
# A checkpoint of many ranks is read through as many open files.
ulimit -S -n "$(ulimit -H -n)" 2>/dev/null

# NUMA node of this rank's GPU, or nothing. voltapile gives local rank n the n-th visible GPU.
numa_node_of_gpu() {
  command -v nvidia-smi >/dev/null || return 0
  local visible=() gpu bus node
  if [ -n "${CUDA_VISIBLE_DEVICES:-}" ]; then
    IFS=, read -ra visible <<<"$CUDA_VISIBLE_DEVICES"
  else
    mapfile -t visible < <(nvidia-smi --query-gpu=index --format=csv,noheader 2>/dev/null)
  fi
  [ ${#visible[@]} -gt 0 ] || return 0
  gpu=${visible[local_rank % ${#visible[@]}]}
  bus=$(nvidia-smi -i "$gpu" --query-gpu=pci.bus_id --format=csv,noheader 2>/dev/null) || return 0
  bus=${bus,,} # 00000000:3B:00.0 is the folder 0000:3b:00.0
  node=$(cat "${VOLTAPILE_SYSFS:-/sys}/bus/pci/devices/${bus#0000}/numa_node" 2>/dev/null)
  [ "${node:--1}" -lt 0 ] || echo "$node"
}

# Memory from the node's own half where there is room: a strict binding would end a rank whose
# optimizer state does not fit there.
bound=()
node=$(numa_node_of_gpu)
if [ -n "$node" ]; then
  cpus=$(cat "${VOLTAPILE_SYSFS:-/sys}/devices/system/node/node$node/cpulist")
  if numactl --cpunodebind="$node" --preferred="$node" true 2>/dev/null; then
    bound=(numactl --cpunodebind="$node" --preferred="$node")
  elif taskset -c "$cpus" true 2>/dev/null; then
    bound=(taskset -c "$cpus")
  else
    echo "rank $rank: NUMA node $node of its GPU is closed to this job; it runs unbound" >&2
  fi
fi
# A rank does not outlive this script, nor this script its launcher.
if setpriv --pdeathsig KILL true 2>/dev/null; then bound+=(setpriv --pdeathsig KILL); fi

code=0
"${bound[@]}" "$@" &
child=$!
# Some launchers signal this script alone, others the rank as well; twice does not harm.
trap 'kill -USR1 $child' USR1
trap 'kill -TERM $child' TERM
while :; do
  code=0
  wait $child || code=$?
  # Above 128 a trap may have cut the wait short.
  if [ $code -le 128 ] || ! kill -0 $child 2>/dev/null; then break; fi
done
echo $code >"$codes/rank_$rank"
# A stop on purpose is no failure: the launcher would end the ranks that are still on their way out.
[ $code != 75 ] || code=0
exit $code
