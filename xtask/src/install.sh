# Installs $PACKAGES with apt-get, each command of which may take $LIMIT seconds. Behind sudo only `timeout` can end it.
#
# Their $SERVICES must not run: tests start their own servers. Under systemd they are masked meanwhile, and disabled afterwards;
# without it (a container) Debian does not start them.
root=; test "$(id -u)" = 0 || root="sudo -n"
command -v apt-get > /dev/null || { echo "this system has no apt-get"; exit 1; }
$root true || { echo "this is not root, and sudo is missing or asks for a password"; exit 1; }
test -d /run/systemd/system || SERVICES=
if test -n "$SERVICES"; then
    trap 'exit 130' INT
    trap "$root systemctl -q unmask --runtime $SERVICES" EXIT
    $root systemctl -q mask --runtime $SERVICES
fi
# Another one may be running, above all on a new machine.
apt="$root timeout --foreground $LIMIT env DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=300"
set -x
# An unreachable package source fails the update, but need not fail the installation.
$apt update
$apt install -y --no-install-recommends $PACKAGES || exit 1
test -z "$SERVICES" || $root systemctl -q disable $SERVICES
