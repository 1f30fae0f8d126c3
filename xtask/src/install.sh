# Installs $PACKAGES with apt-get, each command of which may take $LIMIT seconds. Behind sudo only `timeout` can end it.
#
# Their $SERVICES must not run: tests start their own servers. Under systemd they are masked meanwhile, and disabled afterwards;
# without it (a container) Debian does not start them.
root=; test "$(id -u)" = 0 || root="sudo -n"
command -v apt-get > /dev/null || { echo "this system has no apt-get"; exit 1; }
$root true || { echo "this is not root, and sudo is missing or asks for a password"; exit 1; }
test -d /run/systemd/system || SERVICES=
log=$(mktemp) || exit 1
unmask=
test -z "$SERVICES" || unmask="$root systemctl -q unmask --runtime $SERVICES"
trap 'exit 130' INT
trap "rm -f $log; $unmask" EXIT
if test -n "$SERVICES"; then
    $root systemctl -q mask --runtime $SERVICES
fi
# Another one may be running, above all on a new machine.
apt="$root timeout --foreground $LIMIT env DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=300"
# What apt says is shown when it fails: it is hundreds of lines.
quietly() { echo "+ $*"; "$@" > "$log" 2>&1 || { cat "$log"; return 1; }; }
# An unreachable package source fails the update, but need not fail the installation.
quietly $apt update
quietly $apt install -y --no-install-recommends $PACKAGES || exit 1
test -z "$SERVICES" || $root systemctl -q disable $SERVICES
