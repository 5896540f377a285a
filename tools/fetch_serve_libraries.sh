#!/usr/bin/env bash
# Fetches what `ortmulti serve` is built with from archives of releases, for build machines without a Debian mirror
# (where the build gets the headers by itself): the header of nlohmann/json, and nghttp2, which is compiled here.
#
#   tools/fetch_serve_libraries.sh DEST [NGHTTP2 [JSON]]
#
# DEST afterwards holds include/nlohmann/json.hpp, include/nghttp2/*.h and lib/libortmulti_nghttp2.so. So set
# NLOHMANN_JSON_INCLUDE_DIR and NGHTTP2_INCLUDE_DIR to DEST/include, and ORTMULTI_BUNDLE_NGHTTP2 to the library, which a
# wheel then has beside its extension. The versions are 1.70.0 and 3.11.3 by default. Below 1.68.1 nghttp2 lets clients
# end the process (CVE-2026-27135). NGHTTP2_SHA256 and NLOHMANN_JSON_SHA256 are what the SHA-256 must be of the archive
# and of the header; without them the sums are only printed. NGHTTP2_RELEASES and NLOHMANN_JSON_RELEASES name other
# places with the same folders. Needs curl, cmake and a compiler of C.
set -euo pipefail
if [[ $# -lt 1 || $# -gt 3 ]]; then
  echo "usage: $0 DEST [NGHTTP2 [JSON]]" >&2
  exit 2
fi
dest=$(realpath -m "$1") nghttp2=nghttp2-${2:-1.70.0} json=${3:-3.11.3}

fail() {
  echo "fetch_serve_libraries: $*" >&2
  exit 1
}

# URL FILE SUM
fetch() {
  curl --fail --silent --show-error --location --retry 3 --output "$2" "$1" || fail "cannot fetch $1"
  local sum
  sum=$(sha256sum "$2" | cut -d ' ' -f 1)
  [[ -z $3 || $sum == "$3" ]] || fail "$1 has the SHA-256 $sum, not $3"
  echo "fetch_serve_libraries: $1 ($sum)" >&2
}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fetch "${NLOHMANN_JSON_RELEASES:-https://github.com/nlohmann/json/releases/download}/v$json/json.hpp" \
  "$work/json.hpp" "${NLOHMANN_JSON_SHA256:-}"
fetch "${NGHTTP2_RELEASES:-https://github.com/nghttp2/nghttp2/releases/download}/v${nghttp2#*-}/$nghttp2.tar.gz" \
  "$work/archive.tgz" "${NGHTTP2_SHA256:-}"
tar -xzf "$work/archive.tgz" -C "$work"

{
  cmake -S "$work/$nghttp2" -B "$work/build" -DCMAKE_BUILD_TYPE=Release -DCMAKE_POSITION_INDEPENDENT_CODE=ON \
    -DENABLE_LIB_ONLY=ON -DBUILD_SHARED_LIBS=OFF -DBUILD_STATIC_LIBS=ON -DBUILD_TESTING=OFF -DENABLE_DOC=OFF &&
    cmake --build "$work/build" &&
    cmake --install "$work/build" --prefix "$work/installed"
} >"$work/log" 2>&1 || fail "cannot build $nghttp2: $(tail -n 20 "$work/log")"
library=$(find "$work/installed" -name libnghttp2.a -print -quit)
[[ -n $library && -f $work/installed/include/nghttp2/nghttp2.h ]] || fail "$nghttp2 has installed no library and headers"

mkdir -p "$dest/include/nlohmann" "$dest/lib"
cp "$work/json.hpp" "$dest/include/nlohmann/"
cp -r "$work/installed/include/nghttp2" "$dest/include/"
# A name of ours: another library of the process that needs nghttp2 gets its own.
"${CC:-cc}" -shared -o "$dest/lib/libortmulti_nghttp2.so" -Wl,-soname,libortmulti_nghttp2.so -Wl,-s \
  -Wl,--whole-archive "$library" -Wl,--no-whole-archive
echo "fetch_serve_libraries: $nghttp2 and nlohmann/json $json -> $dest" >&2
