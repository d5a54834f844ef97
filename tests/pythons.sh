#!/usr/bin/env bash
# The suite without torch on every supported Python on PATH, each in a fresh environment:
#
#     tests/pythons.sh                          all tests but tests/live
#     tests/pythons.sh -q tests/repository/test_docs.py    with arguments for pytest
#     tests/pythons.sh --ends ...               on the oldest and the newest only; nothing where there is one Python
#
# A Python for which a dependency cannot be installed is named as not tested.
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export PIP_DISABLE_PIP_VERSION_CHECK=1 CI=true

NOT_INSTALLED=90
tested=()
untested=()
status=0

run_on() { # a Python, then arguments for pytest
    local python="$work/$1/bin/python" name=$1
    shift
    printf '\n== Python %s\n' "$name"
    "python$name" -m venv "$work/$name" || return $NOT_INSTALLED
    "$python" -m pip install --quiet -e '.[test]' || return $NOT_INSTALLED
    "$python" -m pytest "$@"
}

first_of() { # how many Pythons of the rest to test, the rest up to --, arguments for pytest
    local most=$1 python code
    shift
    local pythons=()
    while [ "$1" != -- ]; do pythons+=("$1"); shift; done
    shift
    for python in "${pythons[@]}"; do
        [ "$most" -gt 0 ] || break
        code=0
        run_on "$python" "$@" || code=$?
        if [ "$code" = $NOT_INSTALLED ]; then
            untested+=("$python")
            continue
        fi
        tested+=("$python")
        most=$((most - 1))
        [ "$code" = 0 ] || status=1
    done
}

ends=false
if [ "${1:-}" = --ends ]; then
    ends=true
    shift
fi
[ $# -gt 0 ] || set -- -q --ignore=tests/live
found=()
for minor in $(seq 10 40); do # requires-python of pyproject.toml
    if "python3.$minor" -c "" 2>/dev/null; then found+=("3.$minor"); fi # there may be a shim and no Python behind it
done
if [ ${#found[@]} = 0 ]; then
    echo "tests/pythons.sh: there is no python3.10 or later on PATH: install one" >&2
    exit 1
fi
if $ends && [ ${#found[@]} = 1 ]; then
    echo "Only Python ${found[0]} is on PATH: there is no other to compare it with."
    exit 0
fi
if $ends; then
    first_of 1 "${found[@]}" -- "$@"
    newer=()
    for python in "${found[@]}"; do
        case " ${tested[*]:-} ${untested[*]:-} " in *" $python "*) ;; *) newer=("$python" "${newer[@]}") ;; esac
    done
    [ ${#newer[@]} = 0 ] || first_of 1 "${newer[@]}" -- "$@"
else
    first_of ${#found[@]} "${found[@]}" -- "$@"
fi
printf '\nTested on: %s\n' "${tested[*]:-none}"
[ ${#untested[@]} = 0 ] || printf '!! NOT TESTED on %s: a dependency could not be installed there, for the reason above\n' "${untested[*]}" >&2
[ ${#tested[@]} -gt 0 ] || status=1
exit $status
