#!/usr/bin/env bash
# Proves that the judge of the histories sees: puts one fault at a time into a copy of the crate, and plays histories until
# one breaks a rule.
#
#   tests/histories/prove.sh [FAULT]
#
# Needs TEST_DATABASE_URL. `HISTORIES` (default 1000) is how many histories may pass before a fault counts as unseen,
# `HISTORY_SEED` (default 1) where they begin.

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$PWD/target/prove}
export HISTORIES=${HISTORIES:-1000} HISTORY_SEED=${HISTORY_SEED:-1}
unseen=0

# fault NAME FILES PERL: the substitution must change every file.
fault() {
  local name=$1 files=$2 change=$3 file
  if [[ -n ${only:-} && $name != "$only" ]]; then return; fi
  rm -rf "${copy:?}"/*
  cp -r Cargo.toml Cargo.lock README.md src schema migrations tests examples benches "$copy/"
  for file in $files; do
    perl -0pi -e "$change" "$copy/$file"
    if cmp -s "$file" "$copy/$file"; then
      printf '%s: %s has changed, and this fault no longer fits it\n' "$name" "$file" >&2
      exit 1
    fi
  done
  (cd "$copy" && cargo test -q --all-features --test histories --no-run) >"$copy/build" 2>&1 || {
    cat "$copy/build" >&2
    exit 1
  }
  local backend answer
  for backend in sqlite postgres; do
    answer=$(cd "$copy" && cargo test -q --all-features --test histories "$backend" 2>&1 | grep -o 'history [0-9]*, made smaller' | sort -n -k2 | head -1) || true
    if [[ -z $answer ]]; then
      printf '%s, %s: UNSEEN in %s histories\n' "$name" "$backend" "$HISTORIES"
      unseen=1
    else
      printf '%s, %s: %s\n' "$name" "$backend" "${answer%, made smaller}"
    fi
  done
}

only=${1:-}

fault 'a release deletes the record of a resumed attempt' src/protocol/settling.rs \
  's/stays: stays\.then_some\(retention\)/stays: stays.then_some(retention).filter(|_| key.held.owner.attempt == 1)/'

fault 'a rejection code is taken from a list item' src/graphql/execution/completion.rs \
  's/Some\(thrown\)\.filter\(\|thrown\| thrown\.path\.len\(\) <= depth\)/Some(thrown)/; s/error\.path\.len\(\) == depth/error.path.len() >= depth/'

fault 'the intent of a step is not stored' src/attempt.rs \
  's/self\.checkpoint\(name, StepKind::Remote, None, None\)\.await\?;//'

fault 'a fence is left out' 'src/store/sqlite/sql.rs src/store/postgres/sql.rs' \
  's/AND attempt = \$5\n/AND (attempt = \$5 OR true)\n/g'

fault 'a settlement ignores that it was refused' src/protocol/settling.rs \
  's/Ok\(false\) => Some\(self\.superseded\(ErrorCode::OutcomeUnknown\)\.await\),/Ok(false) => None,/; s/Ok\(false\) => return Some\(self\.superseded\(ErrorCode::RolledBack\)\.await\),/Ok(false) => return None,/'

exit "$unseen"
