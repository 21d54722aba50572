"""Shape of a decoder in the Llama family (Llama, Qwen2, Qwen3)."""

from dataclasses import dataclass

ARCHITECTURES = ("llama", "qwen2", "qwen3")


@dataclass(frozen=True, kw_only=True)
class DecoderConfig:
    """Sizes and switches of one decoder; every field is static under jit.

    Counts are positive; ``num_heads`` is a multiple of ``num_kv_heads``; ``head_dim``
    is even (rotary pairs). ``rope_theta`` is the rotary base, ``rms_eps`` the constant
    inside the RMS norms, ``max_positions`` the longest context that it was trained on.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rope_theta: float = 10_000.0
    rms_eps: float = 1e-5
    qkv_bias: bool = False
    qk_norm: bool = False
    tie_embeddings: bool = True
    max_positions: int = 8192

    def __post_init__(self) -> None:
        if self.architecture not in ARCHITECTURES:
            raise ValueError(
                f"architecture: expected one of {', '.join(ARCHITECTURES)}, got "
                f"{self.architecture!r}; convert the model or choose another"
            )
        for field in (
            "vocab_size",
            "hidden_size",
            "intermediate_size",
            "num_layers",
            "num_heads",
            "num_kv_heads",
            "head_dim",
            "max_positions",
        ):
            if getattr(self, field) < 1:
                raise ValueError(f"{field}: expected at least 1, got {self!r}")
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_heads: expected a multiple of num_kv_heads "
                f"{self.num_kv_heads}, got {self.num_heads}"
            )
        if self.head_dim % 2:
            raise ValueError(f"head_dim: expected an even number, got {self.head_dim}")

    @property
    def group_size(self) -> int:
        """Query heads that share one key/value head."""
        return self.num_heads // self.num_kv_heads
