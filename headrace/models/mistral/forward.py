"""The forward pass: the shared decoder as it is, since its options are all in the config."""

from headrace.models.decoder.forward import DecoderModel as Model

__all__ = ["Model"]
