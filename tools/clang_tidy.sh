#!/usr/bin/env bash
# Runs clang-tidy over our own sources as BUILD compiles them. A file that passed is skipped until it, a header that it
# includes, or how it is checked changes; also by other clones of the repository, since the cache folder remembers it.
#
#   tools/clang_tidy.sh BUILD [FILE...]
#
# Without FILE it checks all sources; with FILE (or one empty argument) those alone.
set -euo pipefail
cd "$(dirname "$0")/.."
build=$1
shift
passed=${XDG_CACHE_HOME:-$HOME/.cache}/ortmulti/clang-tidy/$(clang-tidy --version | sha256sum | cut -c1-16)
mkdir -p "$passed"

check() {
  local file=$1 key=$2 log
  [[ -e $passed/$key ]] && return 0
  log=$(mktemp)
  # GCC's own options mean nothing to clang, whose -Wconversion says more. Without the static analyzer, -Werror makes errors
  # of that. The analyzer's deep mode would take four fifths of the time.
  if clang-tidy -p "$build" --quiet --extra-arg=-Wno-ignored-optimization-argument --extra-arg=-Wno-error \
    --extra-arg=-Wno-unknown-warning-option --extra-arg=-Wthread-safety --extra-arg=-Wundefined-func-template --extra-arg=-Xclang --extra-arg=-analyzer-config --extra-arg=-Xclang \
    --extra-arg=mode=shallow "$file" >"$log" 2>&1; then
    # Else something was changed since the keys were computed.
    [[ -n $(find .clang-tidy cpp tests/cpp -newer "$begun" -print -quit) ]] || touch "$passed/$key"
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
begun=$(mktemp)
trap 'rm -f "$begun"' EXIT
export begun build passed

mapfile -t files < <(tools/translation_units.py --keys "$build")
[[ ${#files[@]} -gt 0 ]] || { echo "no sources of ours in $build/compile_commands.json" >&2; exit 1; }
if [[ $# -gt 0 ]]; then
  mapfile -t files < <(LC_ALL=C join <(printf '%s\n' "${files[@]}") <(printf '%s\n' "$@" | LC_ALL=C sort -u))
  echo "  ${#files[@]} sources"
  [[ ${#files[@]} -gt 0 ]] || exit 0
fi
printf '%s\n' "${files[@]}" | xargs -n2 -P "${JOBS:-$(nproc)}" bash -c 'check "$1" "$2"' _
