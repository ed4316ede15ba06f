#!/usr/bin/env bash
# A whole federation over TLS on this machine, to try a run before it goes to real silos:
#
#     deploy/local_federation.sh FOLDER [NODES] [PORT]
#
# makes keys in FOLDER, starts a SuperLink and NODES SuperNodes, registers their keys, and waits.
# Ctrl-C stops them all. Runs are started in another terminal with the command it prints.
set -euo pipefail

folder=$(mkdir -p "${1:?usage: deploy/local_federation.sh FOLDER [NODES] [PORT]}" && cd "$1" && pwd)
nodes=${2:-4}
port=${3:-8000}
root=$(cd "$(dirname "$0")/.." && pwd)
bin=${FEDKD_BIN:-$root/.venv/bin}

export PATH="$bin:$PATH" FLWR_HOME="$folder/flwr"
export FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1
export FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1
# How often to look whether there is a process to start; Flower's own is once a second.
export FLWR_SUPEREXEC_TASK_POLL_INTERVAL=0.2

started=()
trap 'trap - EXIT INT TERM; kill "${started[@]}" 2>/dev/null; wait' EXIT INT TERM

names=()
for ((n = 0; n < nodes; n++)); do names+=(--node "node-$n"); done
python "$root/deploy/make_keys.py" "$folder/keys" "${names[@]}"

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
started+=($!)
until flwr supernode list local >/dev/null 2>&1; do
    kill -0 "${started[0]}" || { tail -5 "$folder/superlink.log"; exit 1; }
    sleep 1
done

for ((n = 0; n < nodes; n++)); do
    # A key that an earlier call has registered is refused, and may stay as it is.
    flwr supernode register "$folder/keys/node-$n.pub" local || true
    flower-supernode --superlink "127.0.0.1:$port" --port $((port + 1 + n)) \
        --root-certificates "$folder/keys/ca.crt" \
        --auth-supernode-private-key "$folder/keys/node-$n" \
        --node-config "partition-id=$n state-dir=\"$folder/state-$n\" models-dir=\"$folder/models-$n\"" \
        >"$folder/node-$n.log" 2>&1 &
    started+=($!)
done

# One thread a node, since they share the cores; a node without any is taken for dead.
echo "Ready. In another terminal, from $root:"
echo "  FLWR_HOME=$FLWR_HOME $bin/flwr run . local --stream -c 'num-clients=$nodes torch-threads=1 output-dir=\"$folder/run\"'"
wait
