"""A local file as memory, for who asks for it: nothing is read before it is touched, and nothing is copied.

The caller's risk, which is why files are read and not mapped by default: whoever rewrites the file in place
changes the bytes under the tensors, and whoever cuts it off kills the process (SIGBUS) that touches them later.
"""

import mmap
import os

from headrace.source.objects import ObjectInfo
from headrace.store.errors import Changed, Unsupported
from headrace.store.local.file import AGAIN, changed_file, file_error, file_version

# f_type of statfs(2), from linux/magic.h and the file systems' own sources. Pages of these come over a network,
# or from a process: an error on the way is a SIGBUS, and what another machine writes may show or not.
_REMOTE = {
    0x6969: "NFS",
    0x517B: "SMB",
    0xFF534D42: "CIFS",
    0xFE534D42: "SMB",
    0x65735546: "FUSE",
    0x0BD00BD0: "Lustre",
    0x00C36400: "Ceph",
    0x47504653: "GPFS",
    0x19830326: "BeeGFS",
    0x20030528: "OrangeFS",
    0x5346414F: "AFS",
    0x6B414653: "AFS",
    0x73757245: "Coda",
    0x7461636F: "OCFS2",
    0x01161970: "GFS2",
    0x01021997: "9P",
    0x786F4256: "VirtualBox's shared folders",
}


def map_object(item: ObjectInfo) -> memoryview:
    """All bytes of a listed (or looked-up) file of a local disk, mapped privately: what is written to them stays here.

    The mapping lives as long as any view of it.

    Raises:
        Unsupported: the file lies on a network file system or in one that a process provides.
        Changed: it is another version than was listed.
        StoreError: it cannot be opened.
    """
    try:
        descriptor = os.open(item.key, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise file_error(item.key, error) from None
    try:
        _refuse_remote(item.key, file_system_kind(descriptor))
        mapped: mmap.mmap | bytearray = bytearray()
        if item.size_bytes:  # an empty one cannot be mapped
            access = mmap.PROT_READ | mmap.PROT_WRITE
            mapped = mmap.mmap(descriptor, item.size_bytes, mmap.MAP_PRIVATE, access)
        if file_version(facts := os.fstat(descriptor)) != item.version:
            raise changed_file(item, "replaced after it was listed", facts)
    except ValueError:  # it is shorter than that
        raise Changed(item.key, "The file was cut off after it was listed.", remedy=AGAIN) from None
    except OSError as error:
        raise file_error(item.key, error) from None
    finally:
        os.close(descriptor)
    return memoryview(mapped)


def file_system_kind(descriptor: int) -> int:
    """f_type of the file system that an open file lies on. Raises OSError."""
    import ctypes

    buffer = ctypes.create_string_buffer(256)  # struct statfs, of which f_type is the first word
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.fstatfs(descriptor, buffer) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return ctypes.c_long.from_buffer(buffer).value & 0xFFFFFFFF


def _refuse_remote(path: str, kind: int) -> None:
    if kind in _REMOTE:
        raise Unsupported(
            path,
            f"The file lies on {_REMOTE[kind]}, where a mapped file can end the process at any time.",
            remedy="Read it (without mapping), or copy it to a local disk first.",
        )
