#!/usr/bin/env bash
# Prints the files that differ from CI_BASE (a commit), or else from the newest commit that is older than 24 hours. Prints
# all files where there is no such commit, as in a shallow clone.
set -euo pipefail
cd "$(dirname "$0")/.."
base=${CI_BASE:-$(git rev-list -1 --before="24 hours ago" HEAD)}
if [[ -n $base ]] && git rev-parse -q --verify "$base^{commit}" >/dev/null; then
  git diff --name-only "$(git merge-base "$base" HEAD)"
  git ls-files --others --exclude-standard
else
  git ls-files
fi
