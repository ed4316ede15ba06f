#!/usr/bin/env bash
# Start a federation over TLS on this machine, to try a run before a real deployment:
#
#     deploy/local_federation.sh FOLDER [NODES] [PORT]    start it and wait; Ctrl-C stops everything
#     deploy/local_federation.sh FOLDER restart N         in another terminal: restart node N
#     deploy/local_federation.sh FOLDER stop              in another terminal: stop everything
#
# The script makes keys in FOLDER, starts a SuperLink and NODES SuperNodes, and registers their keys.
# Start runs in another terminal with the command that it prints. No environment has to be activated:
# programs are taken from FEDKD_BIN, from .venv beside this folder, or from the PATH.
# Nodes are started by `fedkd start-node`, and execute this folder's code as it is at the start.
#
# These nodes trust the server, and share the data set of the run. To rehearse a deployment, give
# them another node config in NODE_CONFIG; %n in it becomes the number of the node:
#     NODE_CONFIG='data-path="/tmp/hospitals/hospital-%n" epsilon-budget=inf' deploy/local_federation.sh …
set -euo pipefail
# Keys, database, runs and models are for this user alone.
umask 077

folder=$(mkdir -p "${1:?usage: deploy/local_federation.sh FOLDER [NODES] [PORT] | restart N | stop}" && cd "$1" && pwd)
root=$(cd "$(dirname "$0")/.." && pwd)
bin=${FEDKD_BIN:-$root/.venv/bin}
if [ ! -x "$bin/flower-superlink" ]; then
    found=$(command -v flower-superlink) || {
        echo "There is no flower-superlink in $bin nor on the path; run 'uv sync' in $root, or set FEDKD_BIN." >&2
        exit 1
    }
    bin=$(dirname "$found")
fi

export PATH="$bin:$PATH" FLWR_HOME="$folder/flwr"
export FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1
export FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1
# Seconds between the SuperLink's checks for new processes; Flower's default is 1.
export FLWR_SUPEREXEC_TASK_POLL_INTERVAL=${FLWR_SUPEREXEC_TASK_POLL_INTERVAL:-0.2}

config=${NODE_CONFIG:-trust-server=true}
# A node is restarted as the federation was started.
if [ "${2:-}" = restart ] && [ -f "$folder/node-config" ]; then
    config=$(cat "$folder/node-config")
fi

# Stop the process whose id is in a file of FOLDER, and wait until it has ended.
stop() {
    [ -f "$folder/$1.pid" ] || return 0
    local pid
    pid=$(cat "$folder/$1.pid")
    rm -f "$folder/$1.pid"
    kill "$pid" 2>/dev/null || return 0
    for ((i = 0; i < 200; i++)); do kill -0 "$pid" 2>/dev/null || return 0; sleep 0.1; done
    kill -9 "$pid" 2>/dev/null || true
}

stop_all() {
    local file
    for file in "$folder"/node-*.pid "$folder"/superlink.pid; do
        if [ -f "$file" ]; then stop "$(basename "$file" .pid)"; fi
    done
}

# In a deployment, each operator decides what a node allows (docs/how-to/deploy-operate.md).
start_node() {
    FEDKD_APPROVED_BUNDLES="$folder/approved-bundles" nohup fedkd start-node \
        --superlink "127.0.0.1:$port" \
        --root-certificates "$folder/keys/ca.crt" \
        --auth-supernode-private-key "$folder/keys/node-$1" \
        --node-config "partition-id=$1 num-partitions=$nodes state-dir=\"$folder/state-$1\" models-dir=\"$folder/models-$1\" ${config//%n/$1}" \
        >>"$folder/node-$1.log" 2>&1 &
    echo $! >"$folder/node-$1.pid"
}

case ${2:-} in
stop)
    stop_all
    echo "Stopped. $folder keeps keys, logs and runs; remove it to forget them."
    exit
    ;;
restart)
    n=${3:?which node? restart N}
    port=$(cat "$folder/port") nodes=$(cat "$folder/nodes")
    [ -f "$folder/keys/node-$n" ] || { echo "There is no node $n in $folder." >&2; exit 1; }
    kill -0 "$(cat "$folder/superlink.pid" 2>/dev/null)" 2>/dev/null || {
        echo "No federation runs in $folder." >&2
        exit 1
    }
    stop "node-$n"
    start_node "$n"
    echo "Node $n is started again, process $(cat "$folder/node-$n.pid"); its log is $folder/node-$n.log"
    exit
    ;;
esac

nodes=${2:-4}
port=${3:-8000}
if [ -f "$folder/superlink.pid" ] && kill -0 "$(cat "$folder/superlink.pid")" 2>/dev/null; then
    echo "A federation runs in $folder already; $0 $folder stop ends it." >&2
    exit 1
fi
echo "$port" >"$folder/port"
echo "$nodes" >"$folder/nodes"
echo "$config" >"$folder/node-config"
trap 'trap - EXIT INT TERM; stop_all; wait' EXIT INT TERM

names=()
for ((n = 0; n < nodes; n++)); do names+=(--node "node-$n"); done
python "$root/deploy/make_keys.py" "$folder/keys" "${names[@]}"

(cd "$folder" && rm -f ./*.fab && flwr build --app "$root" >/dev/null)
fedkd bundles approve "$folder"/*.fab --list "$folder/approved-bundles"

mkdir -p "$FLWR_HOME"
cat >"$FLWR_HOME/config.toml" <<EOF
[superlink]
default = "local"

[superlink.local]
address = "127.0.0.1:$port"
root-certificates = "$folder/keys/ca.crt"
EOF

flower-superlink --host 127.0.0.1 --port "$port" \
    --ssl-ca-certfile "$folder/keys/ca.crt" --ssl-certfile "$folder/keys/server.crt" \
    --ssl-keyfile "$folder/keys/server.key" --enable-supernode-auth \
    --database "$folder/superlink.db" >"$folder/superlink.log" 2>&1 &
echo $! >"$folder/superlink.pid"
until flwr supernode list local >/dev/null 2>&1; do
    kill -0 "$(cat "$folder/superlink.pid")" || { tail -5 "$folder/superlink.log"; exit 1; }
    sleep 1
done

for ((n = 0; n < nodes; n++)); do
    # A key that is already registered is refused, which does no harm.
    flwr supernode register "$folder/keys/node-$n.pub" local || true
    start_node "$n"
done

# One thread per node, since they share the cores; a starved node misses its heartbeats.
echo "Ready. In another terminal:"
echo "  FLWR_HOME=$FLWR_HOME $bin/fedkd run --engine deployment:local -c torch-threads=1 -c output-dir=$folder/run"
echo "Restart node N: $0 $folder restart N"
echo "Stop everything: Ctrl-C here, or $0 $folder stop"
# The federation ends with the SuperLink; nodes may be restarted.
wait "$(cat "$folder/superlink.pid")"
