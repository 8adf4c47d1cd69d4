#!/bin/sh
# install_nsys.sh PACKAGE REPOSITORY: installs the Nsight Systems command line from NVIDIA's package repository, and
# fails unless it is whole: nsys runs, and the importer that makes reports of what it collects is there and can be loaded.
set -eu
package=$1
repository=$2

fail() {
    echo "install_nsys: $*" >&2
    exit 1
}

# shellcheck source=/dev/null
. /etc/os-release
url="$repository/$ID$(echo "$VERSION_ID" | tr -d .)/$(dpkg --print-architecture)"
key=/etc/apt/keyrings/nvidia-devtools.asc
mkdir -p /etc/apt/keyrings
python3 -c 'import sys, urllib.request; urllib.request.urlretrieve(*sys.argv[1:])' "$url/nvidia.pub" "$key" ||
    fail "$url/nvidia.pub cannot be fetched; is there a repository for this base image?"
echo "deb [signed-by=$key] $url/ /" >/etc/apt/sources.list.d/nvidia-devtools.list
apt-get update
apt-get install -y --no-install-recommends "$package"
rm -rf /var/lib/apt/lists/*

nsys --version || fail "$package is installed, but \`nsys --version\` fails"
importer=$(find -L /opt/nvidia -name QdstrmImporter -type f -perm -100 | head -n 1)
[ -n "$importer" ] || fail "$package has no QdstrmImporter: choose a package with the importer, such as nsight-systems-cli-*"
missing=$(ldd "$importer" | grep 'not found' || true)
[ -z "$missing" ] || fail "$importer cannot be loaded: $missing"
echo "importer: $importer"
