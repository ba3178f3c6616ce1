#!/usr/bin/env bash
# Run the tests on several torch versions, each in its own environment outside the tree, and print one table.
#
#   scripts/test_versions.sh 2.13.0 2.15.0
#
# PSEUDOGRAD_CACHE  where the environments and logs live (default: the user's cache folder). The first run downloads each torch.
# Builds for CUDA run on the CPU. The exit status is 1 if a version failed or could not be installed.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1

if [ "$#" -eq 0 ]; then
    echo "usage: scripts/test_versions.sh VERSION..." >&2
    exit 2
fi
export CUDA_VISIBLE_DEVICES=
cache=${PSEUDOGRAD_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/pseudograd}
mkdir -p "$cache" || exit 1
rows=()
failed=0
for version in "$@"; do
    folder="$cache/torch-$version"
    log="$cache/torch-$version.log"
    echo "torch $version" >&2
    if ! TORCH=$version scripts/environment.sh "$folder" dev 2>&1 | tee "$log" >&2; then
        rows+=("$version|not installed|$log")
        failed=1
        continue
    fi
    if "$folder/bin/python" -m pytest -q -n "${JOBS:-2}" --dist loadgroup --programs 2>&1 | tee "$log" | tail -n 3; then
        verdict=passed
    else
        verdict=FAILED
        failed=1
    fi
    summary=$(grep -E '[0-9]+ (passed|failed|errors?)' "$log" | tail -n 1)
    if [ "$verdict" = FAILED ]; then
        summary="${summary:-no summary}; $log"
    fi
    rows+=("$version|$verdict|$summary")
done
printf '\n%-10s %-14s %s\n' torch result summary
for row in "${rows[@]}"; do
    IFS='|' read -r version verdict summary <<< "$row"
    printf '%-10s %-14s %s\n' "$version" "$verdict" "$summary"
done
exit "$failed"
