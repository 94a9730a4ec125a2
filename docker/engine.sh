#!/usr/bin/env bash
# Make a Docker engine answer on this machine, for CI: install it where there is none (Debian, as root), start it, wait for it.
# Executed on Debian 12 with Docker 20.10. A person with Docker already running needs nothing of this.
set -euo pipefail

engine_answers() { docker info >/dev/null 2>&1; }

if engine_answers; then
    echo "engine: already running"
    exit 0
fi

if ! command -v dockerd >/dev/null; then
    [ "$(id -u)" = 0 ] || { echo "engine: installing Docker needs root: install docker.io, then run this again" >&2; exit 2; }
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends docker.io iptables >/dev/null
fi

# No systemd in a CI container: dockerd is started by hand and outlives this script.
state=${KPERF_ENGINE_STATE:-/var/lib/docker}
log=$state/dockerd.log
mkdir -p "$state"
rm -f /var/run/docker.pid
setsid nohup dockerd --data-root "$state" >"$log" 2>&1 </dev/null &
daemon=$!

for _ in $(seq 100); do
    if engine_answers; then
        echo "engine: started, Docker $(docker version --format '{{.Server.Version}}'), data in $state"
        exit 0
    fi
    kill -0 "$daemon" 2>/dev/null || break
    sleep 0.3
done
echo "engine: dockerd did not come up; the last lines of $log:" >&2
tail -n 25 "$log" >&2
exit 1
