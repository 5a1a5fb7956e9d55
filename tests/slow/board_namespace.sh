#!/bin/sh
# Runs a command as on the board whose tree is served in DIR: DIR/sys, DIR/proc and DIR/etc lie where a program looks for
# them. Mounts and processes are this shell's own and go with it. Start it in new namespaces, as root:
#   unshare --mount --pid --net --fork --kill-child sh board_namespace.sh DIR COMMAND...
set -eu
DIR=$1
shift

mount -t tmpfs board /run
mkdir /run/etc /run/kernel-proc
cp -a /etc/. /run/etc/ 2>/dev/null || true # a file that root may not read is none of the board's
cp -a "$DIR/etc/." /run/etc/
grep -q '^jtop:' /run/etc/group || echo 'jtop:x:64999:root' >>/run/etc/group # what jetson-stats' installation adds
mount --bind /run/etc /etc
mount --bind "$DIR/sys" /sys

# proc: the kernel's own, for the processes that run here, under the board's files. It has no folder to mount the device
# tree on, so /proc becomes a folder of links.
mount -t proc proc /run/kernel-proc
(cd "$DIR/proc/sys" && find . -type f) | while read -r file; do
    [ ! -e "/run/kernel-proc/sys/$file" ] || mount --bind "$DIR/proc/sys/$file" "/run/kernel-proc/sys/$file"
done
mkdir /run/proc
for path in /run/kernel-proc/*; do
    name=${path##*/}
    case $name in [0-9]*) continue ;; esac
    if [ -f "$DIR/proc/$name" ]; then ln -s "$DIR/proc/$name" "/run/proc/$name"; else ln -s "$path" "/run/proc/$name"; fi
done
ln -sfn /sys/firmware/devicetree/base /run/proc/device-tree
mount --bind /run/proc /proc

"$@"
