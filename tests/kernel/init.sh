#!/bin/busybox sh
# Process 1 of a guest. Disks: a, the root, which stays as it is under a layer in memory; b, a tar archive with the job;
# c, where the job's results go as another, with its exit status. The status leaves by the debug port as well: a guest
# that panics or is stopped reports neither.
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
ln -s /proc/self/fd /dev/fd
for module in /modules/*; do insmod $module || echo "cannot load $module"; done

mount -t ext4 -o ro /dev/vda /disk
mount -t tmpfs -o size=75% memory /memory
mkdir /memory/upper /memory/work
mount -t overlay -o lowerdir=/disk,upperdir=/memory/upper,workdir=/memory/work root /root
for folder in proc sys dev; do mount --move /$folder /root/$folder; done
mount -t tmpfs -o mode=1777 tmp /root/tmp
mount -t tracefs trace /root/sys/kernel/tracing
mount -t debugfs debug /root/sys/kernel/debug
mount -t cgroup2 cgroups /root/sys/fs/cgroup
ip link set lo up
# khugepaged replaces pages, which BPF programs cannot read meanwhile: under emulation that takes milliseconds.
echo never >/root/sys/kernel/mm/transparent_hugepage/enabled

mkdir /root/job /root/results
tar -x -C /root/job -f /root/dev/vdb
chroot /root /bin/sh -c 'cd /job && exec /bin/sh job.sh'
status=$?
echo $status >/root/results/status
tar -c -C /root/results -f /root/dev/vdc .
sync
stty -F /root/dev/console sane # returns when the console has written everything
printf "\\x$(printf %x $status)" | dd of=/root/dev/port bs=1 seek=244 2>/dev/null
