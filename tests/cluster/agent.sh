#!/bin/sh
# What mpirun takes for ssh on the head of a cluster: agent.sh [OPTION...] HOST COMMAND...
set -eu
while [ "${1#-}" != "$1" ]; do shift; done
host=$1
shift
pid=
for pair in $CLUSTER_HOSTS; do
    [ "${pair%=*}" != "$host" ] || pid=${pair#*=}
done
if [ -z "$pid" ]; then
    echo "agent.sh: there is no host $host among $CLUSTER_HOSTS" >&2
    exit 255
fi
export TMPDIR="$CLUSTER_FOLDER/$host"
exec nsenter --target "$pid" --net --uts --ipc --mount --pid sh -c "$*"
