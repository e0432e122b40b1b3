#!/bin/sh
# Install the system programs named as arguments, where they are missing: with apt-get if we may, else say how.
set -u

package_of() {
	case "$1" in
	kcat) echo kcat ;;
	java) echo openjdk-17-jdk-headless ;;
	mvn) echo maven ;;
	node) echo nodejs ;;
	mosquitto_pub) echo mosquitto-clients ;;
	postgres) echo postgresql ;;
	chromedriver) echo chromium-driver ;;
	*) echo "$1" ;;
	esac
}

# Servers are in directories that not every user searches.
PATH="$PATH:/usr/local/sbin:/usr/sbin:/sbin"
for directory in /usr/lib/postgresql/*/bin; do
	PATH="$PATH:$directory"
done
missing=""
for program in "$@"; do
	command -v "$program" >/dev/null 2>&1 || missing="$missing $(package_of "$program")"
done
[ -z "$missing" ] && exit 0

echo "==> installing system packages:$missing"
if ! command -v apt-get >/dev/null 2>&1; then
	echo "These programs are needed and missing:$missing. Install them with your system's package manager, then try again." >&2
	exit 1
fi
if [ "$(id -u)" -eq 0 ]; then
	as_root=""
elif command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null; then
	as_root="sudo"
else
	echo "Run this as root, then try again: apt-get update && apt-get install -y$missing" >&2
	exit 1
fi
# A broker that a package brings is for the tests to start, on ports of their own: not a service of this machine.
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
	trap '$as_root rm -f "$policy"' EXIT
	printf '#!/bin/sh\nexit 101\n' | $as_root tee "$policy" >/dev/null
	$as_root chmod 755 "$policy"
fi
# shellcheck disable=SC2086
$as_root apt-get update -qq >/dev/null && DEBIAN_FRONTEND=noninteractive $as_root apt-get install -y -qq --no-install-recommends $missing >/dev/null
status=$?
case "$missing" in
*rabbitmq-server*) command -v systemctl >/dev/null 2>&1 && $as_root systemctl disable --quiet rabbitmq-server 2>/dev/null ;;
esac
case " $missing " in
*" mosquitto "*) command -v systemctl >/dev/null 2>&1 && $as_root systemctl disable --quiet mosquitto 2>/dev/null ;;
esac
case " $missing " in
*" postgresql "*) command -v systemctl >/dev/null 2>&1 && $as_root systemctl disable --quiet postgresql 2>/dev/null ;;
esac
exit $status
