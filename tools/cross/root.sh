#!/usr/bin/env bash
# root.sh FOLDER: makes FOLDER a Debian 12 root for aarch64, to build against and to run under qemu: Python 3.11 with
# its headers, the C and C++ libraries, the doctest headers. Needs no root rights. DEBIAN_MIRROR names another archive.
#
# apt itself resolves, fetches and verifies the packages, by Debian's archive keys, with lists and a state of their own
# beside FOLDER: what this machine has installed, and its own lists, play no part and stay as they are.
set -euo pipefail
folder=$1
mirror=${DEBIAN_MIRROR:-http://deb.debian.org/debian}
keys=/usr/share/keyrings/debian-archive-keyring.gpg
packages=(python3.11 libpython3.11-dev libc6-dev libstdc++-12-dev doctest-dev)

for need in apt-get:apt dpkg-deb:dpkg; do
  command -v "${need%%:*}" >/dev/null || {
    echo "no ${need%%:*}: this needs Debian or Ubuntu (package ${need##*:})" >&2
    exit 1
  }
done
[[ -e $keys ]] || {
  echo "no $keys; on Debian or Ubuntu: apt install debian-archive-keyring" >&2
  exit 1
}

mkdir -p "$(dirname "$folder")"
state=$(realpath "$(dirname "$folder")")/apt
mkdir -p "$state/lists/partial" "$state/archives/partial"
: >"$state/status"
echo "deb [arch=arm64 signed-by=$keys] $mirror bookworm main" >"$state/sources.list"
cat >"$state/apt.conf" <<END
APT::Architecture "arm64";
APT::Architectures "arm64";
APT::Install-Recommends "false";
APT::Sandbox::User "";
Acquire::Retries "3";
Acquire::http::Timeout "30";
Acquire::Languages "none";
Dir::State "$state";
Dir::State::lists "lists";
Dir::State::status "$state/status";
Dir::Cache "$state";
Dir::Cache::archives "archives";
Dir::Etc::sourcelist "$state/sources.list";
Dir::Etc::sourceparts "-";
END
export APT_CONFIG=$state/apt.conf
apt-get update -q
apt-get install -q -y --download-only "${packages[@]}"

# Whole or not at all.
rm -rf "$folder" "$folder.partial"
mkdir "$folder.partial"
for package in "$state"/archives/*.deb; do
  dpkg-deb -x "$package" "$folder.partial"
done
mv "$folder.partial" "$folder"
rm -rf "$state"
