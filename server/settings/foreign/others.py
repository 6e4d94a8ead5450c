"""Flags of SGLang and of Text Generation Inference, and common spellings. Names that are settings here are left out."""

from __future__ import annotations

from server.settings.foreign.rows import NOT_YET, Row, ignored, refused, use

SGLANG: tuple[Row, ...] = (
    use("--model-path", "the positional MODEL, or --model {}"),
    use("--tokenizer-path", "--tokenizer {}"),
    use("--context-length", "--max-model-len {}"),
    use("--mem-fraction-static", "--gpu-memory-utilization {}"),
    use("--max-running-requests", "--max-num-seqs {}"),
    use("--max-total-tokens", "--kv-cache-memory-bytes"),
    use("--chunked-prefill-size --max-prefill-tokens", "--max-num-batched-tokens {}"),
    use("--page-size", "--block-size {}"),
    use("--random-seed", "--seed {}"),
    use("--served-model-names", "--served-model-name {}"),
    use("--watchdog-timeout", "--recovery-timeout {}"),
    use("--schedule-policy", "--scheduling-policy"),
    use("--enable-priority-scheduling", "--scheduling-policy priority"),
    use("--disable-radix-cache", "--no-enable-prefix-caching"),
    use("--disable-overlap-schedule", "--max-in-flight 1"),
    use("--disable-cuda-graph", "--enforce-eager"),
    use("--speculative-num-draft-tokens", "--num-speculative-tokens {}"),
    use("--speculative-algorithm --speculative-draft-model-path", "--speculative-config"),
    use("--lora-paths", "--lora-modules"),
    use("--max-loras-per-batch", "--max-loras {}"),
    use("--tp --tp-size", "--tensor-parallel-size {}"),
    use("--pp --pp-size", "--pipeline-parallel-size {}"),
    use("--dp --dp-size", "cohort ray serve --replicas {}", harmless="1"),
)  # fmt: skip

HABIT: tuple[Row, ...] = (
    use("--model-id", "the positional MODEL, or --model {}"),
    use("--max-total-length --model-len", "--max-model-len {}"),
    use("--max-concurrent-requests", "--max-num-seqs {}"),
    use("--speculate", "--num-speculative-tokens {}"),
    use("--hostname --listen", "--host {}"),
    use("-p", "--port {}"),
    use("--model-name", "--served-model-name {}"),
    use("--hf-token", "the environment variable HF_TOKEN"),
    use("-h", "--help"),
    use("--ssl-key-file", "--ssl-keyfile {}", variable="LLAMA_ARG_SSL_KEY_FILE"),
    use("--ssl-cert-file", "--ssl-certfile {}", variable="LLAMA_ARG_SSL_CERT_FILE"),
    use("--cors-allow-origins --cors-allow-origin", "--allowed-origins {}"),
)  # fmt: skip

IGNORED: tuple[Row, ...] = (
    *ignored("/metrics is always there", "--enable-metrics"),
    *ignored("structured outputs are always computed by llguidance", "--grammar-backend="),
    *ignored("embeddings and rerankers are recognized by their files", "--is-embedding"),
)  # fmt: skip

REFUSED: tuple[Row, ...] = (
    *refused(NOT_YET, "--enable-torch-compile", "--enable-dp-attention", "--quantization-param-path="),
)  # fmt: skip
