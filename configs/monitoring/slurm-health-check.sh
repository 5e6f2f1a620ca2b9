#!/bin/bash
# Slurm: drain a node whose GPUs are certainly broken. In slurm.conf:
#   HealthCheckProgram=/etc/slurm/slurm-health-check.sh
#   HealthCheckInterval=300
#   HealthCheckNodeState=ANY,CYCLE
#
# Slurm ends it after 60 s and does nothing about its code, so it drains by itself. It always ends with 0:
# slurmd repeats it at its start until it does, and a drained node should register.
# Codes: 0 good, 1 bad, 2 wrong use, 3 cannot tell, 4 something is missing. Only 1 drains: a driver that is
# slow for once would otherwise empty the cluster.
gpucheck=${GPUCHECK:-/usr/local/bin/gpucheck}
node=${SLURMD_NODENAME:-$(hostname -s)}
PATH=$PATH:/usr/local/bin:/usr/bin:/bin

line=$(timeout 50 "$gpucheck" detect --quick --format line)
code=$?
if [ "$code" -eq 1 ]; then
    # A node that is drained keeps its reason: somebody is at work on it.
    shown=$(scontrol --oneliner show node "$node")
    state=${shown#* State=}
    case ${state%% *} in
        *DRAIN*) ;;
        *) scontrol update nodename="$node" state=drain reason="gpucheck: $line" ;;
    esac
elif [ "$code" -ne 0 ]; then
    logger -t gpucheck "code $code, node left as it is: ${line:-no answer}"
fi
exit 0
