#!/usr/bin/env bash
# Fetches the jars of one Ivy file (scripts/jars/NAME.xml) into a folder, with the Ivy that ships inside pyspark.
# The folder appears whole or not at all, and keeps the Ivy file it was made from: unchanged, nothing is done.
# Usage: jars.sh NAME FOLDER
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
description=$root/scripts/jars/$1.xml folder=$2 log=$root/build/jars-$1.log

cmp -s "$description" "$folder/ivy.xml" && exit 0

ivy=$(echo "$root"/.venv/lib/python3*/site-packages/pyspark/jars/ivy-2*.jar)
[ -f "$ivy" ] || { echo "jars: pyspark is not in .venv, run 'make setup'" >&2; exit 3; }

mkdir -p "$(dirname "$folder")"
partial=$(mktemp -d "$folder.XXXXXX")
trap 'rm -rf "$partial"' EXIT

# A cache of our own: a repository of the user's that holds a description without its jar would break the resolution.
if ! java -jar "$ivy" -cache "$root/build/ivy-cache" -ivy "$description" -confs default \
    -types jar bundle -retrieve "$partial/[artifact]-[revision].[ext]" >"$log" 2>&1; then
    echo "jars: could not fetch $1; the end of ${log#"$root"/}:" >&2
    tail -n 15 "$log" >&2
    exit 3
fi
cp "$description" "$partial/ivy.xml"
chmod 755 "$partial"
rm -rf "$folder"
mv "$partial" "$folder"
