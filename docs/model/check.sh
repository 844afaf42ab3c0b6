#!/usr/bin/env bash
# check.sh small|full|NAME…: runs the cases of that size, or these: Spin must find an error
#   where a rule was dropped, and none elsewhere.
# check.sh trace NAME: the shortest counterexample of a case.
set -u
cd "$(dirname "$0")"
here=$PWD
out=${MODEL_OUT:-$(mktemp -d)}

# compile NAME FLAGS…: builds the verifier of a case in $out/NAME.
compile() {
  local name=$1 model expect size knobs
  shift
  read -r _ model expect size knobs < <(grep -E "^$name " cases)
  mkdir -p "$out/$name" && cd "$out/$name" && cp "$here/$model.pml" model.pml || return 1
  # shellcheck disable=SC2086
  spin -a $knobs model.pml >spin.log 2>&1 || { cat spin.log; return 1; }
  gcc -O1 -w -DSAFETY -DVECTORSZ=1024 -DMEMLIM="${MODEL_MEMORY:-6000}" "$@" -o pan pan.c
}

# run NAME: one line with what was expected and what was found; fails if they differ.
run() {
  local name=$1 expect knobs found began=$SECONDS
  read -r _ _ expect _ knobs < <(grep -E "^$name " "$here/cases")
  compile "$name" -DCOLLAPSE || return 1
  ./pan -n -m10000 >pan.log 2>&1
  if grep -q 'assertion violated' pan.log; then found=fails
  elif grep -q 'errors: 0' pan.log && ! grep -qE 'max search depth too small|out of memory' pan.log; then found=holds
  else found=unknown; fi
  printf '%-16s %-6s %11s states %4d s  %s\n' "$name" "$found" "$(grep -oP '\d+(?= states, stored)' pan.log)" $((SECONDS - began)) "$knobs"
  if [ "$found" != "$expect" ]; then
    echo "FAILED: $name: expected that it $expect; see $out/$name/pan.log"
    return 1
  fi
}

# trace NAME: searches again and again for a shorter one, up to a minute.
trace() {
  compile "$1" -DREACH || return 1
  timeout "${MODEL_SECONDS:-60}" ./pan -n -i -m2000 >pan.log 2>&1
  ./pan -r -n 2>/dev/null | sed -nE 's/^ *EV ?//p; s/^pan:1: //p'
}

case "${1:-}" in
  small | full)
    if ! command -v spin >/dev/null || ! command -v gcc >/dev/null; then
      echo "SKIPPED: the models: they need spin and gcc (apt-get install spin gcc)"
      exit 0
    fi
    export MODEL_OUT=$out
    awk -v size="$1" '$4 == size { print $1 }' cases | xargs -P "${MODEL_JOBS:-2}" -n 1 "$here/check.sh" ||
      { echo "FAILED: see the lines above"; exit 1; }
    rm -rf "$out"
    ;;
  trace) trace "$2" ;;
  "" | -*) sed -n '2,4s/^# //p' check.sh; exit 2 ;;
  *) for name in "$@"; do run "$name" || exit 1; done ;;
esac
