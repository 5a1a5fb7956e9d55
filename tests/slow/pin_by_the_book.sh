#!/bin/sh
# Pins the GPU clock of a Jetson, checks it, and puts things back, with nothing but the files NVIDIA documents:
#   pin_by_the_book.sh ROOT HZ...
# ROOT stands before /sys (give "" on a board). Each clock is held for a moment in the order given.
set -eu

fail() {
    echo "pin: $*" >&2
    exit 1
}

ROOT=$1
shift

# The GPU is the devfreq device that the device tree calls so; its name changes from JetPack to JetPack.
NODE=
for candidate in "$ROOT"/sys/class/devfreq/*; do
    [ -r "$candidate/device/of_node/name" ] || continue
    case $(tr -d '\0' <"$candidate/device/of_node/name") in
    gpu | ga10b | gv11b | gp10b) NODE=$(readlink -f "$candidate") ;;
    esac
done
[ -n "$NODE" ] || fail "no GPU in $ROOT/sys/class/devfreq"
echo "node ${NODE#"$(readlink -f "${ROOT:-/}")"}"

# Raising the clock: the upper bound first. Lowering it: the lower bound first.
set_bounds() {
    if [ "$2" -ge "$(cat "$NODE/max_freq")" ]; then
        echo "$2" >"$NODE/max_freq" && echo "$1" >"$NODE/min_freq"
    else
        echo "$1" >"$NODE/min_freq" && echo "$2" >"$NODE/max_freq"
    fi
}

SAVED_MIN=$(cat "$NODE/min_freq")
SAVED_MAX=$(cat "$NODE/max_freq")
echo "saved $SAVED_MIN $SAVED_MAX $(cat "$NODE/governor")"
trap 'set_bounds "$SAVED_MIN" "$SAVED_MAX"' EXIT
trap 'exit 130' INT TERM HUP

for HZ in "$@"; do
    case " $(cat "$NODE/available_frequencies") " in
    *" $HZ "*) ;;
    *) fail "$HZ is not an available frequency" ;;
    esac
    set_bounds "$HZ" "$HZ"
    sleep 1
    [ "$(cat "$NODE/min_freq")" = "$HZ" ] || fail "min_freq reads $(cat "$NODE/min_freq"), not $HZ"
    [ "$(cat "$NODE/max_freq")" = "$HZ" ] || fail "max_freq reads $(cat "$NODE/max_freq"), not $HZ"
    [ "$(cat "$NODE/cur_freq")" = "$HZ" ] || fail "cur_freq reads $(cat "$NODE/cur_freq"), not $HZ"
    echo "pinned $HZ load $(cat "$NODE/device/load")"
done

set_bounds "$SAVED_MIN" "$SAVED_MAX"
trap - EXIT
sleep 1
[ "$(cat "$NODE/min_freq")" = "$SAVED_MIN" ] || fail "min_freq was not restored"
[ "$(cat "$NODE/max_freq")" = "$SAVED_MAX" ] || fail "max_freq was not restored"
echo "restored $(cat "$NODE/min_freq") $(cat "$NODE/max_freq") $(cat "$NODE/governor")"
