#!/usr/bin/env bash
# Fetches the headers of ONNX Runtime's C and C++ API from an archive of its releases, for build machines without a
# Debian mirror (where the build gets them by itself). They are the same for every processor.
#
#   tools/fetch_onnxruntime_headers.sh DEST [VERSION]
#
# DEST afterwards holds onnxruntime_cxx_api.h and the others: set ONNXRUNTIME_INCLUDE_DIR to it. VERSION is 1.21.1 by
# default, the oldest release that ortmulti supports. ONNXRUNTIME_HEADERS_SHA256 is what the archive's SHA-256 must be;
# without it the sum is only printed. ONNXRUNTIME_RELEASES names another place with the same folders.
set -euo pipefail
if [[ $# -lt 1 || $# -gt 2 ]]; then
  echo "usage: $0 DEST [VERSION]" >&2
  exit 2
fi
dest=$(realpath -m "$1") version=${2:-1.21.1}
name=onnxruntime-linux-x64-$version
url=${ONNXRUNTIME_RELEASES:-https://github.com/microsoft/onnxruntime/releases/download}/v$version/$name.tgz

fail() {
  echo "fetch_onnxruntime_headers: $*" >&2
  exit 1
}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
curl --fail --silent --show-error --location --retry 3 --output "$work/archive.tgz" "$url" || fail "cannot fetch $url"
sum=$(sha256sum "$work/archive.tgz" | cut -d ' ' -f 1)
if [[ -n ${ONNXRUNTIME_HEADERS_SHA256:-} && $sum != "$ONNXRUNTIME_HEADERS_SHA256" ]]; then
  fail "$url has the SHA-256 $sum, not $ONNXRUNTIME_HEADERS_SHA256"
fi
tar -xzf "$work/archive.tgz" -C "$work"
include=$work/$name/include
[[ -f $include/onnxruntime_cxx_api.h && -f $include/onnxruntime_c_api.h ]] || fail "$url has no headers in $name/include"
mkdir -p "$dest"
cp -r "$include/." "$dest/"
echo "fetch_onnxruntime_headers: $name.tgz ($sum) -> $dest" >&2
