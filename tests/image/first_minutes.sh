#!/bin/sh
# The first ten minutes of somebody who has rented a machine and never saw this program:
#
#   first_minutes.sh PYTHON EXTRAS REPOSITORY KEY
#
# PYTHON installs the program, with EXTRAS: `site,gpu`, or `site` if there is no torch for that Python; then no script
# and no sweep is measured, and the last line says so. /wheels takes the place of PyPI, and REPOSITORY, signed by KEY, that of NVIDIA. /captures holds a capture. Each
# command must end with the code that stands before it, and the first wrong one ends the script.
set -eu
python=$1 extras=$2 repository=$3 key=$4

expect() {
    wanted=$1
    shift
    printf '\n$ %s\n' "$*"
    code=0
    "$@" 2>&1 || code=$?
    if [ "$code" != "$wanted" ]; then
        echo "FAILED: exit code $code, not $wanted"
        exit 1
    fi
}

cd "$HOME"
mkdir work
cd work

echo "== Install"
expect 0 "$python" -m venv "$HOME/uv"
expect 0 "$HOME/uv/bin/pip" install --quiet --no-index --find-links /wheels uv
export PATH="$HOME/uv/bin:$HOME/.local/bin:$PATH"
expect 0 uv tool install --quiet --offline --python "$python" --no-index --find-links /wheels "profiler-job[$extras]"
expect 0 profiler-job --version
expect 0 profiler-job --help

echo "== Check the machine, which has no GPU"
expect 69 profiler-job doctor

echo "== Get nsys"
expect 69 profiler-job profile -- "$python" train.py
expect 2 profiler-job profile train.py
expect 74 profiler-job install-nsys --to /proc/nsys
expect 69 profiler-job install-nsys --repository "$repository/nowhere" --key "$key"
expect 69 profiler-job install-nsys --repository "$repository" --package nsight-systems-cli-0.0.0
expect 0 profiler-job install-nsys --repository "$repository" --package nsight-systems-cli-0.0.0 --key "$key"
expect 0 profiler-job install-nsys
expect 69 profiler-job doctor --device cpu
rm -r "$HOME/.local/share/profiler-job" # this nsys captures nothing, which doctor finds
expect 0 profiler-job doctor --device cpu
case $extras in
*gpu*) expect 0 profiler-job doctor --device cpu --sweep tiny ;;
*) expect 69 profiler-job doctor --device cpu --sweep tiny ;;
esac

echo "== Profile a script"
cat >train.py <<'END'
import torch
model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.GELU(), torch.nn.Linear(128, 8))
optimizer = torch.optim.AdamW(model.parameters())
for step in range(30):
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(torch.randn(16, 64)), torch.randint(0, 8, (16,)))
    loss.backward()
    optimizer.step()
END
case $extras in
*gpu*)
    expect 0 profiler-job profile --collector events "$(dirname "$(readlink -f "$(command -v profiler-job)")")/python" train.py
    ;;
*) expect 1 profiler-job profile --collector events "$python" train.py ;;
esac

echo "== Show a capture"
expect 0 profiler-job show /captures
expect 0 profiler-job show /captures --html capture.html
expect 0 test -s capture.html
expect 2 profiler-job show nothing.nsys-rep

echo "== A sweep with its site"
expect 0 profiler-job plan --sweep tiny
case $extras in
*gpu*)
    expect 0 profiler-job job --device cpu --sweep tiny
    expect 0 profiler-job status --sweep tiny
    expect 0 test -s results/site/index.html
    expect 0 profiler-job check-public results/site
    echo "== All as expected"
    ;;
*)
    expect 69 profiler-job job --device cpu --sweep tiny
    echo "== As expected, but without torch: no script and no sweep was measured"
    ;;
esac
