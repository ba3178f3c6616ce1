#!/usr/bin/env bash
# Make or complete a virtual environment with pseudograd in it.
#
#   scripts/environment.sh FOLDER [EXTRA]      EXTRA: report (default) or dev
#
# PYTHON  the interpreter (default python3). If it has a suitable torch already, the environment uses that one.
# TORCH   the torch to install (default: the one constraints.txt pins). Given, it wins over a torch that is there.
set -euo pipefail
cd "$(dirname "$0")/.."

folder=$1
extra=${2:-report}
python=${PYTHON:-python3}
wanted=${TORCH:-}
pinned=$(sed -n 's/^torch==//p' constraints.txt)

say() { printf 'pseudograd: %s\n' "$*" >&2; }

if ! command -v "$python" >/dev/null; then
    say "$python was not found. Install Python 3.10 or newer (Debian: apt install python3), or set PYTHON."
    exit 1
fi
if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))'; then
    say "$python is $("$python" --version 2>&1). Python 3.10 or newer is needed: set PYTHON to one."
    exit 1
fi
if ! "$python" -c 'import venv, ensurepip' 2>/dev/null; then
    say "$python cannot make virtual environments. Install its venv package (Debian: apt install python3-venv)."
    exit 1
fi

# The environment is complete when this note says what was asked for, or all extras.
asked="$extra torch=${wanted:-any} $(cksum < pyproject.toml) $(cksum < constraints.txt) $(cat setup.py src/pseudograd/kernels/native/*.[ch]* | cksum)"
made=$(cat "$folder/.complete" 2>/dev/null || true)
if [ -x "$folder/bin/python" ] && { [ "$made" = "$asked" ] || [ "$made" = "dev ${asked#* }" ]; }; then
    exit 0
fi

say "making the environment $folder (once; it may take some minutes)"
suitable='import sys, torch; sys.exit(tuple(int(n) for n in torch.__version__.split("+")[0].split(".")[:2]) < (2, 8))'
if [ ! -x "$folder/bin/python" ]; then
    if [ -z "$wanted" ] && "$python" -c "$suitable" 2>/dev/null; then
        say "using the torch that $python already has: $("$python" -c 'import torch; print(torch.__version__)')"
        "$python" -m venv "$folder"
        # By path, because --system-site-packages would skip the packages of an interpreter that is itself an environment.
        "$python" -c 'import os, torch; print(os.path.dirname(os.path.dirname(torch.__file__)))' \
            > "$("$folder/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/reused_torch.pth"
    else
        "$python" -m venv "$folder"
    fi
fi

# pip is silent for minutes or says too much: a line for each package that is fetched, for the steps that take long, and every ten seconds.
install() {
    "$folder/bin/python" -m pip install --disable-pip-version-check --progress-bar off "$@" | report
}

report() {
    local line status step="looking up packages"
    while true; do
        status=0
        IFS= read -r -t 10 line || status=$?
        if [ "$status" -gt 128 ]; then
            say "  still $step (${SECONDS} s)"
        elif [ "$status" -gt 0 ]; then
            break
        fi
        case $line in
            *Downloading*.metadata*) ;;
            *Downloading\ *) step="fetching"; fetched "${line#*Downloading }" ;;
            *Building\ editable*started*) step="compiling the kernels"; say "  $step" ;;
            *Installing\ collected\ packages*)
                step="unpacking $(tr -cd , <<< "$line," | wc -c | tr -d ' ') packages"; say "  $step" ;;
        esac
        line=""
    done
}

# FILE (SIZE), FILE being NAME-VERSION-... at the end of an address
fetched() {
    local file=${1%% *} size=${1#* }
    file=${file##*/}
    local version=${file#*-}
    version=${version%.tar.gz}
    say "  fetching ${file%%-*} ${version%%-*} $size"
}

if [ -n "$wanted" ] || ! "$folder/bin/python" -c "$suitable" 2>/dev/null; then
    version=${wanted:-$pinned}
    if ! "$folder/bin/python" -c "import sys, torch; sys.exit(torch.__version__.split('+')[0] != '$version')" 2>/dev/null; then
        say "installing torch $version from your package index. On Linux its default build brings several GB of CUDA packages;"
        say "to avoid them install a CPU build of torch for $python first: it is then reused."
        install "torch==$version"
    fi
fi
say "installing pseudograd with [$extra] (matplotlib, scikit-learn, scipy, jinja2 and what they need; about 250 MB)"
grep -v '^torch==' constraints.txt > "$folder/constraints.txt"
install --constraint "$folder/constraints.txt" --editable ".[$extra]"
echo "$asked" > "$folder/.complete"
