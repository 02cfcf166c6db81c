"""SafetensorsStreamer: Run:ai Model Streamer's sequence of calls, with tensors that are the caller's to keep."""

import os
from collections.abc import Iterable, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, Unpack

from headrace.stream.library.arguments import check_options, path_texts
from headrace.stream.library.indexing import Index
from headrace.stream.library.opening import open_objects
from headrace.stream.library.options import StreamOptions, TensorOptions
from headrace.stream.library.tensor_stream import StreamerMisused as StreamerMisused
from headrace.stream.library.tensor_stream import TensorStream, telling
from headrace.stream.library.tensors import Framework
from headrace.stream.select import SelectedTensor, TensorParallel
from headrace.stream.transfer.progress import Progress
from headrace.stream.verify.mode import VerifyMode

if TYPE_CHECKING:
    import torch

    from headrace.stream.verify.verifier import Verified


class SafetensorsStreamer:
    """Streams safetensors objects: `stream_files`, then `get_tensors`, in a with-block. Threads may share
    `get_tensors`; all else belongs to one.

    Attributes:
        files_to_tensors_metadata: for each file, by its place in `paths`, the tensors that come of it: name,
            dtype (safetensors' name), shape, size_bytes.
    """

    def __init__(self) -> None:
        self.files_to_tensors_metadata: dict[int, list[SelectedTensor]] = {}
        self._stream: TensorStream | None = None
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def stream_file(
        self,
        path: str | os.PathLike[str],
        s3_credentials: object | None = None,
        device: "str | int | torch.device | None" = "cpu",
        is_distributed: bool = False,
        **options: Unpack[StreamOptions],
    ) -> None:
        """`stream_files` of one file."""
        check_options("SafetensorsStreamer.stream_file", options, StreamOptions.__annotations__)
        self.stream_files([path], s3_credentials, device, is_distributed, **options)

    def stream_files(
        self,
        paths: Iterable[str | os.PathLike[str]],
        s3_credentials: object | None = None,
        device: "str | int | torch.device | None" = "cpu",
        is_distributed: bool = False,
        *,
        framework: Framework = "pt",
        names: Iterable[str] | None = None,
        slices: Mapping[str, Index] | None = None,
        tensor_parallel: TensorParallel | None = None,
        memory_limit: int | None = None,
        concurrency: int | None = None,
        chunk_bytes: int | None = None,
        rate_limit_mb_s: float | None = None,
        deadline_s: float | None = None,
        verify: VerifyMode = "off",
    ) -> None:
        """Prove the headers and start reading; returns while the bytes are on their way.

        Args:
            paths: s3://, http(s)://, file:// or a local path of each file.
            s3_credentials: S3Credentials, or any object with its fields; None takes them from the environment.
            device: where torch's tensors go; through this process's memory.
            is_distributed: share the reading with the other ranks of torch.distributed's default group, all of
                which have to make the same call (their selections may differ).
            framework: "pt" for torch's tensors, "numpy" for arrays (with ml_dtypes; torch is not needed then).
            names: only these tensors, read in this order.
            slices: for some tensors, the part that is wanted, e.g. {"w": slice(0, 512)} or
                {"w": (slice(None), slice(64, 128))}.
            tensor_parallel: a rank's parts of the tensors.
            memory_limit: bytes of tensors that are read or wait to be taken; -1 is no limit, 0 the largest
                tensor's size. None takes RUNAI_STREAMER_MEMORY_LIMIT, or 40 GB.
            concurrency: connections at the most; None takes RUNAI_STREAMER_CONCURRENCY, or as many as pay.
            chunk_bytes: bytes of one read; None takes RUNAI_STREAMER_CHUNK_BYTESIZE, or 8 MiB.
            rate_limit_mb_s: 10^6 bytes a second at the most.
            deadline_s: seconds that reading the tensors may take, from when their headers are there.
            verify: "manifest" compares what arrives with a manifest beside the files, where there is one; "auto" without
                one with the CRC that the store keeps; "require" fails where a file has neither. See `verified`.

        Raises:
            StreamerMisused: tensors of an earlier call were not taken, or the streamer is closed.
            HeadraceError: of every kind that names, stores, headers, the selection or a lack of memory cause.
        """
        if self._closed:
            raise StreamerMisused("This streamer is closed.", remedy="Make a new SafetensorsStreamer.")
        if self._stream is not None and not self._stream.complete:
            raise StreamerMisused(
                "The tensors of the files before were not all taken.",
                remedy="Take them with get_tensors(), or use another SafetensorsStreamer.",
            )
        self._end_stream()
        with telling(is_distributed):
            opened = open_objects(path_texts(paths), s3_credentials)
        self._stream = TensorStream(
            opened,
            device,
            TensorOptions(
                framework=framework,
                names=names,
                slices=slices,
                tensor_parallel=tensor_parallel,
                memory_limit=memory_limit,
                concurrency=concurrency,
                chunk_bytes=chunk_bytes,
                rate_limit_mb_s=rate_limit_mb_s,
                deadline_s=deadline_s,
                verify=verify,
            ),
            is_distributed=is_distributed,
        )
        self.files_to_tensors_metadata = {number: [] for number in range(len(opened.shards))}
        for tensor in self._stream.selection.tensors:
            self.files_to_tensors_metadata[tensor.shard].append(tensor)

    def get_tensors(self) -> Iterator[tuple[str, Any]]:
        """(name, tensor) in the order in which they complete, each once and for the caller to keep.

        Called again, it goes on where it was left. What ends the load is raised here, and ends all reading.

        Raises:
            StreamerMisused: there was no stream_files, or the streamer is closed.
            HeadraceError: the load could not be completed.
        """
        if self._stream is None:
            raise StreamerMisused(
                "This streamer is closed." if self._closed else "Nothing is being streamed.",
                remedy="Call stream_files(paths) first, and get_tensors() before the with-block ends.",
            )
        return self._tensors(self._stream)

    def _tensors(self, stream: TensorStream) -> Iterator[tuple[str, Any]]:
        try:
            yield from stream.tensors()
        except GeneratorExit:
            raise  # the caller goes on later, or leaves the with-block
        except BaseException:
            if self._stream is stream:
                self._end_stream()
            raise

    def progress(self) -> Progress | None:
        """How far the reading is; None where nothing was asked for."""
        return self._stream.progress() if self._stream is not None else None

    def verified(self) -> "Verified | None":
        """How much is proved so far; None where nothing is to be verified."""
        return self._stream.verified() if self._stream is not None else None

    def close(self) -> None:
        """End all threads and connections. Tensors that were taken stay."""
        self._closed = True
        self._end_stream()

    def _end_stream(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()
