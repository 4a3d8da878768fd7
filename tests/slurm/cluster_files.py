"""The configuration of the test cluster: files with gaps for its folder, ports and numbers of
GPUs.
"""

SLURM_CONF = """\
ClusterName=bed
SlurmctldHost=head(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CryptoType=crypto/munge
# a requeued job waits until its old credential has expired; a job whose launch takes longer, on a
# busy machine, fails
AuthInfo=socket={folder}/munge.sock,cred_expire=20
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/spool/%n.pid
SlurmctldLogFile={folder}/log/slurmctld.log
SlurmdLogFile={folder}/log/%n.log
MailProg=/bin/true
MpiDefault=none
SwitchType=switch/none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
TaskProlog={folder}/etc/task_prolog
JobAcctGatherType=jobacct_gather/none
# slurmd trusts the sizes below instead of the machine's own
SlurmdParameters=config_overrides
ReturnToService=2
SlurmctldTimeout=30
SlurmdTimeout=300
# a busy machine may take its time
BatchStartTimeout=300
UnkillableStepTimeout=600
KillWait=30
CompleteWait=0
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,bf_interval=1,sched_interval=2,sched_min_interval=100000
MinJobAge=300
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
GresTypes=gpu
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
JobRequeue=1
# a job that names no memory would take all of a node's
DefMemPerCPU=100
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort={ports[1]}
AccountingStoragePass={folder}/munge.sock
AccountingStoreFlags=job_comment
AccountingStorageTRES=gres/gpu
NodeName=g1 NodeAddr=127.0.0.1 Port={ports[2]} CPUs=32 RealMemory=64000 Gres=gpu:a100:{gpus} \\
  Feature=gpu
NodeName=g2 NodeAddr=127.0.0.1 Port={ports[3]} CPUs=32 RealMemory=64000 Gres=gpu:h100:{gpus} \\
  Feature=gpu
NodeName=c1 NodeAddr=127.0.0.1 Port={ports[4]} CPUs=32 RealMemory=64000
PartitionName=DEFAULT DefaultTime=5 MaxTime=2-0 State=UP
PartitionName=cpu      Nodes=c1    PriorityTier=10 PreemptMode=OFF Default=YES
PartitionName=gpu      Nodes=g1,g2 PriorityTier=10 PreemptMode=OFF
PartitionName=requeued Nodes=g1,g2 PriorityTier=1  PreemptMode=REQUEUE GraceTime=0
PartitionName=ended    Nodes=g1,g2 PriorityTier=1  PreemptMode=CANCEL GraceTime=0
PartitionName=warned   Nodes=g1,g2 PriorityTier=1  PreemptMode=CANCEL GraceTime=5
"""
GRES_CONF = """\
NodeName=g1 Name=gpu Type=a100 File={folder}/devices/g1-nvidia[0-{last}]
NodeName=g2 Name=gpu Type=h100 File={folder}/devices/g2-nvidia[0-{last}]
"""
SLURMDBD_CONF = """\
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock
DbdHost=head
DbdAddr=127.0.0.1
DbdPort={ports[1]}
CommunicationParameters=NoInAddrAny
SlurmUser=root
LogFile={folder}/log/slurmdbd.log
PidFile={folder}/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=root
StorageLoc=slurm
"""
# A tmpdir of its own: at its start a server removes temporary tables that it finds, others' too.
MARIADB_CONF = """\
[mysqld]
tmpdir={folder}
datadir={folder}/database
socket={folder}/mariadb.sock
pid-file={folder}/mariadb.pid
log-error={folder}/log/mariadbd.log
skip-networking
skip-log-bin
user=root
innodb_buffer_pool_size=64M
innodb_log_file_size=16M
innodb_lock_wait_timeout=900
innodb_flush_log_at_trx_commit=0
performance_schema=OFF
"""
# What a site's prolog does where SLURM_TMPDIR is offered: each node has a folder that no other node
# sees.
TASK_PROLOG = """\
#!/bin/sh
eval "echo export SLURM_TMPDIR=$(cat {folder}/etc/scratch)"
"""
# First process of a daemon's namespaces: bash, because it reaps the orphans that slurmstepd leaves.
INIT = """\
mount --bind "$1/etc" /etc/slurm && mount --bind "$1/etc/hosts" /etc/hosts || exit 1
hostname "$2" || exit 1
shift 2
"$@" &
wait $!
"""
