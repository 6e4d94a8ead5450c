#!/usr/bin/env bash
# Sees to it that the Debian packages named are there: `packages.sh prometheus nginx`. Installs what is missing as
# root; says what to install otherwise.
set -euo pipefail

missing=()
for package in "$@"; do
  dpkg-query --show --showformat='${Status}' "$package" 2>/dev/null | grep -q ' installed$' || missing+=("$package")
done
((${#missing[@]})) || exit 0
if ((EUID)); then
  echo "Needed and not installed. As root: apt-get install --no-install-recommends ${missing[*]}" >&2
  exit 1
fi
echo "Installing ${missing[*]}"
apt-get update -qq
DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}"
