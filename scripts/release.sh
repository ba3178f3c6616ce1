#!/usr/bin/env bash
# Build the sdist and the wheel without kernels, twice, and check them. contributing/releasing.md says what comes before and after.
#
#   scripts/release.sh v1.0.0     the tag of the release
#   scripts/release.sh try        files that are not published: the stand-in for the project's address is allowed
#
# The files are in dist/. The same commit and setuptools give the same bytes. Needs the packages build and twine.
set -euo pipefail
cd "$(dirname "$0")/.."
tag=${1:?the tag of the release, or try}
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' pyproject.toml)

refuse() { printf 'release: %s\n' "$*" >&2; exit 1; }

if [ "$tag" != try ]; then
    [ "$tag" = "v$version" ] || refuse "the tag is $tag, and pyproject.toml has the version $version."
    ! grep -n 'pseudograd\.invalid' pyproject.toml >&2 || refuse "these addresses are a stand-in. Write those of the project."
    grep -q "^## $version - " CHANGELOG.md || refuse "CHANGELOG.md has no section $version."
fi

export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-1700000000}
for folder in dist build/again; do
    rm -rf "$folder" build/lib build/bdist.*
    python -m build --sdist --outdir "$folder" . >/dev/null
    PSEUDOGRAD_NATIVE=0 python -m build --wheel --outdir "$folder" . >/dev/null
done
for file in dist/*; do
    cmp "$file" "build/again/${file#dist/}" || refuse "two builds of $file differ."
done
missing=$(comm -23 <(git ls-files src | sort) <(tar -tzf dist/*.tar.gz | cut -d/ -f2- | sort))
[ -z "$missing" ] || refuse "the sdist lacks" $missing
# An sdist with a part of the tests is one whose tests fail.
! tar -tzf dist/*.tar.gz | grep -q '/tests/' || refuse "the sdist has tests. MANIFEST.in leaves them out."
python -m twine check --strict dist/*
(cd dist && sha256sum ./*)
