#!/usr/bin/env bash
# Run the tests on several torch versions, each in its own environment outside the tree, and print one table.
#
#   scripts/test_versions.sh 2.13.0 2.15.0
#
# PSEUDOGRAD_CACHE  where the environments live (default: the user's cache folder). The first run downloads each torch.
set -uo pipefail
cd "$(dirname "$0")/.."

cache=${PSEUDOGRAD_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/pseudograd}
mkdir -p "$cache"
rows=()
failed=0
for version in "$@"; do
    folder="$cache/torch-$version"
    log="$cache/torch-$version.log"
    if ! TORCH=$version scripts/environment.sh "$folder" dev; then
        rows+=("$version|not installed|")
        failed=1
        continue
    fi
    "$folder/bin/python" -m pytest -q -n "${JOBS:-2}" --dist loadgroup 2>&1 | tee "$log" | tail -n 3
    [ "${PIPESTATUS[0]}" -eq 0 ] && verdict=passed || { verdict=FAILED; failed=1; }
    rows+=("$version|$verdict|$(tail -n 1 "$log")")
done
printf '\n%-10s %-14s %s\n' torch result summary
for row in "${rows[@]}"; do
    IFS='|' read -r version verdict summary <<< "$row"
    printf '%-10s %-14s %s\n' "$version" "$verdict" "$summary"
done
exit "$failed"
