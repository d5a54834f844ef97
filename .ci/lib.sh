# Shared by .ci/run and .ci/long: the folder of data, system packages, steps side by side, and the time of each step.
cd "$(dirname "${BASH_SOURCE[0]}")/.."
if [ -z "${OSFMODEL_DATA:-}" ] && [ -d ../shared/data ]; then
    OSFMODEL_DATA=$(cd ../shared/data && pwd)
    export OSFMODEL_DATA
fi
work=$(mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null || true; rm -rf "$work"' EXIT
export PIP_DISABLE_PIP_VERSION_CHECK=1 CI=true # CI: the same examples of property tests each time
export PIP_NO_COMPILE=no # "no" turns compiling off in pip: only a fraction of what is installed is imported
unset PYTHONDONTWRITEBYTECODE # what is imported is then compiled once

step() { printf '\n== %d:%02d %s\n' $((SECONDS / 60)) $((SECONDS % 60)) "$*"; }

beside() { # run a function beside the steps that follow, until joined
    step "beside what follows: $1"
    ("$1") >"$work/$1.log" 2>&1 &
    printf -v "pid_of_$1" %s $!
}

joined() { # wait for it, print what it printed, and fail as it did
    local pid="pid_of_$1" code=0
    wait "${!pid}" || code=$?
    step "what $1 printed"
    cat "$work/$1.log"
    [ $code = 0 ] || exit $code
}

can_install() { [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; }

have() { # every one of these commands
    local name
    for name in "$@"; do command -v "$name" >/dev/null || return 1; done
}

system_packages() { # what is missing of them; tests that need one are skipped where it cannot be had
    if can_install && [ $# -gt 0 ]; then
        { apt-get update -qq && apt-get install -y -qq --no-install-recommends "$@"; } >/dev/null || true
    fi
}

install_torch() { # the CPU build, and what is tested with it
    # Without torchvision: PyPI's wheels need a torch with CUDA, and beside another they break what imports them.
    python -m pip install --quiet torch==2.13.0 lightning==2.6.6 accelerate==1.15.0 transformers==5.23.0 scikit-learn==1.9.1
    DS_BUILD_OPS=0 python -m pip install --quiet deepspeed==0.19.8 megatron-core==0.16.1
    python -m pip install --quiet -e '.[mcp]'
    export OSFMODEL_REQUIRE_TORCH=1 OSFMODEL_REQUIRE_DEEPSPEED=1 OSFMODEL_REQUIRE_MEGATRON=1
}
