#!/usr/bin/env bash
# A whole Slurm on this one machine, for tests: munge, accounting (MariaDB, slurmdbd), slurmctld, two emulated nodes.
# Runs as root on Debian or Ubuntu, without systemd; what is not installed comes by apt-get.
#
#     tests/slurm/cluster.sh up | down | status        up on a cluster that is up changes nothing
#
# Partition high preempts partition main. Everything but Slurm's own configuration lies below $CLUSTER_DIR.
set -euo pipefail

CLUSTER_DIR=${CLUSTER_DIR:-/var/tmp/asyncpp-slurm}
NODES=(sim1 sim2)
CPUS=4   # of each node, whatever the machine has: tests want jobs to run side by side
ETC=/etc/slurm
SOCKET=$CLUSTER_DIR/mysql/socket

die() { echo "error: $*" >&2; tail -n 5 "$CLUSTER_DIR"/log/* 2>/dev/null >&2 || true; exit 1; }

# wait_until <seconds> <command...>
wait_until() {
  local deadline=$((SECONDS + $1)); shift
  until "$@" >/dev/null 2>&1; do
    [ $SECONDS -lt $deadline ] || die "gave up waiting for: $*"
    sleep 0.1
  done
}

# runs <name>: whether the daemon whose number stands in its pid file is alive
runs() {
  local number
  number=$(cat "$CLUSTER_DIR/pid/$1" 2>/dev/null) || return 1
  [ "$(cat "/proc/$number/comm" 2>/dev/null)" = "${1%%.*}" ]
}

nodes_are_up() { [ "$(sinfo --noheader --Node --partition=main --states=idle,mixed,allocated --format=%N | wc -l)" -eq ${#NODES[@]} ]; }

install_packages() {
  local program missing=no
  for program in munged slurmctld slurmd slurmdbd mariadbd squeue; do
    command -v $program >/dev/null || missing=yes
  done
  [ $missing = no ] && return
  [ "$(id -u)" = 0 ] || die "expected root, to install Slurm"
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -qq
  apt-get install -y -qq --no-install-recommends munge slurmctld slurmd slurm-client slurmdbd mariadb-server >/dev/null
}

write_configuration() {
  mkdir -p $ETC
  # Without cred_expire (5 s are its least) a requeued job waits two minutes. Without preempt_send_user_signal and a grace time, a preempted
  # job is killed without a word. Slurm knows what became of a killed or cancelled job only with accounting.
  cat >$ETC/slurm.conf <<CONF
ClusterName=asyncpp
SlurmctldHost=$(hostname -s)(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthInfo=cred_expire=5
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmctldParameters=preempt_send_user_signal
SchedulerParameters=sched_interval=1,bf_interval=1,sched_min_interval=50000,batch_sched_delay=0
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
JobAcctGatherType=jobacct_gather/none
JobRequeue=1
KillWait=5
ReturnToService=2
SlurmdParameters=config_overrides
StateSaveLocation=$CLUSTER_DIR/state
SlurmdSpoolDir=$CLUSTER_DIR/spool/%n
SlurmctldLogFile=$CLUSTER_DIR/log/slurmctld
SlurmdLogFile=$CLUSTER_DIR/log/slurmd.%n
SlurmctldPidFile=$CLUSTER_DIR/pid/slurmctld
SlurmdPidFile=$CLUSTER_DIR/pid/slurmd.%n
CONF
  local port=17011 node
  for node in "${NODES[@]}"; do
    echo "NodeName=$node NodeHostname=$(hostname -s) NodeAddr=127.0.0.1 Port=$((port++)) CPUs=$CPUS RealMemory=4000" >>$ETC/slurm.conf
    grep -qw "$node" /etc/hosts || echo "127.0.0.1 $node" >>/etc/hosts
  done
  cat >>$ETC/slurm.conf <<CONF
PartitionName=main Nodes=ALL Default=YES PriorityTier=1 GraceTime=30
PartitionName=high Nodes=ALL PriorityTier=2 PreemptMode=OFF
CONF
  cat >$ETC/slurmdbd.conf <<CONF
AuthType=auth/munge
DbdHost=$(hostname -s)
DbdAddr=127.0.0.1
SlurmUser=root
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=root
LogFile=$CLUSTER_DIR/log/slurmdbd
PidFile=$CLUSTER_DIR/pid/slurmdbd
CONF
  chmod 600 $ETC/slurmdbd.conf
  rm -f $ETC/cgroup.conf $ETC/gres.conf
}

start_munge() {
  munge -n >/dev/null 2>&1 && return
  [ -s /etc/munge/munge.key ] || mungekey --create
  chown -R munge:munge /etc/munge /var/lib/munge /var/log/munge
  chmod 700 /etc/munge && chmod 400 /etc/munge/munge.key
  install -d -o munge -g munge -m 755 /run/munge "$CLUSTER_DIR/munge"
  setpriv --reuid=munge --regid=munge --init-groups munged --force --pid-file="$CLUSTER_DIR/munge/pid"
  ln -sf ../munge/pid "$CLUSTER_DIR/pid/munged"
  wait_until 10 munge -n
}

start_accounting() {
  if ! mariadb-admin --no-defaults --socket="$SOCKET" ping >/dev/null 2>&1; then
    install -d -o mysql -g mysql "$CLUSTER_DIR/mysql"
    [ -d "$CLUSTER_DIR/mysql/data/mysql" ] || mariadb-install-db --no-defaults --user=mysql --skip-test-db \
      --auth-root-authentication-method=socket --datadir="$CLUSTER_DIR/mysql/data" >"$CLUSTER_DIR/log/mysql-install" 2>&1
    setsid mariadbd --no-defaults --user=mysql --datadir="$CLUSTER_DIR/mysql/data" --socket="$SOCKET" --skip-networking \
      --pid-file="$CLUSTER_DIR/mysql/pid" --innodb-buffer-pool-size=64M --innodb-lock-wait-timeout=900 \
      >"$CLUSTER_DIR/log/mariadbd" 2>&1 </dev/null &
    ln -sf ../mysql/pid "$CLUSTER_DIR/pid/mariadbd"
    wait_until 30 mariadb-admin --no-defaults --socket="$SOCKET" ping
    mariadb --no-defaults --socket="$SOCKET" --execute="CREATE DATABASE IF NOT EXISTS slurm_acct_db"
  fi
  runs slurmdbd || MYSQL_UNIX_PORT=$SOCKET slurmdbd
  wait_until 20 sacctmgr --noheader show cluster
  sacctmgr --noheader --parsable2 show cluster | grep -q '^asyncpp|' || sacctmgr --immediate add cluster asyncpp >/dev/null
}

start_slurm() {
  runs slurmctld || slurmctld
  wait_until 20 sinfo
  local node
  for node in "${NODES[@]}"; do
    mkdir -p "$CLUSTER_DIR/spool/$node"
    runs "slurmd.$node" || slurmd -N "$node"
  done
  wait_until 30 nodes_are_up
}

case ${1:-} in
  up)
    install_packages
    [ "$(id -u)" = 0 ] || die "expected root, as whom the daemons run"
    mkdir -p "$CLUSTER_DIR"/{log,pid,spool,state}
    runs slurmctld || write_configuration
    start_munge
    start_accounting
    start_slurm
    sinfo
    ;;
  down)
    scancel --user=root 2>/dev/null || true
    for name in slurmd.sim1 slurmd.sim2 slurmctld slurmdbd mariadbd munged; do
      if runs $name; then
        number=$(cat "$CLUSTER_DIR/pid/$name")
        kill "$number"
        wait_until 30 test ! -d "/proc/$number"
      fi
    done
    ;;
  status)
    sinfo
    squeue
    ;;
  *)
    echo "usage: $0 up | down | status" >&2
    exit 2
    ;;
esac
