#!/usr/bin/env bash
# Fetches the jars of one Ivy file (scripts/jars/NAME.xml) into a folder, with the Ivy that ships inside pyspark.
# The folder appears whole or not at all. Usage: jars.sh NAME FOLDER
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
name=$1 folder=$2

ivy=$(echo "$root"/.venv/lib/python3*/site-packages/pyspark/jars/ivy-2*.jar)
[ -f "$ivy" ] || { echo "jars: pyspark is not installed in .venv, run 'make setup'" >&2; exit 3; }

mkdir -p "$root/build" "$(dirname "$folder")"
partial=$(mktemp -d "$folder.XXXXXX")
trap 'rm -rf "$partial"' EXIT

# A cache of our own: a repository of the user's that holds a description without its jar would break the resolution.
if ! java -jar "$ivy" -cache "$root/build/ivy-cache" -ivy "$root/scripts/jars/$name.xml" -confs default \
    -types jar bundle -retrieve "$partial/[artifact]-[revision].[ext]" >"$root/build/ivy-$name.log" 2>&1; then
    echo "jars: could not fetch $name, the last lines of build/ivy-$name.log:" >&2
    tail -n 15 "$root/build/ivy-$name.log" >&2
    exit 3
fi
chmod 755 "$partial"
rm -rf "$folder"
mv "$partial" "$folder"
