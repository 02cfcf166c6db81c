"""How the weights are read: what the engine was told, else what Run:ai's variables say."""

import os
from collections.abc import Mapping

from headrace.ipc.options import LoadConfig
from headrace.stream.variables import StreamSettings, read_settings


def load_settings(config: LoadConfig, environ: Mapping[str, str] = os.environ) -> StreamSettings:
    """--model-loader-extra-config's keys win over the variables. Raises BadSetting, naming a bad variable."""
    variables = read_settings(environ)
    return StreamSettings(
        variables.concurrency if config.concurrency is None else config.concurrency,
        variables.chunk_bytes,
        variables.memory_limit if config.memory_limit is None else config.memory_limit,
    )
