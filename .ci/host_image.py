"""An image from this machine's own Python, compilers and node, for engines that cannot pull one.

`write_image(file)` writes a tar that `docker import` takes. Parent directories are explicit and
0755, since implied ones came out untraversable for other users, and no member comes twice.
numpy, sympy and mpmath come along where the running interpreter has them; other packages do not.
"""

from __future__ import annotations

import glob
import importlib.util
import io
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Iterator
from typing import BinaryIO

_PROGRAMS = """bash sh cat ls mkdir rm cp mv ln touch head tail od sort uniq wc tr cut seq sleep env grep sed awk find
xargs tee printf echo true false id uname expr dd stat chmod ps mktemp date diff test yes su basename
dirname readlink realpath mkfifo rmdir paste comm nproc timeout split md5sum sha256sum df du nohup
kill gcc g++ as ld node"""
_HEADERS = "*.h c++ linux asm asm-generic bits sys gnu rpc net netinet netpacket arpa finclude misc mtd"
_LINKED = """*crt*.o libc.so* libc_nonshared.a libm.so* libm-*.a libmvec* libpthread* libdl.* librt.* libutil.*
libstdc++* libgcc_s*"""
_COMPILER_PARTS = "cc1 cc1plus collect2 lto-wrapper liblto_plugin.so *crt*.o libgcc* libstdc++* include include-fixed"
_NOT_FOR_JOBS = {"test", "idlelib", "tkinter", "turtledemo", "ensurepip", "lib2to3", "site-packages"}
_PACKAGES = ("numpy", "sympy", "mpmath")
_ACCOUNTS = b"root:x:0:0:root:/:/bin/sh\nnobody:x:65534:65534:nobody:/job:/bin/sh\n"


class Image:
    """A tar under construction: paths keep their place, symlinks bring what they point to."""

    def __init__(self, tar: tarfile.TarFile) -> None:
        self._tar = tar
        self._has: set[str] = set()

    def make_dir(self, path: str, mode: int = 0o755) -> None:
        if path in ("", "/") or path in self._has:
            return
        self.make_dir(os.path.dirname(path))
        if os.path.islink(path):  # /bin on a machine with a merged /usr
            self._add_link(path)
            self.make_dir(os.path.realpath(path))
        else:
            self._add(path, tarfile.DIRTYPE, mode)

    def write(self, path: str, content: bytes) -> None:
        self.make_dir(os.path.dirname(path))
        self._add(path, tarfile.REGTYPE, 0o644, content)

    def copy(self, source: str, path: str) -> None:
        """A file of this machine under another path. It keeps its time, which bytecode beside it names."""
        self.make_dir(os.path.dirname(path))
        mode = 0o755 if os.access(source, os.X_OK) else 0o644
        with open(source, "rb") as file:
            self._add(path, tarfile.REGTYPE, mode, file.read(), time=int(os.stat(source).st_mtime))

    def link(self, path: str, target: str) -> None:
        self.make_dir(os.path.dirname(path))
        self._add(path, tarfile.SYMTYPE, 0o777, link=target)

    def bring(self, path: str) -> None:
        """A file, symlink or whole directory of this machine."""
        parent = os.path.dirname(path)
        if "/.." not in parent:
            self.make_dir(parent)
        path = os.path.join(os.path.realpath(parent), os.path.basename(path))
        if path in self._has:
            return
        self.make_dir(os.path.dirname(path))
        if os.path.islink(path):
            self._add_link(path)
            self.bring(os.path.join(os.path.dirname(path), os.readlink(path)))
        elif os.path.isdir(path):
            self.make_dir(path)
            for name in sorted(set(os.listdir(path)) - _NOT_FOR_JOBS):
                self.bring(os.path.join(path, name))
        elif os.path.isfile(path):
            self.copy(path, path)

    def _add_link(self, path: str) -> None:
        self._add(path, tarfile.SYMTYPE, 0o777, link=os.readlink(path))

    def _add(self, path: str, kind: bytes, mode: int, content: bytes = b"", link: str = "", time: int = 0) -> None:
        path = os.path.normpath(path)
        if path in self._has:
            return
        self._has.add(path)
        member = tarfile.TarInfo(path.lstrip("/"))
        member.type, member.mode, member.size, member.linkname = kind, mode, len(content), link
        member.mtime = time
        self._tar.addfile(member, io.BytesIO(content))


def write_image(file: BinaryIO) -> None:
    with tarfile.open(fileobj=file, mode="w|") as tar:
        fill(Image(tar))


def fill(image: Image) -> None:
    for path in ("/bin", "/sbin", "/lib", "/lib64", "/usr/local/bin", "/proc", "/sys", "/dev", "/root"):
        image.make_dir(path)
    image.make_dir("/tmp", 0o1777)
    image.write("/etc/passwd", _ACCOUNTS)
    python = os.path.realpath(getattr(sys, "_base_executable", sys.executable))
    programs = [found for name in _PROGRAMS.split() if (found := shutil.which(name))]
    executables = [python, *programs]
    for path in programs:
        image.bring(path)
    if shutil.which("gcc"):
        executables += _bring_compiler(image)
    executables += _bring_python(image, python)
    for path in _libraries(executables):
        image.bring(path)


def _bring_python(image: Image, python: str) -> list[str]:
    """The base interpreter where it lies, named on every PATH; returns what needs libraries."""
    image.bring(python)
    if python not in ("/usr/local/bin/python3", "/usr/bin/python3"):
        image.link("/usr/local/bin/python3", python)
    library = os.path.dirname(os.path.realpath(os.__file__))
    for name in sorted(os.listdir(library)):
        if name not in _NOT_FOR_JOBS and not name.startswith("config-"):
            image.bring(os.path.join(library, name))
    modules = glob.glob(os.path.join(library, "lib-dynload", "*.so"))
    packages = os.path.join(library, "site-packages")
    for name in _PACKAGES:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.origin is not None:
            source = os.path.dirname(spec.origin)
            for found in (source, f"{source}.libs"):
                modules += _copy_package(image, found, os.path.join(packages, os.path.basename(found)))
    return modules


def _copy_package(image: Image, source: str, target: str) -> list[str]:
    objects = []
    for folder, below, names in os.walk(source):
        below[:] = sorted(set(below) - {"tests"})
        for name in sorted(names):
            path = os.path.join(folder, name)
            image.copy(path, os.path.normpath(os.path.join(target, os.path.relpath(path, source))))
            if ".so" in name:
                objects.append(path)
    return objects


def _bring_compiler(image: Image) -> list[str]:
    """Headers, start files and the parts that gcc and g++ call; returns what needs libraries."""
    multiarch = _gcc("-print-multiarch")
    parts = os.path.dirname(_gcc("-print-file-name=libgcc.a"))
    patterns = [f"/usr/include/{name}" for name in [*_HEADERS.split(), multiarch] if name]
    patterns += [f"/usr/lib/{multiarch}/{name}" for name in _LINKED.split()]
    patterns += [f"{parts}/{name}" for name in _COMPILER_PARTS.split()]
    for pattern in patterns:
        for path in sorted(glob.glob(pattern)):
            image.bring(path)
    return [
        path for name in ("cc1", "cc1plus", "collect2", "liblto_plugin.so") for path in glob.glob(f"{parts}/{name}")
    ]


def _gcc(question: str) -> str:
    return subprocess.run(["gcc", question], capture_output=True, text=True, check=True).stdout.strip()


def _libraries(executables: list[str]) -> Iterator[str]:
    """What the loader of this machine gives them, the loader itself included."""
    listed = subprocess.run(["ldd", *executables], capture_output=True, text=True).stdout
    found = set(re.findall(r"(?:=> |^\s)(/\S+) \(0x", listed, re.MULTILINE))
    yield from sorted(path for path in found if "/site-packages/" not in path)


if __name__ == "__main__":
    if sysconfig.get_platform().split("-")[0] != "linux":
        sys.exit("host_image: needs Linux")
    write_image(sys.stdout.buffer)
