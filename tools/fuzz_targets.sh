#!/usr/bin/env bash
# Prints the fuzz targets of tests/fuzz/targets that a change asks for, one a line. Reads the names of changed files:
#
#   tools/changed_files.sh | tools/fuzz_targets.sh
#
# A line of the table is a target and a pattern of its parser's sources. What several targets are made with asks for all.
set -euo pipefail
cd "$(dirname "$0")/.."
changed=$(cat)
all='tools/test_fuzz\.sh$|tests/fuzz/(CMakeLists\.txt|driver\.cpp|cases\.py|write_seeds\.py)$'
while read -r target sources; do
  if grep -qE "^($sources|tests/fuzz/fuzz_$target\.|$all)" <<<"$changed"; then echo "$target"; fi
done <tests/fuzz/targets
