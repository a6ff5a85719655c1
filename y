#!/bin/sh
# The front door: makes sure of the tools, then hands over to the crate `xtask`.
set -eu
root=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)

# Paths in arguments stay relative to the caller's folder; this one would mean two things otherwise.
case "${CARGO_TARGET_DIR:-/}" in
    /*) ;;
    *) CARGO_TARGET_DIR=$PWD/$CARGO_TARGET_DIR && export CARGO_TARGET_DIR ;;
esac

usage() {
    cat <<'TEXT'
usage: ./x COMMAND [ARGUMENTS]

  bench [ARGS]        build and run the main measurement (as root: over a veth pair; else loopback)
  test                format, lints, documentation, every test, the simulator's torture
  sim ARGS            run the simulator, e.g. ./x sim torture --seeds 0..500
  serve, report, doctor
                      the other commands of the `ethernot` program, built first
  acceptance NAME     measure a suite of bounds and print a table (add --quick for a short run)
  install --destdir DIR [--prefix PREFIX]
                      build, and install the command, its libraries and documents (/ is this host)
  package             the same as a package for Debian and Ubuntu; prints its path
  fuzz --seconds N    fuzz every decoder in turn; `test` only replays what is kept, and some thousand inputs
  deny                check licences, known faults and sources of crates; needs cargo-deny
  loom                run the models of threads, in every interleaving (a part of `test`)
  miri                interpret the tests of the crates that only compute; needs a nightly Rust
  python              build the Python package of the simulator and run its tests
  dissector           regenerate the Wireshark dissector
  tidy                check the rules of the house only
  help                this text

What is missing (Rust, a C compiler, iproute2, tshark for the tests) is installed with apt-get when
this runs as root or with passwordless sudo; otherwise one command is printed. Without iproute2 the
benchmark uses loopback; without tshark the dissector's test is skipped. iperf3, and the servers and
clients that `bench apache`, `ganglia` and `programs` measure, are optional; servers are not started.
Where neither the system nor its packages have a Rust that is new enough, rustup brings one into a
folder of its own, ~/.local/share/ethernot/rust, and nothing else of the account changes.
CARGO_TARGET_DIR is honoured. X_NO_INSTALL=1 installs nothing.
TEXT
}

say() { printf 'x: %s\n' "$*" >&2; }
have() { command -v "$1" >/dev/null 2>&1; }

# --- becoming root, and packages -------------------------------------------------------------

# Prefix for a privileged command: nothing, `sudo -n`, or failure.
privileged() {
    if [ "$(id -u)" -eq 0 ]; then "$@"
    elif have sudo && sudo -n true 2>/dev/null; then sudo -n "$@"
    else return 1
    fi
}

can_install() {
    [ -z "${X_NO_INSTALL:-}" ] && have apt-get && privileged true
}

apt_updated=no
apt_update_once() {
    [ "$apt_updated" = no ] || return 0
    apt_updated=yes
    privileged apt-get update -qq </dev/null >&2 || say "apt-get update failed; going on with the lists there are"
}

# install_packages PACKAGE... : the package lists are fetched only if the first try fails.
install_packages() {
    can_install || return 1
    say "installing: $*"
    apt_get_install "$@" 2>/dev/null && return 0
    apt_update_once
    apt_get_install "$@"
}

apt_get_install() {
    privileged env DEBIAN_FRONTEND=noninteractive \
        apt-get install -y -qq --no-remove --no-install-recommends "$@" </dev/null >&2
}

# How a person gets the same packages.
install_line() {
    if have apt-get; then echo "sudo apt-get update && sudo apt-get install -y $*"
    elif have dnf; then echo "sudo dnf install -y $*"
    elif have pacman; then echo "sudo pacman -S --needed $*"
    elif have zypper; then echo "sudo zypper install -y $*"
    else echo "install with the system's package manager: $*"
    fi
}

# need COMMAND WHAT-IT-IS-FOR PACKAGE... : stops when it can't be had.
need() {
    command=$1 purpose=$2
    shift 2
    have "$command" && return 0
    install_packages "$@" && have "$command" && return 0
    say "'$command' is missing ($purpose). Run this, then try again:"
    say "  $(install_line "$@")"
    exit 1
}

# want COMMAND WHAT-HAPPENS-WITHOUT PACKAGE... : goes on when it can't be had.
want() {
    command=$1 otherwise=$2
    shift 2
    have "$command" && return 0
    install_packages "$@" && have "$command" && return 0
    say "'$command' is missing: $otherwise. To have it: $(install_line "$@")"
}

# Unmodified RDMA programs and frameworks, which tests run over the libraries: a program of each, and packages.
rdma_programs="
    ib_write_bw=perftest ibv_devinfo=ibverbs-utils,libibverbs-dev rping=rdmacm-utils,librdmacm-dev
    rdma-ndd=rdma-core,python3-pyverbs
    ucx_perftest=ucx-utils fi_pingpong=libfabric-bin qperf=qperf fio=fio
    mpicc.openmpi=openmpi-bin,libopenmpi-dev mpicc.mpich=mpich,libmpich-dev
    dpkg-shlibdeps=dpkg-dev
"

# Unmodified servers and clients with sockets, which tests and measurements run over the edge: the same.
socket_programs="
    apache2=apache2-bin ab=apache2-utils nginx=nginx wrk=wrk curl=curl gmond=ganglia-monitor
    redis-server=redis-server redis-benchmark=redis-tools memcached=memcached memcslap=libmemcached-tools
    iperf3=iperf3 sockperf=sockperf
"

# Packages of servers start them, and again when the host starts. Here only their programs are wanted: meanwhile nothing
# that is installed is started, by the file that Debian has for that, and what is enabled is disabled again.
services="nginx redis-server memcached ganglia-monitor"
policy=/usr/sbin/policy-rc.d
policy_is_ours=no
keep_servers_idle() {
    can_install && [ ! -e "$policy" ] || return 0
    for service in $services; do
        [ ! -e "/usr/lib/systemd/system/$service.service" ] && [ ! -e "/lib/systemd/system/$service.service" ] &&
            [ ! -e "/etc/init.d/$service" ] && idle="${idle:-} $service"
    done
    policy_is_ours=yes
    trap let_servers_run EXIT
    trap 'exit 130' INT TERM HUP
    printf '#!/bin/sh\nexit 101\n' | privileged tee "$policy" >/dev/null
    privileged chmod 755 "$policy"
}
let_servers_run() {
    [ "$policy_is_ours" = yes ] || return 0
    policy_is_ours=no
    trap - EXIT INT TERM HUP
    privileged rm -f "$policy"
    have systemctl || return 0
    # shellcheck disable=SC2086 # They are words.
    for service in ${idle:-}; do privileged systemctl disable --quiet "$service" 2>/dev/null || true; done
}

want_programs() {
    missing=
    for pair in $1; do
        have "${pair%%=*}" || [ -e "/usr/sbin/${pair%%=*}" ] || missing="$missing ${pair#*=}"
    done
    [ -n "$missing" ] || return 0
    missing=$(printf '%s' "${missing# }" | sed 's/,/ /g')
    keep_servers_idle
    # shellcheck disable=SC2086 # They are words.
    install_packages $missing && let_servers_run && return 0
    # One that is not there keeps no other from being installed.
    for package in $missing; do
        install_packages "$package" && missing=$(printf ' %s ' "$missing" | sed "s/ $package / /")
    done
    let_servers_run
    missing=$(printf '%s' "$missing" | sed 's/^ *//; s/ *$//')
    [ -n "$missing" ] || return 0
    # shellcheck disable=SC2086
    say "tests with programs of these packages are skipped. To have them: $(install_line $missing)"
}

# MPI as anybody can have it: each wheel in a virtual environment of its own, below what is built. Which ones, and in which
# versions, says a file; a mark says what is there. Without a network this gives up soon, and tests are skipped.
want_mpi_wheels() {
    while read -r wheel; do
        place=${CARGO_TARGET_DIR:-$root/target}/mpi/${wheel%%==*}
        [ "$(cat "$place/made-of" 2>/dev/null)" != "$wheel" ] || continue
        if [ -z "${X_NO_INSTALL:-}" ] && have python3 && have timeout; then
            say "fetching $wheel into $place"
            rm -rf "$place"
            mkdir -p "$place"
            timeout 120 python3 -m venv "$place" </dev/null >&2 &&
                timeout 180 "$place/bin/pip" --quiet --disable-pip-version-check --retries 1 --timeout 15 \
                    install --only-binary :all: "$wheel" </dev/null >&2 &&
                echo "$wheel" > "$place/made-of" && continue
            rm -rf "$place"
        fi
        say "there is no $wheel: tests with it are skipped. It takes python3 with venv and pip, and a network"
    done < "$root/abi/programs/mpi-wheels.txt"
}

# --- Rust ------------------------------------------------------------------------------------

rust_minimum=$(sed -n 's/^rust-version *= *"\([0-9.]*\)".*/\1/p' "$root/Cargo.toml" | head -n 1)

# version_at_least HAVE WANT, on the first two numbers.
version_at_least() {
    have_major=${1%%.*} have_rest=${1#*.}
    want_major=${2%%.*} want_rest=${2#*.}
    have_minor=${have_rest%%.*} want_minor=${want_rest%%.*}
    [ "$have_major" -gt "$want_major" ] || {
        [ "$have_major" -eq "$want_major" ] && [ "$have_minor" -ge "$want_minor" ]
    }
}

rust_is_enough() {
    have cargo && have rustc || return 1
    found=$(rustc --version 2>/dev/null | sed -n 's/^rustc \([0-9]*\.[0-9]*\).*/\1/p')
    [ -n "$found" ] && version_at_least "$found" "$rust_minimum"
}

# Version that apt would install for a package, without epoch; empty when there is none.
apt_candidate() {
    LC_ALL=C apt-cache policy "$1" 2>/dev/null |
        sed -n 's/^ *Candidate: *\([0-9]*:\)\{0,1\}\([0-9][0-9.]*\).*/\2/p'
}

# The Rust that this brings lives here, apart from the account's own.
rust_home=${XDG_DATA_HOME:-${HOME:-/root}/.local/share}/ethernot/rust

# Its programs come first, if it is there and will do. They need neither rustup nor its variables.
own_rust_is_enough() {
    path_before=$PATH
    for bin in "$rust_home"/rustup/toolchains/stable-*/bin; do
        PATH="$bin:$path_before"
        export PATH
        rust_is_enough && return 0
    done
    PATH=$path_before
    return 1
}

# own_rust_by RUSTUP... : has a rustup bring the stable toolchain there, or make it newer.
own_rust_by() {
    say "installing the stable Rust toolchain with rustup, into $rust_home"
    RUSTUP_HOME="$rust_home/rustup" \
        "$@" toolchain install stable --no-self-update --profile minimal -c clippy -c rustfmt \
        </dev/null >&2 || return 1
    own_rust_is_enough
}

rust_from_distribution() {
    can_install && have apt-cache || return 1
    apt_update_once
    candidate=$(apt_candidate rustc)
    if [ -n "$candidate" ] && version_at_least "$candidate" "$rust_minimum"; then
        install_packages rustc cargo rust-clippy rustfmt && rust_is_enough && return 0
    fi
    [ -n "$(apt_candidate rustup)" ] && install_packages rustup && own_rust_by rustup
}

# fetch ADDRESS FILE
fetch() {
    curl --proto '=https' --tlsv1.2 -sSf -o "$2" "$1" </dev/null >&2
}

# As https://rustup.rs says, without a question and without a change of the account's settings. Where that
# cannot be reached, as with a proxy that lets only some hosts through, the program itself, from where
# that script would take it.
rust_from_rustup() {
    [ -z "${X_NO_INSTALL:-}" ] || return 1
    [ ! -x "$rust_home/cargo/bin/rustup" ] || { own_rust_by "$rust_home/cargo/bin/rustup" && return 0; }
    have curl || install_packages curl ca-certificates || return 1
    mkdir -p "$rust_home" || return 1
    say "fetching rustup from https://sh.rustup.rs, which installs Rust into $rust_home"
    if fetch https://sh.rustup.rs "$rust_home/rustup-init.sh"; then
        installer=rustup-init.sh
    else
        rustup_program || return 1
        installer=rustup-init
    fi
    chmod +x "$rust_home/$installer"
    RUSTUP_HOME="$rust_home/rustup" CARGO_HOME="$rust_home/cargo" RUSTUP_INIT_SKIP_PATH_CHECK=yes \
        "$rust_home/$installer" -y --no-modify-path --profile minimal -c clippy -c rustfmt \
        --default-toolchain stable </dev/null >&2 || return 1
    own_rust_is_enough
}

# The installer as a program, whose sum must be as published beside it.
rustup_program() {
    case $(uname -m) in
        x86_64 | aarch64) ;;
        *) return 1 ;;
    esac
    from="${RUSTUP_UPDATE_ROOT:-https://static.rust-lang.org/rustup}/dist/$(uname -m)-unknown-linux-gnu/rustup-init"
    say "fetching it from $from"
    fetch "$from" "$rust_home/rustup-init" && fetch "$from.sha256" "$rust_home/rustup-init.sha256" || return 1
    read -r published _ < "$rust_home/rustup-init.sha256" || [ -n "$published" ] || return 1
    found=$(sha256sum "$rust_home/rustup-init") || return 1
    [ "${found%% *}" = "$published" ] && return 0
    say "what came from $from is not what was published (its SHA-256 differs): not used"
    return 1
}

ensure_rust() {
    rust_is_enough && return 0
    cargo_bin=${CARGO_HOME:-${HOME:-/root}/.cargo}/bin
    if [ -d "$cargo_bin" ]; then
        PATH="$cargo_bin:$PATH"
        export PATH
        rust_is_enough && return 0
    fi
    own_rust_is_enough && return 0
    if have rustup; then
        [ -z "${X_NO_INSTALL:-}" ] && own_rust_by rustup && return 0
        remedy="rustup toolchain install stable --profile minimal -c clippy -c rustfmt && rustup default stable"
    else
        rust_from_distribution && return 0
        rust_from_rustup && return 0
        remedy="curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh -s -- -y --profile minimal -c clippy -c rustfmt"
        have curl || remedy="$(install_line curl ca-certificates) && $remedy"
    fi
    say "Rust $rust_minimum or later is missing and could not be had. Run this, then try again:"
    say "  $remedy"
    exit 1
}

ensure_rust_components() {
    cargo fmt --version >/dev/null 2>&1 && cargo clippy --version >/dev/null 2>&1 && return 0
    if have rustup && [ -z "${X_NO_INSTALL:-}" ]; then
        rustup component add clippy rustfmt >&2 && return 0
    else
        install_packages rust-clippy rustfmt && return 0
    fi
    say "clippy or rustfmt is missing. Run this, then try again:"
    if have rustup; then say "  rustup component add clippy rustfmt"
    else say "  $(install_line rust-clippy rustfmt)"
    fi
    exit 1
}

# --- main ------------------------------------------------------------------------------------

case "${1:-help}" in
    help | -h | --help)
        usage
        exit 0
        ;;
esac

need cc "the linker Rust uses" gcc libc6-dev
ensure_rust
case "$1" in
    test | ci)
        ensure_rust_components
        want ip "tests in network namespaces are skipped" iproute2
        want tshark "the dissector's test is skipped" tshark
        want_programs "$rdma_programs $socket_programs"
        want python3 "tests of the Python package are skipped" python3 python3-venv
        want_mpi_wheels
        ;;
    package) need dpkg-shlibdeps "the tool that finds what a package needs" dpkg-dev ;;
    python) want python3 "there is nothing to build the package for" python3 python3-venv ;;
    bench)
        want ip "the measurement uses loopback instead of a veth pair" iproute2
        ;;
    acceptance)
        want ip "the measurement uses loopback instead of a veth pair" iproute2
        want sockperf "its row is left out" sockperf
        want iperf3 "rows against it are left out" iperf3
        want_programs "$rdma_programs $socket_programs"
        want python3 "rows with MPI from wheels are left out" python3 python3-venv
        want_mpi_wheels
        ;;
esac

exec cargo run --quiet --manifest-path "$root/Cargo.toml" --package xtask -- "$@"
