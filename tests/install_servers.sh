#!/bin/bash
# Installs the WebDAV servers and the browser that the tests run, what reads systemd's units, what spares the tests
# waiting for the disk, what shuts a hospital's own program in, and what compiles one in C, from Debian's packages.
# The servers stay stopped: tests start their own.
# Exit 0 if all are there in the end; otherwise 1, and tests that need a missing one skip and say so.
set -uo pipefail
exec < /dev/null

groups=(
    "apache2"
    "nginx libnginx-mod-http-dav-ext"
    "lighttpd lighttpd-mod-webdav"
    "rclone"
    "php-sabre-dav php-cgi php-xml"
    "systemd"
    "chromium chromium-driver"
    "libeatmydata1"
    "bubblewrap"
    "gcc libc6-dev"
)
update_limit_s=180
install_limit_s=300  # for all of them

missing_of() {  # the packages among these that are not installed
    local package
    for package in $1; do
        [[ $(dpkg-query -W -f '${db:Status-Status}' "$package" 2> /dev/null) == installed ]] || printf '%s ' "$package"
    done
}

missing=$(for group in "${groups[@]}"; do missing_of "$group"; done)
[[ -n $missing ]] || exit 0
if ! command -v apt-get > /dev/null || ((EUID)); then
    echo "Not installed: $missing"
    echo "As root on Debian: apt-get install --no-install-recommends $missing"
    exit 1
fi

echo "Installing $missing"
export DEBIAN_FRONTEND=noninteractive
timeout "$update_limit_s" apt-get update -q > /dev/null || echo "The list of packages could not be renewed"
deadline=$((SECONDS + install_limit_s))
for group in "${groups[@]}"; do  # one by one, so that one that cannot be had does not keep the others away
    missing=$(missing_of "$group")
    [[ -n $missing ]] || continue
    # shellcheck disable=SC2086  # several packages
    if ! output=$(timeout $((deadline > SECONDS ? deadline - SECONDS : 1)) \
        apt-get install -q -y --no-install-recommends $missing 2>&1); then
        echo "$output" | tail -n 3
    fi
    for service in apache2 nginx lighttpd; do
        [[ " $missing " != *" $service "* ]] || service "$service" stop > /dev/null 2>&1
    done
done

missing=$(for group in "${groups[@]}"; do missing_of "$group"; done)
[[ -z $missing ]] || { echo "Not installed: $missing"; exit 1; }
