#!/usr/bin/env bash
# Runs clang-tidy over our own sources as BUILD compiles them. Files that passed are skipped until they, a header of
# ours or the configuration change.
#
#   tools/clang_tidy.sh BUILD [FILE...]
#
# Without FILE it checks all sources; with FILE (or one empty argument) those alone.
set -euo pipefail
cd "$(dirname "$0")/.."
build=$1
shift
passed=$build/clang-tidy
mkdir -p "$passed"

# Everything that can change any file's result; the file's own content is added below.
common=$({ clang-tidy --version; cat .clang-tidy; find cpp tests/cpp -name '*.hpp' | sort | xargs cat; } | sha256sum)

check() {
  local file=$1 key log
  key=$passed/$({ echo "$common"; cat "$file"; } | sha256sum | cut -c1-32)
  [[ -e $key ]] && return 0
  log=$(mktemp)
  # GCC's own options mean nothing to clang.
  if clang-tidy -p "$build" --quiet --extra-arg=-Wno-ignored-optimization-argument \
    --extra-arg=-Wno-unknown-warning-option "$file" >"$log" 2>&1; then
    touch "$key"
    echo "  $file"
    rm -f "$log"
  else
    echo "  $file: FAILED"
    grep -v -e ' warnings generated' -e '^Suppressed ' -e '^Use -' "$log"
    rm -f "$log"
    return 1
  fi
}
export -f check
export build passed common

mapfile -t files < <(grep -oP "^ +\"file\": \"\Q$PWD\E/\K(cpp|tests/cpp)/[^\"]+" "$build/compile_commands.json" | sort -u)
[[ ${#files[@]} -gt 0 ]] || { echo "no sources of ours in $build/compile_commands.json" >&2; exit 1; }
if [[ $# -gt 0 ]]; then
  mapfile -t files < <(comm -12 <(printf '%s\n' "${files[@]}") <(printf '%s\n' "$@" | sort -u))
  echo "  ${#files[@]} sources"
  [[ ${#files[@]} -gt 0 ]] || exit 0
fi
printf '%s\0' "${files[@]}" | xargs -0 -n1 -P "${JOBS:-$(nproc)}" bash -c 'check "$1"' _
