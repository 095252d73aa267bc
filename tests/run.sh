#!/usr/bin/env bash
# Runs every test: units, laws, servers, examples and documentation.
#
#   tests/run.sh [FILTER] [-- TEST OPTIONS]     the arguments of `cargo test`
#
# The tests need a PostgreSQL server and make their own databases on it. TEST_DATABASE_URL, a
# superuser's URL, names one; without it a throwaway server is started here and removed at the end.
# The tests of failover start servers of their own, from the binaries in TEST_POSTGRES_BIN.
# Where PostgreSQL, PgBouncer or faketime is missing, root on a system with apt gets it installed.
# A process that the tests leave behind is a failure, and is ended.

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

cluster=''   # directory of the throwaway server
owner=''     # the user it runs as, where we are root
child=''     # the cargo command that is running
bin=''       # directory of PostgreSQL's binaries

# In the environment of whatever is started from here on, so that it is known as ours.
export IDEMPOTENCY_TESTS=$$.$RANDOM$RANDOM

say() { printf 'tests/run.sh: %s\n' "$*" >&2; }

# Runs what may leave processes behind that are not ours: a service, a cache of the compiler.
unmarked() { env -u IDEMPOTENCY_TESTS "$@"; }

# Whether everything has ended that carries our mark; what was killed takes a moment. Without /proc none is seen.
nothing_is_left() {
  local left attempt
  for attempt in {1..30}; do
    left=$(unmarked grep -lsazFx "IDEMPOTENCY_TESTS=$IDEMPOTENCY_TESTS" /proc/[0-9]*/environ || true)
    if [[ -z $left ]]; then return 0; fi
    sleep 0.1
  done
  left=${left//[!0-9$'\n']/}
  say 'these processes were left, and are ended now:'
  ps -o pid=,ppid=,etime=,args= -p "${left//$'\n'/,}" >&2 || true
  # shellcheck disable=SC2086 # a word for each process
  kill -KILL $left 2>/dev/null || true
  return 1
}

# Once, on the way out: also after a failure or a signal.
cleanup() {
  local status=$?
  trap '' INT TERM HUP
  trap - EXIT
  if [[ -n $child ]]; then
    kill -TERM -- "-$child" 2>/dev/null || true
    wait "$child" 2>/dev/null || true
    kill -KILL -- "-$child" 2>/dev/null || true # a server that drains first
  fi
  if [[ -n $cluster ]]; then
    as_owner "$bin/pg_ctl" stop -D "$cluster/data" -m immediate >/dev/null 2>&1 || true
    rm -rf "$cluster"
  fi
  nothing_is_left || status=$((status == 0 ? 1 : status))
  exit "$status"
}
trap cleanup EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

# A process group of its own for each command, and `wait`: so a signal is heard at once, and
# takes the servers that the tests have started along.
run() {
  set -m
  "$@" </dev/null &
  child=$!
  set +m
  local status=0
  wait "$child" || status=$?
  child=''
  return "$status"
}

apt_install() {
  [[ $(id -u) == 0 ]] && command -v apt-get >/dev/null || return 1
  say "installing $1"
  export DEBIAN_FRONTEND=noninteractive
  { unmarked apt-get update && unmarked apt-get install -y "$1"; } >&2 </dev/null
}

# The directory of the newest server binaries; the client's alone (pg_config, psql) won't do.
find_postgres() {
  local dir candidates
  candidates=$(
    printf '%s\n' /usr/lib/postgresql/*/bin | sort -rV
    pg_config --bindir 2>/dev/null || true
    dirname "$(command -v initdb 2>/dev/null)" 2>/dev/null || true
  )
  while IFS= read -r dir; do
    if [[ -x $dir/initdb && -x $dir/pg_ctl && -x $dir/postgres ]]; then
      printf '%s\n' "$dir"
      return
    fi
  done <<<"$candidates"
  return 1
}

find_pgbouncer() {
  PATH="$PATH:/usr/sbin:/usr/local/sbin" command -v pgbouncer
}

# PostgreSQL refuses to run as root.
as_owner() {
  if [[ -z $owner ]]; then
    "$@"
  elif command -v runuser >/dev/null; then
    (cd / && runuser -u "$owner" -- "$@")
  else
    (cd / && su "$owner" -s /bin/bash -c "$(printf '%q ' "$@")")
  fi
}

# A port that nobody listens on, below the range that the tests' own servers are given.
free_port() {
  local port
  while true; do
    port=$((15000 + RANDOM % 17000))
    if ! (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then
      printf '%s\n' "$port"
      return
    fi
  done
}

# Whether the server has the contrib module that counts statements.
has_statement_counter() {
  local dir
  for dir in "$("$bin/pg_config" --pkglibdir 2>/dev/null)" "$bin/../lib" "$bin/../lib/postgresql"; do
    if compgen -G "$dir/pg_stat_statements.*" >/dev/null; then return 0; fi
  done
  return 1
}

start_postgres() {
  local base=${TMPDIR:-/tmp} port attempt options
  if [[ $(id -u) == 0 ]]; then
    owner=postgres
    id -u postgres >/dev/null 2>&1 || owner=nobody
    base=/tmp # another user may not be able to enter root's TMPDIR
  fi
  cluster=$(mktemp -d "$base/idempotency-tests.XXXXXX")
  if [[ -n $owner ]]; then chown "$owner" "$cluster"; fi
  if ! as_owner "$bin/initdb" -D "$cluster/data" -U postgres --auth=trust -E UTF8 --no-locale \
    --no-sync >"$cluster/initdb.log" 2>&1; then
    cat "$cluster/initdb.log" >&2
    return 1
  fi
  # Durability against a power cut is the one thing that these tests don't need.
  options="-c listen_addresses=127.0.0.1 -c unix_socket_directories='' -c max_connections=300 -c fsync=off"
  if has_statement_counter; then
    options+=' -c shared_preload_libraries=pg_stat_statements'
  else
    say 'no pg_stat_statements (the contrib package): the tests that count statements need it'
  fi
  # Someone may take the port between the look and the start.
  for attempt in 1 2 3 4 5; do
    port=$(free_port)
    if as_owner "$bin/pg_ctl" start -w -t 60 -D "$cluster/data" -l "$cluster/data/server.log" \
      -o "$options -p $port" >/dev/null 2>&1 </dev/null; then
      export TEST_DATABASE_URL="postgres://postgres@127.0.0.1:$port/postgres"
      say "PostgreSQL from $bin on port $port"
      return
    fi
    say "PostgreSQL did not start (attempt $attempt)"
  done
  cat "$cluster/data/server.log" >&2
  return 1
}

if [[ -n ${TEST_POSTGRES_BIN:-} ]]; then
  bin=$TEST_POSTGRES_BIN
elif ! bin=$(find_postgres); then
  apt_install postgresql || true
  bin=$(find_postgres) || say 'no PostgreSQL server is installed: the tests of failover are skipped'
fi
if [[ -n $bin ]]; then export TEST_POSTGRES_BIN=$bin; fi
if [[ -z ${TEST_DATABASE_URL:-} ]]; then
  if [[ -z $bin ]]; then
    say 'PostgreSQL is missing: install its server (postgresql on Debian and Ubuntu,'
    say 'postgresql-server and postgresql-contrib on Fedora, brew install postgresql on macOS),'
    say 'or set TEST_DATABASE_URL to the URL of a superuser on a server for tests'
    exit 1
  fi
  start_postgres
fi

if [[ -z ${TEST_PGBOUNCER:-} ]]; then
  if ! TEST_PGBOUNCER=$(find_pgbouncer); then
    apt_install pgbouncer || true
    TEST_PGBOUNCER=$(find_pgbouncer) || say 'PgBouncer is missing: install pgbouncer to run its tests'
  fi
fi
# Left unset where there is none, so that a test can tell.
if [[ -n $TEST_PGBOUNCER ]]; then export TEST_PGBOUNCER; else unset TEST_PGBOUNCER; fi

# A server whose clock is wrong runs under it.
command -v faketime >/dev/null || apt_install faketime || say 'faketime is missing: install it to run the tests of clocks'

# `cargo test --examples` builds the examples' tests only, and the servers' tests start the example.
run unmarked cargo build --all-features --examples
run unmarked cargo test --all-features --lib --tests --examples --no-run
run cargo test --all-features --lib --tests --examples --no-fail-fast "$@"
run cargo test --all-features --doc "$@"
