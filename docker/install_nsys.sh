#!/bin/sh
# install_nsys.sh PACKAGE REPOSITORY FINGERPRINT: installs the Nsight Systems command line from NVIDIA's package
# repository, which the key with that fingerprint, and no other, may sign. Fails unless it is whole: nsys runs, and the
# importer that makes reports of what it collects is there and can be loaded.
set -eu
package=$1
repository=$2
fingerprint=$3

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
apt-get update
command -v gpg >/dev/null || { apt-get install -y --no-install-recommends gpg && added=gpg; }
found=$(gpg --batch --with-colons --show-keys "$key" | awk -F: '$1 == "pub" {new = 1} $1 == "fpr" && new {print $10; new = 0}')
[ "$found" = "$fingerprint" ] ||
    fail "$url/nvidia.pub holds the key $(echo "$found" | xargs), not $fingerprint; if NVIDIA announced a new key, give its fingerprint as NSYS_KEY"
[ -z "${added:-}" ] || apt-get purge -y --auto-remove "$added"
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
