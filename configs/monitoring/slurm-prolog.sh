#!/bin/bash
# Slurm: keep a job off a node whose GPUs broke since the last health check. In slurm.conf:
#   Prolog=/etc/slurm/slurm-prolog.sh
#
# With a code other than 0 Slurm drains the node and puts the job back into the queue, held. So only a
# certain fault counts. The reason is given first: Slurm's own would only be "Prolog error". Otherwise no
# command of Slurm's is called: each job waits for its prolog.
# Codes: 0 good, 1 bad, 2 wrong use, 3 cannot tell, 4 something is missing.
gpucheck=${GPUCHECK:-/usr/local/bin/gpucheck}
PATH=$PATH:/usr/local/bin:/usr/bin:/bin

line=$(timeout 20 "$gpucheck" detect --quick --format line)
[ "$?" -eq 1 ] || exit 0
scontrol update nodename="${SLURMD_NODENAME:-$(hostname -s)}" state=drain reason="gpucheck: $line"
exit 1
