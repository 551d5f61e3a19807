"""Checkpoints of random weights in a public model's shape, in the formats of the peers.
Usage: models.py FOLDER [FILE...]. Writes SHAPE-q8.gguf and SHAPE-q4.gguf, and SHAPE.m with
its tokenizer SHAPE.m.t (distributed-llama), of the two small shapes, 4 GB in all, or the
files that are named (llama-3.1-8b-q8.gguf: 8.5 GB); what is there already stays.

Speed depends on bytes, not on values, so weights repeat one pattern of 20011 blocks (a
prime: rows differ). Scales are such that activations neither vanish nor overflow."""
import math, os, random, struct, sys

from families import FAMILIES, WEIGHT, attention, dense, norms, routed

# As internal/engine/checkpoint/random.go has them. Embedding and head are one matrix in GGUF where they are tied, two in .m.
SHAPES = {
    "bench160m": dict(layers=12, hidden=1024, heads=16, kv=8, head=64, ffn=2816, vocab=32000, tied=True),
    "llama-3.2-1b": dict(layers=16, hidden=2048, heads=32, kv=8, head=64, ffn=8192, vocab=128256, tied=True),
    "llama-3.1-8b": dict(layers=32, hidden=4096, heads=32, kv=8, head=128, ffn=14336, vocab=128256),
    "qwen3-0.6b": dict(arch="qwen3", layers=28, hidden=1024, heads=16, kv=8, head=128, ffn=3072, vocab=151936, tied=True),
    "qwen3-30b-a3b": dict(arch="qwen3moe", layers=48, hidden=2048, heads=32, kv=4, head=128, ffn=768, vocab=151936, experts=128, chosen=8),
}
SMALL = ("bench160m", "llama-3.2-1b")
ROPE, CONTEXT = 500000, 131072
PATTERN = 20011  # blocks

# kind -> GGUF type, bytes of a block of 32
KINDS = {"f32": (0, 128), "one": (0, 128), "q4": (2, 18), "q8": (8, 34), "mxfp4": (39, 17)}


class Weights:
    """Blocks of 32 values, by kind."""

    def __init__(self, seed=7):
        self.random, self.patterns = random.Random(seed), {}

    def block(self, kind):
        r = self.random
        if kind == "one":
            return struct.pack("<32f", *[1.0] * 32)
        if kind == "f32":
            return struct.pack("<32f", *[r.gauss(0, 0.02) for _ in range(32)])
        if kind == "q8":  # scale, 32 signed bytes
            return struct.pack("<e", 2.7e-4 * r.uniform(0.8, 1.2)) + r.randbytes(32)
        if kind == "mxfp4":  # exponent of two plus 127, 32 codes
            return bytes([r.randrange(119, 121)]) + r.randbytes(16)
        # scale, 32 halves of bytes less 8: as many scales below zero as above
        return struct.pack("<e", r.choice((-1, 1)) * 4.3e-3 * r.uniform(0.8, 1.2)) + r.randbytes(16)

    def write(self, f, kind, elements):
        if kind not in self.patterns:
            self.patterns[kind] = b"".join(self.block(kind) for _ in range(PATTERN))
        p, size = self.patterns[kind], KINDS[kind][1]
        left, at = elements // 32 * size, self.random.randrange(PATTERN) * size
        while left > 0:
            part = p[at:at + left]
            f.write(part)
            left, at = left - len(part), 0


def text(s):
    b = s.encode()
    return struct.pack("<Q", len(b)) + b


def field(key, value):
    """A GGUF key and its value: the Python type says which."""
    if isinstance(value, str):
        return text(key) + struct.pack("<I", 8) + text(value)
    if isinstance(value, float):
        return text(key) + struct.pack("<If", 6, value)
    if isinstance(value, bool):
        return text(key) + struct.pack("<I?", 7, value)
    if isinstance(value, int):
        return text(key) + struct.pack("<II", 4, value)
    head = text(key) + struct.pack("<I", 9)
    if isinstance(value[0], str):
        return head + struct.pack("<IQ", 8, len(value)) + b"".join(map(text, value))
    code, letter = {float: (6, "f"), int: (5, "i"), bool: (7, "?")}[type(value[0])]
    return head + struct.pack(f"<IQ{len(value)}{letter}", code, len(value), *value)


def simple(name):
    """The architecture of a shape, its keys and its tensors, as families.py has them."""
    c = SHAPES[name]
    d, q, kv, ffn, experts = c["hidden"], c["heads"] * c["head"], c["kv"] * c["head"], c["ffn"], c.get("experts")
    keys = {"feed_forward_length": ffn, "attention.head_count": c["heads"], "attention.head_count_kv": c["kv"], "attention.key_length": c["head"],
            "attention.value_length": c["head"], "rope.dimension_count": c["head"], "rope.freq_base": float(ROPE),
            **({"expert_count": experts, "expert_used_count": c["chosen"], "expert_feed_forward_length": ffn} if experts else {})}
    arch = c.get("arch", "llama")
    layer = norms(d, "attn_norm", "ffn_norm") + attention(d, q, kv, kv, q) + (norms(c["head"], "attn_q_norm", "attn_k_norm") if arch != "llama" else [])
    layer += routed(d, ffn, experts) if experts else dense("", d, ffn)
    return arch, d, c["vocab"], c.get("tied", False), keys, [layer] * c["layers"]


def gguf(path, name, kind):
    arch, d, vocab, tied, keys, layers = FAMILIES[name]() if name in FAMILIES else simple(name)
    tokens = ["<unk>", "<s>", "</s>"] + [f"<0x{i:02X}>" for i in range(256)]
    tokens += [f"t{i}" for i in range(vocab - len(tokens))]
    keys = {"context_length": CONTEXT, "embedding_length": d, "block_count": len(layers), "attention.layer_norm_rms_epsilon": 1e-5, "vocab_size": vocab, **keys}
    fields = {
        "general.architecture": arch, "general.name": name, "general.file_type": {"q8": 7, "q4": 2, "mxfp4": 38}[kind], "general.quantization_version": 2,
        **{f"{arch}.{k}": v for k, v in keys.items()}, "tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [-float(i) for i in range(vocab)], "tokenizer.ggml.token_type": [2, 3, 3] + [6] * 256 + [1] * (vocab - 259),
        "tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.eos_token_id": 2, "tokenizer.ggml.unknown_token_id": 0,
    }
    tensors = [("token_embd.weight", (d, vocab), WEIGHT), ("output_norm.weight", (d,), "one")] + [("output.weight", (d, vocab), WEIGHT)] * (not tied)
    if arch == "gemma4":
        tensors.append(("rope_freqs.weight", (256,), "one"))
    tensors += [(f"blk.{i}.{t}", s, k) for i, layer in enumerate(layers) for t, s, k in layer]
    # MXFP4 is the published form of experts; their neighbours keep eight bits.
    tensors = [(t, s, k if k != WEIGHT else "q8" if kind == "mxfp4" and "exps" not in t else kind) for t, s, k in tensors]
    infos, at, w = b"", 0, Weights()
    for name, shape, k in tensors:
        infos += text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, KINDS[k][0], at)
        at += -(-math.prod(shape) // 32 * KINDS[k][1] // 32) * 32
    with open(path, "wb") as f:
        f.write(b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(fields)) + b"".join(field(*x) for x in fields.items()) + infos)
        for _, shape, k in tensors:
            f.write(bytes(-f.tell() % 32))
            w.write(f, k, math.prod(shape))
        f.write(bytes(-f.tell() % 32))


def header(magic, pairs, more=b""):
    body = b"".join(struct.pack("<ii", *p) for p in pairs)
    return struct.pack("<ii", magic, 8 + len(body)) + body + more


def dllama(path, name):
    """distributed-llama's format: a header of numbered fields, then the matrices; Q40."""
    c, w = SHAPES[name], Weights()
    d, q, kv, ffn, vocab = c["hidden"], c["heads"] * c["head"], c["kv"] * c["head"], c["ffn"], c["vocab"]
    with open(path, "wb") as f:
        f.write(header(0xA00ABCD, [  # field, value: version, architecture, then as named
            (0, 0), (1, 0xABCD00), (2, d), (3, ffn), (4, c["layers"]), (5, c["heads"]), (6, c["kv"]), (7, 0), (8, 0), (9, vocab),
            (10, CONTEXT), (11, 1), (12, ROPE), (13, 2), (19, c["head"]), (20, 5)]))
        w.write(f, "f32", vocab * d)
        for _ in range(c["layers"]):
            for elements in (q * d, kv * d, kv * d, q * d, ffn * d, ffn * d, ffn * d):
                w.write(f, "q4", elements)
            w.write(f, "one", 2 * d)
        w.write(f, "one", d)
        w.write(f, "q4", vocab * d)
    tokens = [chr(i) if 33 <= i < 127 else f"x{i}" for i in range(256)]
    tokens += [f"t{i}" for i in range(vocab - 259)] + ["<s>", "</s>", "<e>"]
    with open(path + ".t", "wb") as f:
        f.write(header(0x567124, [(0, 1), (1, vocab), (2, 16), (3, vocab - 3), (9, 1), (10, 1)], struct.pack("<i", vocab - 2)))
        for i, t in enumerate(tokens):
            f.write(struct.pack("<fi", -float(i), len(t)) + t.encode())


def main():
    folder, names = sys.argv[1], sys.argv[2:]
    makers = {}
    for name, c in {**SHAPES, **dict.fromkeys(FAMILIES, {"arch"})}.items():
        makers[f"{name}-q8.gguf"] = lambda p, name=name: gguf(p, name, "q8")
        makers[f"{name}-q4.gguf"] = lambda p, name=name: gguf(p, name, "q4")
        makers[f"{name}-mxfp4.gguf"] = lambda p, name=name: gguf(p, name, "mxfp4")
        if "arch" not in c:
            makers[f"{name}.m"] = lambda p, name=name: dllama(p, name)
    for file in set(names) - set(makers):
        sys.exit(f"there is no {file}; there are: {' '.join(makers)}")
    os.makedirs(folder, exist_ok=True)
    for file, make in makers.items():
        path = os.path.join(folder, file)
        if (file in names if names else file.startswith(SMALL)) and not os.path.exists(path):
            print("writing", path, file=sys.stderr)
            make(path + ".part")
            if os.path.exists(path + ".part.t"):
                os.rename(path + ".part.t", path + ".t")
            os.rename(path + ".part", path)


if __name__ == "__main__":
    main()
