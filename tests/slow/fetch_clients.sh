#!/bin/sh
# Makes the environment of the programs that the slow tests run against the emulator: fetch_clients.sh PYTHON FOLDER.
# Without a network that is no failure: the reason is left in FOLDER.failed and the tests are skipped with it.
set -eu
PYTHON=$1 FOLDER=$2
ZEUS='zeus==0.16.0' # alone: what its Jetson reader imports is below, the rest of what it asks for is 400 MB
OTHERS='jetson-stats==7.2.2 smbus2==0.6.1 distro==1.9.0 nvidia-ml-py==13.615.71 amdsmi==7.0.2 httpx==0.28.1'
CODECARBON='codecarbon==3.3.2' # for `wattune bench monitors` only, which says `absent` without it

codecarbon() {
    [ "$(cat "$FOLDER/.codecarbon" 2>/dev/null)" != "$CODECARBON" ] || return 0
    if "$FOLDER/bin/python" -m pip install --quiet "$CODECARBON" >>"$FOLDER.log" 2>&1; then
        echo "$CODECARBON" >"$FOLDER/.codecarbon"
    fi
}

if [ "$(cat "$FOLDER/.ready" 2>/dev/null)" = "$OTHERS $ZEUS" ]; then
    codecarbon
    exit 0
fi
echo "Fetching jetson-stats and Zeus into $FOLDER ..."
rm -rf "$FOLDER" "$FOLDER.failed"
mkdir -p "$(dirname "$FOLDER")"
# Built by root, jetson-stats installs a system service, unless it believes to be in a container: so it is told.
export container=fetch PIP_DISABLE_PIP_VERSION_CHECK=1
# shellcheck disable=SC2086 # a list of words
if "$PYTHON" -m venv "$FOLDER" >"$FOLDER.log" 2>&1 &&
    "$FOLDER/bin/python" -m pip install --quiet $OTHERS >>"$FOLDER.log" 2>&1 &&
    "$FOLDER/bin/python" -m pip install --quiet --no-deps "$ZEUS" >>"$FOLDER.log" 2>&1; then
    echo "$OTHERS $ZEUS" >"$FOLDER/.ready"
    codecarbon
else
    grep -E '^ERROR|[Ee]rror' "$FOLDER.log" | tail -n 1 >"$FOLDER.failed" || true
    [ -s "$FOLDER.failed" ] || tail -n 1 "$FOLDER.log" >"$FOLDER.failed"
    echo "They could not be fetched, and their tests will be skipped: $(cat "$FOLDER.failed")" >&2
fi
