#!/usr/bin/env bash
# Unpacks one Debian package into a folder, for build files that this machine's own release does not have.
# Nothing is installed, root is not needed, and the machine's own apt state stays as it is.
#
#   tools/fetch_debian_package.sh PACKAGE SUITE DEST
#
# DEST afterwards holds the package's files (DEST/usr/include/..., DEST/usr/src/...). A DEST that exists is kept as it
# is: nothing is fetched twice. The mirror is one that this machine's apt is already configured to use, and apt checks
# the suite's signature against Debian's archive keys. apt's state lies in a temporary folder beside DEST meanwhile.
set -euo pipefail

if [[ $# -ne 3 ]]; then
  echo "usage: $0 PACKAGE SUITE DEST" >&2
  exit 2
fi
package=$1 suite=$2 dest=$(realpath -m "$3")

fail() {
  echo "fetch_debian_package: $*" >&2
  exit 1
}

[[ -d $dest ]] && exit 0
for tool in apt-get dpkg-deb; do
  command -v "$tool" >/dev/null || fail "$tool is not there: this machine is not a Debian one"
done

keyring=
for candidate in /usr/share/keyrings/debian-archive-keyring.{gpg,pgp} /etc/apt/keyrings/debian-archive-keyring.{gpg,pgp}; do
  if [[ -r $candidate ]]; then
    keyring=$candidate
    break
  fi
done
[[ -n $keyring ]] || fail "no Debian archive keyring (package debian-archive-keyring): cannot check signatures"

mkdir -p "$(dirname "$dest")"
work=$(mktemp -d "$(dirname "$dest")/.fetch.XXXXXX")
trap 'rm -rf "$work"' EXIT
mkdir -p "$work"/{state/lists/partial,cache/archives/partial,download}

# The archives that apt would update from, whether or not it ever has (apt-get indextargets is empty before the first
# update). Security and other overlay archives have no suite of this name, so they drop out below.
mapfile -t mirrors < <(apt-get -o Dir::State::Lists="$work/none" update --print-uris 2>/dev/null |
  sed -n "s|^'\(.*\)/dists/[^']*/InRelease'.*|\1|p" | awk '!seen[$0]++')
[[ ${#mirrors[@]} -gt 0 ]] || fail "apt has no archive configured"

# Read by -c, after the machine's own configuration: its hooks (which may clean the machine's own cache) are cleared.
cat >"$work/apt.conf" <<CONF
Dir::State "$work/state";
Dir::State::status "/dev/null";
Dir::Cache "$work/cache";
Dir::Etc::SourceList "$work/mirror.sources";
Dir::Etc::SourceParts "/dev/null";
Dir::Etc::Preferences "/dev/null";
Dir::Etc::PreferencesParts "/dev/null";
Acquire::Languages "none";
// Root's sandbox user cannot write beside DEST; for everyone else this changes nothing.
APT::Sandbox::User "root";
APT::Get::AllowUnauthenticated "false";
Acquire::AllowInsecureRepositories "false";
Acquire::AllowWeakRepositories "false";
#clear APT::Update::Pre-Invoke;
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
CONF

for mirror in "${mirrors[@]}"; do
  cat >"$work/mirror.sources" <<SOURCES
Types: deb
URIs: $mirror
Suites: $suite
Components: main
Targets: Packages
Signed-By: $keyring
SOURCES
  if (cd "$work/download" && apt-get -c "$work/apt.conf" -q -y update && apt-get -c "$work/apt.conf" -q download "$package") \
    >"$work/log" 2>&1 && deb=$(compgen -G "$work/download/*.deb"); then
    dpkg-deb -x "$deb" "$work/unpacked"
    # A second process may have been faster: its result is as good.
    mv -T "$work/unpacked" "$dest" 2>/dev/null || [[ -d $dest ]] || fail "cannot write $dest"
    echo "fetch_debian_package: $(basename "$deb") from $suite -> $dest" >&2
    exit 0
  fi
  { echo "$mirror $suite:"; grep -E '^(E|W): ' "$work/log" || tail -n 3 "$work/log"; } >&2
done
fail "no configured archive gave $package of $suite, tried ${mirrors[*]}"
