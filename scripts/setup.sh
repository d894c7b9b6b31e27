#!/usr/bin/env bash
# Installs the requirements of `make demo`: Debian packages, a virtual environment in .venv, this project in it, and jars
# under build/jars. With `tests`, also those of the tests; with `nodes`, also those of the tests of image, chart,
# service, HDFS and S3. Keeps existing installations. It first checks whether it can finish, and changes nothing if it
# cannot.
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
cd "$root"
python=/usr/bin/python3
what=${1:-demo}

say() { echo "setup: $*"; }
refuse() { printf '%s\n' "setup: $1" "${@:2}" >&2; exit 3; }

# --- What the machine must have: a test, its Debian package, its Fedora package -------------------------------------

java_17() {
    local major
    major=$(java -version 2>&1 | sed -nE '1s/.* version "([0-9]+).*/\1/p') && [ "${major:-0}" -ge 17 ]
}
# Go 1.21 and newer fetch the toolchain that a module requires.
go_1_21() {
    local version
    version=$(go env GOVERSION) && [ "$(printf '%s\n' go1.21 "$version" | sort -V | head -n 1)" = go1.21 ]
}
has() { PATH=$PATH:/usr/sbin:/sbin command -v "$1" >/dev/null; }

requirements=(
    "$python -c 'import ensurepip'|python3-venv|python3"
    "$python -c 'import bcc'|python3-bpfcc|python3-bcc"
    "java_17|default-jre-headless|java-21-openjdk-headless"
    "has ip|iproute2|iproute"
    "has nft|nftables|nftables"
)
[ "$what" = demo ] || requirements+=(
    "has tcpdump|tcpdump|tcpdump"
    "has tshark|tshark|wireshark-cli"
    "has bpftool|bpftool|bpftool"
    "has qemu-system-x86_64|qemu-system-x86|qemu-system-x86-core"
    "has mke2fs|e2fsprogs|e2fsprogs"
    "has zstd|zstd|zstd"
    "test -e /usr/share/keyrings/debian-archive-keyring.gpg|debian-archive-keyring|debian-keyring"
    "has gcc|gcc|gcc"
    "has prometheus && has promtool|prometheus|golang-github-prometheus"
    "has prometheus-alertmanager|prometheus-alertmanager|golang-github-prometheus-alertmanager"
    "has shellcheck|shellcheck|ShellCheck"
    "has vagrant && ruby -e 'gem %q(vagrant-libvirt)'|vagrant-libvirt|vagrant-libvirt"
    "has systemd-analyze|systemd|systemd"
)
[ "$what" != nodes ] || requirements+=(
    "has podman|podman|podman"
    "has runc|runc|runc"
    "test -x /usr/lib/podman/netavark|netavark|netavark"
    "has iptables|iptables|iptables-nft"
    "has mmdebstrap|mmdebstrap|mmdebstrap"
    "go_1_21|golang-go|golang"
)

debian=() fedora=()
look() {
    debian=() fedora=()
    local requirement check deb rpm
    for requirement in "${requirements[@]}"; do
        IFS='|' read -r check deb rpm <<<"$requirement"
        eval "$check" >/dev/null 2>&1 || { debian+=("$deb"); fedora+=("$rpm"); }
    done
}

by_hand() {
    refuse "$1" "install these by hand, then run 'make setup' again:" \
        "  Debian, Ubuntu:  apt-get install --no-install-recommends ${debian[*]}" \
        "  Fedora:          dnf install ${fedora[*]}"
}

# --- Can this work at all? -------------------------------------------------------------------------------------------

[ -w "$root" ] || refuse "cannot write to $root as $(id -un); clone the repository into a folder of your own"
look
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
    || { [ -x "$python" ] && refuse "$python is older than 3.11; Debian 12 or newer has a fitting one"; }
if [ ${#debian[@]} -gt 0 ]; then
    command -v apt-get >/dev/null || by_hand "packages are missing and there is no apt-get here"
    [ "$(id -u)" = 0 ] || by_hand "packages are missing and only root may install them"
fi

mkdir -p build
exec 9>build/setup.lock
flock 9

# --- Debian packages -------------------------------------------------------------------------------------------------

if [ ${#debian[@]} -gt 0 ]; then
    say "installing Debian packages: ${debian[*]} (log: build/setup-apt.log)"
    export DEBIAN_FRONTEND=noninteractive
    { apt-get update && apt-get install -y --no-install-recommends "${debian[@]}"; } >build/setup-apt.log 2>&1 9>&- \
        || refuse "apt-get failed; the end of build/setup-apt.log:" "$(tail -n 15 build/setup-apt.log)"
    look
    [ ${#debian[@]} -eq 0 ] || by_hand "apt-get installed its packages, yet something needed is still not usable"
fi

# --- Virtual environment: Debian's own Python, because python3-bpfcc is built for it and lives in its packages ---------

if ! .venv/bin/python -c 'import bcc' 2>/dev/null; then
    say "making the virtual environment .venv on $python"
    "$python" -m venv --clear --system-site-packages .venv
fi

stamp=.venv/setup-$what
now=$(sha256sum pyproject.toml constraints.txt scripts/setup.sh)
if [ "$(cat "$stamp" 2>/dev/null)" != "$now" ]; then
    case $what in demo) extra=demo ;; nodes) extra=nodes ;; *) extra=dev ;; esac
    say "installing Python packages into .venv, about half a gigabyte with Spark (log: build/setup-pip.log)"
    # As a variable the constraints reach the environments that pip builds packages in, too.
    PIP_CONSTRAINT=constraints.txt PIP_DISABLE_PIP_VERSION_CHECK=1 \
        .venv/bin/python -m pip install --editable ".[$extra]" >build/setup-pip.log 2>&1 9>&- \
        || refuse "pip failed; the end of build/setup-pip.log:" "$(tail -n 15 build/setup-pip.log)"
    echo "$now" >"$stamp"
fi

# --- Helm, which is packaged as a Go module only -----------------------------------------------------------------------

helm=3.22.0
built() { go version -m .venv/bin/helm | grep -qE "helm.sh/helm/v3\s+v$helm\s"; }
if [ "$what" = nodes ] && ! built 2>/dev/null; then
    say "building Helm $helm into .venv, some minutes (log: build/setup-helm.log)"
    GOBIN=$root/.venv/bin go install "helm.sh/helm/v3/cmd/helm@v$helm" >build/setup-helm.log 2>&1 9>&- \
        || refuse "go install failed; the end of build/setup-helm.log:" "$(tail -n 15 build/setup-helm.log)"
fi

# --- Jars --------------------------------------------------------------------------------------------------------------

fetch() {
    [ -d "$2" ] || say "fetching jars into $2"
    bash scripts/jars.sh "$1" "$2"
}
fetch kafka build/jars/kafka-4.3.0
fetch spark build/jars/spark-4.0.0
[ "$what" = demo ] || fetch prometheus build/jars/prometheus-1.8.0
[ "$what" != nodes ] || fetch hdfs build/jars/hdfs-3.4.1
[ "$what" != nodes ] || fetch s3 build/jars/s3-3.4.1

# --- An S3 server, in an environment of its own because it needs an older python-dateutil -----------------------------

if [ "$what" = nodes ] && ! cmp -s scripts/moto.txt build/moto/requirements; then
    say "installing moto, an S3 server, into build/moto (log: build/setup-moto.log)"
    { "$python" -m venv --clear build/moto && build/moto/bin/pip install -r scripts/moto.txt; } >build/setup-moto.log 2>&1 9>&- \
        || refuse "pip failed; the end of build/setup-moto.log:" "$(tail -n 15 build/setup-moto.log)"
    cp scripts/moto.txt build/moto/requirements
fi

say "ready"
