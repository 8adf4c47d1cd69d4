#!/bin/sh
# pin_base_image.sh [TAG]: asks the registry which digest the tag of the base image has now (or TAG, which is then the
# new base image), and writes both into the Dockerfile. It is the digest of the index, which has an image for each
# architecture.
set -eu
file=$(dirname "$0")/Dockerfile
now=$(sed -n 's/^ARG BASE_IMAGE=//p' "$file")
tag=${1:-${now%@*}}
digest=$(docker buildx imagetools inspect --format '{{.Manifest.Digest}}' "$tag")
case $digest in
sha256:*) ;;
*)
    echo "pin_base_image: the registry gave no digest of $tag but \"$digest\"" >&2
    exit 1
    ;;
esac
sed -i "s|^ARG BASE_IMAGE=.*|ARG BASE_IMAGE=$tag@$digest|" "$file"
echo "$now -> $tag@$digest"
