#!/bin/sh
# Machines that ssh reaches, without a scheduler: parallel-ssh writes what each one printed into a file of
# its name, then one report.  pssh.sh hosts.txt [OUT]
# hosts.txt has one host a line; a second column is its rack, and pssh gets the first one only.
#
# Codes of the report: 0 good, 1 a node failed, is slow or is missing, 3 cannot tell.
set -u
hosts="${1:?the file of hosts}"
out="${2:-gpucheck-fleet}"
mkdir -p "$out"

awk '{ sub(/#.*/, "") } NF { print $1 }' "$hosts" > "$out/hosts"
# A host that does not answer within its time is missing in the report; pssh's own code says no more.
parallel-ssh --hosts="$out/hosts" --par=64 --timeout=180 --outdir="$out/answers" \
    "timeout --kill-after=10 120 gpucheck detect --json" > "$out/pssh.log" || true

# pssh names the files after the hosts alone, and the report takes documents by their suffix.
for file in "$out"/answers/*; do
    case "$file" in
        *.json | *'*') ;;
        *) mv "$file" "$file.json" ;;
    esac
done
exec gpucheck fleet report "$out/answers" --expect "@$hosts"
