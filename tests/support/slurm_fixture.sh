#!/usr/bin/env bash
# A real Slurm on one machine, without systemd: munged, slurmctld and slurmd of its own, with
# pretended CPUs and GPUs, a preemptible partition `low` and a partition `high` above it.
# More nodes than one are network namespaces, joined by a bridge: each has a name, an address and a
# /dev/shm of its own, and shares the files, as the nodes of a cluster do.
#
#   slurm_fixture.sh start FOLDER   writes FOLDER/env.sh, to be sourced by whoever uses it
#   slurm_fixture.sh stop FOLDER    ends exactly the processes that start began
#
# FOLDER is absolute and short: sockets lie in it. Needs root, slurm-wlm, slurm-client and munge;
# for several nodes iproute2 and the right to make networks.
# SLURM_FIXTURE_CPUS (8) and SLURM_FIXTURE_GPUS (4) are what a node pretends to have,
# SLURM_FIXTURE_NODES (1) is how many there are.
set -euo pipefail

command=${1:?start or stop} folder=${2:?a folder}
cpus=${SLURM_FIXTURE_CPUS:-8} gpus=${SLURM_FIXTURE_GPUS:-4} count=${SLURM_FIXTURE_NODES:-1}
host=$(uname -n)
host=${host%%.*}
nodes=("$host")
# Interfaces may have 15 characters, so a folder's are named after its digest.
network=vp$(cksum <<<"$folder" | cut -d ' ' -f 1)
network=${network:0:9}
subnet=''

# wait_for SECONDS COMMAND...
wait_for() {
  local tries=$(($1 * 20))
  shift
  for ((; tries > 0; --tries)); do
    if "$@" >/dev/null 2>&1; then return 0; fi
    sleep 0.05
  done
  return 1
}

# Where nobody waits for orphans (a container), an ended process stays as a zombie.
gone() { ! kill -0 "$1" 2>/dev/null || grep -q '^State:.Z' "/proc/$1/status"; }

stop() {
  if [ -s "$folder/slurmctld.pid" ]; then
    # No job may outlive its daemon, nor come back while it ends.
    (
      # shellcheck disable=SC1091 # written by start
      . "$folder/env.sh"
      # shellcheck disable=SC2317 # called by wait_for
      no_job() { timeout 5 scancel --user root && [ -z "$(timeout 5 squeue -h)" ]; }
      wait_for 20 no_job
    ) 2>/dev/null || true
  fi
  local file process name
  for file in "$folder"/slurmd-*.pid "$folder"/{slurmctld,munge/munged}.pid; do
    [ -s "$file" ] || continue
    process=$(cat "$file")
    kill "$process" 2>/dev/null || true
    wait_for 5 gone "$process" || kill -9 "$process" 2>/dev/null || true
    rm -f "$file"
  done
  if [ -s "$folder/network" ]; then
    while read -r name; do ip netns delete "$name" || true; done <"$folder/network"
    ip link delete "${network}b" || true
    rm -f "$folder/network"
  fi
}

# A bridge, and a namespace with an address on it for each node: SUBNET.1, SUBNET.11, ...
start_network() {
  local i space
  for ((i = 1; i < 255; ++i)); do
    subnet=10.77.$i
    [ -n "$(ip -o address show to "$subnet.0/24")" ] || break
  done
  nodes=()
  ip link add "${network}b" type bridge
  ip address add "$subnet.1/24" dev "${network}b"
  ip link set "${network}b" up
  printf '127.0.0.1 localhost\n%s.1 %s\n' "$subnet" "$host" >"$folder/hosts"
  for ((i = 0; i < count; ++i)); do
    space=${network}n$i
    ip netns add "$space"
    echo "$space" >>"$folder/network"
    ip link add "${network}v$i" type veth peer name eth0 netns "$space"
    ip link set "${network}v$i" master "${network}b" up
    ip -n "$space" address add "$(address_of $i)/24" dev eth0
    ip -n "$space" link set eth0 up
    ip -n "$space" link set lo up
    nodes+=("node$i")
    echo "$(address_of $i) node$i" >>"$folder/hosts"
  done
}

address_of() { [ "$count" = 1 ] && echo 127.0.0.1 || echo "$subnet.$((11 + $1))"; }

start_node() { # NUMBER
  if [ "$count" = 1 ]; then
    slurmd -f "$folder/slurm.conf"
    return
  fi
  # Not by `ip netns exec`, whose new /sys has no control groups.
  # shellcheck disable=SC2016 # for the inner shell
  nsenter --net="/run/netns/${network}n$1" unshare --uts --mount sh -e -c '
    hostname "$1"
    mount -t tmpfs none /dev/shm
    mount --bind "$2/hosts" /etc/hosts
    slurmd -f "$2/slurm.conf"' sh "node$1" "$folder"
}

# Two ports in a row that nobody listens on.
free_ports() {
  local port
  for ((port = 27000 + RANDOM % 4000; port < 32000; port += 2)); do
    if ! (: <"/dev/tcp/127.0.0.1/$port") 2>/dev/null &&
      ! (: <"/dev/tcp/127.0.0.1/$((port + 1))") 2>/dev/null; then
      echo "$port"
      return
    fi
  done
  return 1
}

start_munge() {
  mkdir -p "$folder/munge"
  head -c 1024 /dev/urandom >"$folder/munge/key"
  chmod 400 "$folder/munge/key"
  chown -R munge:munge "$folder/munge"
  chmod 755 "$folder/munge" # munged refuses a folder that others may write into
  setpriv --reuid munge --regid munge --clear-groups munged --key-file="$folder/munge/key" \
    --socket="$folder/munge/socket" --pid-file="$folder/munge/munged.pid" \
    --log-file="$folder/munge/munged.log" --seed-file="$folder/munge/seed" --num-threads=2
  wait_for 5 test -s "$folder/munge/munged.pid"
}

write_configuration() {
  local port gres='' g i names
  names=$(IFS=, && echo "${nodes[*]}")
  port=$(free_ports)
  if [ "$gpus" -gt 0 ]; then
    mkdir -p "$folder/dev"
    # slurmd wants character devices; these stand for /dev/nvidiaN.
    for ((g = 0; g < gpus; g++)); do mknod "$folder/dev/nvidia$g" c 1 3; done
    gres="Gres=gpu:v100:$gpus"
    printf 'AutoDetect=off\nName=gpu Type=v100 File=%s/dev/nvidia[0-%d]\n' \
      "$folder" $((gpus - 1)) >"$folder/gres.conf"
  fi
  printf 'CgroupAutomount=no\n' >"$folder/cgroup.conf"
  cat >"$folder/slurm.conf" <<END
ClusterName=fixture
SlurmctldHost=$host(${subnet:-127.0.0}.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
# A requeued job waits for as long as a credential lasts.
AuthInfo=socket=$folder/munge/socket,cred_expire=5
CredType=cred/munge
SlurmctldPort=$port
SlurmdPort=$((port + 1))
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd-%n.pid
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool/%n
TmpFS=$folder/tmp/%n
SlurmctldLogFile=$folder/log/slurmctld.log
SlurmdLogFile=$folder/log/slurmd-%n.log
GresTypes=gpu
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=0,bf_interval=1
# A node is what its line below says, whatever the machine has.
SlurmdParameters=config_overrides
ReturnToService=2
JobRequeue=1
KillWait=5
MinJobAge=600
InactiveLimit=0
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
# Otherwise a preempted job's script hears nothing.
SlurmctldParameters=preempt_send_user_signal
SlurmdTimeout=10
DefMemPerCPU=256
PartitionName=low Nodes=$names Default=YES MaxTime=60 PriorityTier=1 GraceTime=20
PartitionName=high Nodes=$names MaxTime=60 PriorityTier=10 PreemptMode=OFF
END
  for ((i = 0; i < count; ++i)); do
    printf 'NodeName=%s NodeAddr=%s CPUs=%s RealMemory=64000 %s State=UNKNOWN\n' \
      "${nodes[i]}" "$(address_of $i)" "$cpus" "$gres" >>"$folder/slurm.conf"
    mkdir -p "$folder/spool/${nodes[i]}" "$folder/tmp/${nodes[i]}"
    chmod 1777 "$folder/tmp/${nodes[i]}"
  done
  cat >"$folder/env.sh" <<END
export SLURM_CONF=$folder/slurm.conf
export PMIX_MCA_gds=hash PMIX_MCA_psec=native
END
  # Nodes share no memory.
  [ "$count" = 1 ] || echo "export OMPI_MCA_btl=self,vader,tcp" >>"$folder/env.sh"
}

start() {
  rm -rf "${folder:?}"/{state,spool,log,munge,tmp,dev}
  mkdir -p "$folder"/{state,spool,log,tmp}
  chmod 755 "$folder"
  [ "$count" = 1 ] || start_network
  start_munge
  write_configuration
  # shellcheck disable=SC1091 # written just now
  . "$folder/env.sh"
  slurmctld -f "$folder/slurm.conf"
  local i
  for ((i = 0; i < count; ++i)); do start_node "$i"; done
  if ! wait_for 20 sh -c "sinfo -h -o '%T %D' | grep -qx 'idle $count'"; then
    tail -n 20 "$folder"/log/* >&2
    echo "Slurm did not come up; its logs are above." >&2
    return 1
  fi
}

case $command in
  start)
    stop
    start
    ;;
  stop) stop ;;
  *) echo "usage: slurm_fixture.sh start|stop FOLDER" >&2 && exit 2 ;;
esac
