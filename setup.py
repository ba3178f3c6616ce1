"""Build the kernels in C into the package. Without a compiler, the package is pure Python and complete.

The library needs neither Python's headers nor torch: it uses torch's stable C symbols, which the torch that is loaded at run time has. So
one wheel, py3-none-<platform>, serves every CPython and every torch from 2.10 on. Everything else is in pyproject.toml.
"""

from __future__ import annotations

import gzip
import io
import os
import re
import sysconfig
import tarfile
import tempfile
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.command.sdist import sdist
from setuptools.errors import CompileError

NATIVE = Path("src/pseudograd/kernels/native")
IS_SUPPORTED = sysconfig.get_platform() in ("linux-x86_64", "linux-aarch64")  # lanes.h has code for them


class Build(build_ext):
    """Builds a library that is no module of Python. It has no entry point, and no version of Python in its name."""

    def get_ext_filename(self, fullname: str) -> str:
        return os.path.join(*fullname.split(".")) + ".so"

    def get_export_symbols(self, ext: Extension) -> list[str]:
        return []

    def build_extension(self, ext: Extension) -> None:
        """Link against an empty library with the name of torch's. At run time the real one is already loaded and is used."""
        with tempfile.TemporaryDirectory() as folder:
            empty = Path(folder, "empty.c")
            empty.touch()
            try:
                objects = self.compiler.compile([str(empty)], output_dir=folder, extra_preargs=["-fPIC"])
                self.compiler.link_shared_object(
                    objects, str(Path(folder, "libtorch_cpu.so")), extra_postargs=["-Wl,-soname,libtorch_cpu.so"]
                )
            # A missing or unfit compiler raises many errors. None of them may stop the installation.
            except Exception as error:
                raise CompileError(f"no C compiler for the native kernels: {error}") from error
            ext.library_dirs = [folder]
            super().build_extension(ext)


class Wheel(bdist_wheel):
    """For one platform and any Python."""

    def get_tag(self) -> tuple[str, str, str]:
        *_, platform = super().get_tag()  # "any", where nothing is to be built
        return "py3", "none", platform


class Source(sdist):
    """Packs the archive again with the date of SOURCE_DATE_EPOCH, if that is set. Two builds of one commit then give the same bytes."""

    def make_archive(self, base_name: str, format: str, *rest: str, **how: str) -> str:
        path = super().make_archive(base_name, format, *rest, **how)
        if "SOURCE_DATE_EPOCH" in os.environ and path.endswith(".tar.gz"):
            _pack_again(Path(path), int(os.environ["SOURCE_DATE_EPOCH"]))
        return path


def _pack_again(path: Path, seconds: int) -> None:
    with tarfile.open(path) as archive:
        held = [(member, archive.extractfile(member)) for member in archive.getmembers()]
        contents = {member.name: (member, file.read() if file else b"") for member, file in held}
    with (
        path.open("wb") as out,
        gzip.GzipFile("", "wb", 9, out, seconds) as zipped,
        tarfile.open(fileobj=zipped, mode="w") as archive,
    ):
        for _, (member, content) in sorted(contents.items()):
            member.mtime, member.uid, member.gid = seconds, 0, 0
            member.uname, member.gname, member.pax_headers = "", "", {}
            member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            archive.addfile(member, io.BytesIO(content))


def extensions() -> list[Extension]:
    if not IS_SUPPORTED or os.environ.get("PSEUDOGRAD_NATIVE") == "0":
        return []
    return [
        Extension(
            "pseudograd.kernels.native._native",
            sorted(str(path) for path in NATIVE.glob("*.c")),
            depends=sorted(str(path) for pattern in ("*.h", "*.cu") for path in NATIVE.glob(pattern)),
            include_dirs=[str(NATIVE)],  # for the assembler, which embeds the sources of the kernels on devices
            # gcc unrolls the loops over planes and slopes from -O3 on; below they go through memory, in up to four times the time.
            # Without clones for constant arguments the library is 40 KB smaller and as fast.
            extra_compile_args=[
                "-std=c11",
                "-O3",
                "-fno-ipa-cp-clone",
                "-g0",
                "-ffp-contract=off",
                "-fvisibility=hidden",
            ],
            extra_link_args=["-Wl,--no-as-needed", "-ltorch_cpu", "-ldl", "-lpthread", "-s"],
            optional=True,
        )
    ]


def readme() -> str:
    """README.md for the page of a package index, with links and pictures that are absolute addresses."""
    (source,) = re.findall(r'^Source = "(.*)"$', Path("pyproject.toml").read_text(encoding="utf-8"), flags=re.M)

    def absolute(match: re.Match[str]) -> str:
        start, target = match.groups()
        return f"{start}({source}/{'raw' if start.startswith('!') else 'blob'}/main/{target})"

    relative_link = r"(!?\[[^\]]*\])\((?!https?://|#|mailto:)([^)\s]+)\)"
    return re.sub(relative_link, absolute, Path("README.md").read_text(encoding="utf-8"))


setup(
    long_description=readme(),
    long_description_content_type="text/markdown",
    ext_modules=extensions(),
    cmdclass={"build_ext": Build, "bdist_wheel": Wheel, "sdist": Source},
)
