#!/usr/bin/env bash
# Make the stand-in base image for tests where no image registry can be reached: standin.sh <tag>
#
# It stands for python:3.12-slim-bookworm: a minimal Debian 12 from the machine's own mirror, the machine's own Python 3.12
# under /usr/local, and the machine's certificate authorities, so that apt and pip work inside the build as they do outside.
# It is for tests: the Dockerfile's default base, pinned by digest, is what people build on.
set -euo pipefail
tag=${1:?usage: standin.sh <tag>}

if docker image inspect "$tag" >/dev/null 2>&1; then
    echo "stand-in base: $tag is there"
    exit 0
fi
[ "$(id -u)" = 0 ] || { echo "stand-in base: debootstrap needs root" >&2; exit 2; }
if ! command -v debootstrap >/dev/null; then
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends debootstrap >/dev/null
fi

prefix=$(python3.12 -c 'import sys; print(sys.base_prefix)' 2>/dev/null) ||
    prefix=$(printf '%s\n' "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.12.* | sort -V | tail -n 1)
[ -x "$prefix/bin/python3.12" ] || { echo "stand-in base: no Python 3.12 on this machine (python3.12 or pyenv)" >&2; exit 2; }

# The first archive that the machine's own apt reads, in either of its two formats.
mirror=$(find /etc/apt \( -name '*.list' -o -name '*.sources' \) -exec cat {} + |
    awk '!/^#/ && !found { for (i = 1; i <= NF; i++) if ($i ~ /^https?:.*\/debian\/?$/) found = $i } END { print found }')
[ -n "$mirror" ] || { echo "stand-in base: no Debian archive in /etc/apt/sources.list or sources.list.d" >&2; exit 2; }
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT

debootstrap --variant=minbase \
    --include=ca-certificates,libbz2-1.0,libffi8,liblzma5,libncursesw6,libreadline8,libsqlite3-0,libssl3,libuuid1,zlib1g \
    bookworm "$root" "$mirror" >"$root.log" 2>&1 || { tail -n 15 "$root.log" >&2; exit 1; }
rm -f "$root.log"

mkdir -p "$root/usr/local/bin" "$root/usr/local/lib" "$root/usr/local/include"
cp -a "$prefix/bin/python3.12" "$root/usr/local/bin/"
cp -a "$prefix"/lib/libpython3* "$root/usr/local/lib/" 2>/dev/null || true
cp -a "$prefix/include/python3.12" "$root/usr/local/include/"
tar -C "$prefix/lib" --exclude=__pycache__ --exclude=python3.12/test --exclude='python3.12/site-packages/*' \
    --exclude='*.a' -cf - python3.12 | tar -C "$root/usr/local/lib" -xf -
for name in python3 python; do ln -s python3.12 "$root/usr/local/bin/$name"; done
chown -R 0:0 "$root/usr/local"

cp /usr/local/share/ca-certificates/*.crt "$root/usr/local/share/ca-certificates/" 2>/dev/null || true
printf '[global]\ncert = /etc/ssl/certs/ca-certificates.crt\ndisable-pip-version-check = true\n' >"$root/etc/pip.conf"
chroot "$root" /bin/sh -c 'ldconfig && update-ca-certificates >/dev/null 2>&1 && python3 -m ensurepip --upgrade >/dev/null 2>&1 \
    && ln -sf pip3 /usr/local/bin/pip && apt-get clean && rm -rf /var/lib/apt/lists/* /var/cache/apt/*.bin /var/log/*.log'

tar -C "$root" --one-file-system -cf - . |
    docker import --change 'ENV PATH=/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin' \
        --change 'ENV LANG=C.UTF-8' --change 'CMD ["python3"]' - "$tag" >/dev/null
echo "stand-in base: $tag made from Debian bookworm and $(chroot "$root" python3 --version)"
