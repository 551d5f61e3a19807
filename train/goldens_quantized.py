"""Tiny random Llamas whose linear layers are quantized in the forms that hubs have, with the logits that
transformers computes in float32 with the dequantized weights.
Usage: goldens_quantized.py OUTDIR [name,name]

Codes and layouts come from compressed-tensors and bitsandbytes where these packages write the form
(pip install compressed-tensors bitsandbytes torchao), otherwise from the formulas of the papers and of AutoGPTQ,
GPTQModel and AutoAWQ. goldens.json also has the SHA-256 of each dequantized matrix in float32, with
zeros that have no sign.
"""
import hashlib, json, os, sys
import torch
from safetensors.torch import save_file
import goldens_families as families

torch.set_num_threads(1)
families.V = V = 128
FP4 = torch.tensor([0, .5, 1, 1.5, 2, 3, 4, 6, 0, -.5, -1, -1.5, -2, -3, -4, -6])
CONFIG = families.base("LlamaForCausalLM", "llama", hidden_size=64, intermediate_size=96, num_attention_heads=4, num_key_value_heads=2, head_dim=16, rope_theta=10000.0, vocab_size=V, tie_word_embeddings=False)
E4M3 = torch.float8_e4m3fn


def groups(w, g):
    return w.reshape(w.shape[0], -1, g)


def asymmetric(w, bits, g, dtype):
    """Codes [out, in], scales and zero points [out, groups]."""
    v, top = groups(w, g), 2**bits - 1
    lo, hi = v.amin(-1).clamp(max=0), v.amax(-1).clamp(min=0)
    s = ((hi - lo) / top).to(dtype)
    z = (-lo / s.float()).round().clamp(0, top)
    q = (v / s.float()[..., None] + z[..., None]).round().clamp(0, top).reshape(w.shape)
    return q.int(), s, z.int()


def symmetric(w, bits, g, dtype):
    v, top = groups(w, g), 2**(bits - 1)
    s = (v.abs().amax(-1) / (top - 0.5)).to(dtype)
    q = (v / s.float()[..., None]).round().clamp(-top, top - 1).reshape(w.shape)
    return q.int(), s


def value(q, s, z=None):
    g = q.shape[1] // s.shape[1]
    v = groups(q.float(), g)
    return ((v - z.float()[..., None] if z is not None else v) * s.float()[..., None]).reshape(q.shape)


def stream(q, bits):
    """Packs codes of each row as a stream of bits into int32."""
    rows, cols = q.shape
    v = torch.zeros(rows, (cols * bits + 31) // 32, dtype=torch.int64)
    for c in range(cols):
        i, shift = divmod(c * bits, 32)
        v[:, i] |= (q[:, c].long() << shift) & 0xffffffff
        if shift + bits > 32:
            v[:, i + 1] |= q[:, c].long() >> (32 - shift)
    return torch.where(v >= 2**31, v - 2**32, v).to(torch.int32)


def gptq(bits, g, order=False, v2=False, sym=False):
    def f(w):
        n = w.shape[1]
        index = torch.arange(n, dtype=torch.int32) // g
        perm = torch.randperm(n) if order else torch.arange(n)
        u = w[:, perm]
        if sym:
            q, s = symmetric(u, bits, g, torch.float16)
            q, z = q + 2**(bits - 1), torch.full(s.shape, 2**(bits - 1), dtype=torch.int32)
        else:
            q, s, z = asymmetric(u, bits, g, torch.float16)
            z = z.clamp(min=1) if not v2 else z
            q = (groups(u, g) / s.float()[..., None] + z[..., None]).round().clamp(0, 2**bits - 1).reshape(w.shape).int()
        d = value(q, s, z)
        inverse = perm.argsort()
        q, d, index = q[:, inverse], d[:, inverse], index[inverse].contiguous()
        stored = z if v2 else z - 1
        return {"qweight": stream(q, bits).T.contiguous(), "qzeros": stream(stored.T.contiguous(), bits), "scales": s.T.contiguous(), "g_idx": index}, d
    return f, {"quant_method": "gptq", "bits": bits, "group_size": g, "desc_act": order, "sym": sym, "checkpoint_format": "gptq_v2" if v2 else "gptq"}


def awq(w):
    q, s, z = asymmetric(w, 4, 32, torch.float16)
    place = [0, 2, 4, 6, 1, 3, 5, 7]

    def pack(a):  # [n, out]
        a = a.reshape(a.shape[0], -1, 8)[..., place].reshape(a.shape[0], -1)
        return stream(a, 4)
    return {"qweight": pack(q.T.contiguous()), "qzeros": pack(z.T.contiguous()), "scales": s.T.contiguous()}, value(q, s, z)


def packed(bits, g, sym, dtype=torch.bfloat16):
    from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32, unpack_from_int32

    def f(w):
        width = g or w.shape[1]
        if sym:
            q, s = symmetric(w, bits, width, dtype)
            z = None
        else:
            q, s, z = asymmetric(w, bits, width, dtype)
            q, z = q - 2**(bits - 1), z - 2**(bits - 1)
        out = {"weight_packed": pack_to_int32(q.to(torch.int8), bits), "weight_scale": s, "weight_shape": torch.tensor(w.shape)}
        assert torch.equal(unpack_from_int32(out["weight_packed"], bits, w.shape).int(), q)
        if z is not None:
            out["weight_zero_point"] = pack_to_int32(z.to(torch.int8), bits, packed_dim=0)
        return out, value(q, s, z)
    return f, compressed("pack-quantized", num_bits=bits, type="int", strategy="group" if g else "channel", group_size=g, symmetric=sym)


def compressed(format, **weights):
    return {"quant_method": "compressed-tensors", "format": format, "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}}, "ignore": ["lm_head"], "kv_cache_scheme": None, "quantization_status": "compressed"}


def int8(w):
    s = (w.abs().amax(1, keepdim=True) / 127).to(torch.bfloat16)
    q = (w / s.float()).round().clamp(-127, 127).to(torch.int8)
    return {"weight": q, "weight_scale": s}, q.float() * s.float()


def bnb_int8(w):
    s = w.abs().amax(1)
    q = (w * (127 / s[:, None])).round().to(torch.int8)
    return {"weight": q, "SCB": s, "weight_format": torch.tensor(0, dtype=torch.uint8)}, q.float() * (s / 127)[:, None]


def bnb4(kind, nested):
    def f(w):
        import bitsandbytes.functional as F
        q, state = F.quantize_4bit(w, quant_type=kind, compress_statistics=nested, blocksize=64)
        # The package's code for CPUs is wrong for rows that are not whole blocks of 64.
        top = F.dequantize_blockwise(state.absmax, state.state2) + state.offset if nested else state.absmax
        codes = torch.stack([q.flatten() >> 4, q.flatten() & 15], 1).flatten().long()
        d = (state.code[codes] * top.float().repeat_interleave(64)).reshape(w.shape)
        assert w.shape[1] % 64 or torch.equal(d, F.dequantize_4bit(q, state))
        out = {"weight": q}
        for k, v in state.as_dict(packed=True).items():
            out["weight." + k] = v.contiguous()
        return out, d
    return f, {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": kind, "bnb_4bit_use_double_quant": nested}


def fp8(block=None, per="tensor", name="weight_scale", dtype=torch.float32):
    def f(w):
        rows, cols = w.shape
        br, bc = block or {"tensor": (rows, cols), "channel": (1, cols)}[per]
        s = torch.zeros((rows + br - 1) // br, (cols + bc - 1) // bc)
        for i in range(s.shape[0]):
            for j in range(s.shape[1]):
                s[i, j] = w[i * br:(i + 1) * br, j * bc:(j + 1) * bc].abs().max() / 448
        s = s.to(dtype)
        wide = s.float().repeat_interleave(br, 0)[:rows].repeat_interleave(bc, 1)[:, :cols]
        q = (w / wide).to(E4M3)
        stored = s.reshape(()) if per == "tensor" and not block else s
        return {"weight": q, name: stored} | ({"input_scale": torch.tensor(0.5)} if per == "tensor" and not block else {}), q.float() * wide
    return f


def nearest4(v):
    return (v[..., None] - FP4[:8]).abs().argmin(-1) if (v >= 0).all() else torch.where(v < 0, (v[..., None] + FP4[:8]).abs().argmin(-1) + 8, (v[..., None] - FP4[:8]).abs().argmin(-1))


def nibbles(q):
    return (q[:, 0::2] | q[:, 1::2] << 4).to(torch.uint8)


def mxfp4(w):
    v = groups(w, 32)
    e = (torch.floor(torch.log2(v.abs().amax(-1))) - 2 + 127).clamp(0, 254)
    q = nearest4(v / 2.0**(e - 127)[..., None])
    return {"weight_packed": nibbles(q.reshape(w.shape)), "weight_scale": e.to(torch.uint8)}, (FP4[q] * 2.0**(e - 127)[..., None]).reshape(w.shape)


def nvfp4(divides):
    def f(w):
        all = 448 * 6 / w.abs().max()
        v = groups(w, 16)
        s = (v.abs().amax(-1) / 6 * all).to(E4M3)
        other = all if divides else 1 / all
        real = s.float() / other if divides else s.float() * other
        q = nearest4(v / real[..., None])
        codes, d = nibbles(q.reshape(w.shape)), (FP4[q] * real[..., None]).reshape(w.shape)
        if divides:
            return {"weight_packed": codes, "weight_scale": s, "weight_global_scale": other.reshape(1), "input_global_scale": torch.ones(1)}, d
        return {"weight": codes, "weight_scale": s, "weight_scale_2": other, "input_scale": torch.tensor(1.0)}, d
    return f


def torchao(make):
    """The tensors that torchao's subclass of a weight has, under the names that transformers gives them."""
    import torchao.quantization as ao
    from transformers import TorchAoConfig
    config = make(ao)

    def f(w):
        linear = torch.nn.Linear(w.shape[1], w.shape[0], bias=False).bfloat16()
        linear.weight.data.copy_(w)
        ao.quantize_(linear, config)
        q = linear.weight
        parts = {"_weight_" + k: getattr(q, k) for k in ("qdata", "scale", "zero_point") if getattr(q, k, None) is not None}
        codes, s = parts["_weight_qdata"].float(), parts["_weight_scale"].float()
        zero = parts.get("_weight_zero_point", torch.zeros_like(s)).float()
        g = codes.shape[1] // s.shape[1]
        return parts, ((groups(codes, g) - zero[..., None]) * s[..., None]).reshape(w.shape)
    return f, json.loads(TorchAoConfig(quant_type=config).to_json_string(use_diff=False))


FORMS = {
    "gptq": gptq(4, 32), "gptq_sym": gptq(4, 32, sym=True), "gptq_v2_act_order": gptq(4, 32, order=True, v2=True), "gptq3": gptq(3, 32), "gptq8": gptq(8, 32, sym=True),
    "awq": (awq, {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"}),
    "w4a16": packed(4, 32, True), "w4a16_asym": packed(4, 32, False), "w8a16": packed(8, None, True),
    "w8a8": (int8, compressed("int-quantized", num_bits=8, type="int", strategy="channel", symmetric=True)),
    "fp8_tensor": (fp8(), {"quant_method": "modelopt", "quant_algo": "FP8"}),
    "fp8_channel": (fp8(per="channel", dtype=torch.bfloat16), compressed("float-quantized", num_bits=8, type="float", strategy="channel", symmetric=True)),
    "fp8_block": (fp8(block=(32, 64), name="weight_scale_inv"), {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [32, 64]}),
    "mxfp4": (mxfp4, compressed("mxfp4-pack-quantized", num_bits=4, type="float", strategy="group", group_size=32, symmetric=True)),
    "nvfp4": (nvfp4(True), compressed("nvfp4-pack-quantized", num_bits=4, type="float", strategy="tensor_group", group_size=16, symmetric=True)),
    "nvfp4_modelopt": (nvfp4(False), {"quant_method": "modelopt", "quant_algo": "NVFP4"}),
    "nf4": bnb4("nf4", True), "fp4": bnb4("fp4", False), "bnb_int8": (bnb_int8, {"quant_method": "bitsandbytes", "load_in_8bit": True}),
    "torchao_fp8": lambda: torchao(lambda ao: ao.Float8WeightOnlyConfig()), "torchao_int8": lambda: torchao(lambda ao: ao.Int8WeightOnlyConfig(version=2)),
    "torchao_int4": lambda: torchao(lambda ao: ao.IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=ao.PerGroup(32), mapping_type=ao.quant_primitives.MappingType.ASYMMETRIC)),
}


def write(out, name):
    import transformers
    form, config = FORMS[name]() if callable(FORMS[name]) else FORMS[name]
    folder = f"{out}/{name}"
    os.makedirs(folder, exist_ok=True)
    json.dump(CONFIG | {"quantization_config": config}, open(f"{folder}/config.json", "w"), indent=1)
    json.dump({"bos_token_id": 0, "eos_token_id": 1, "do_sample": False}, open(f"{folder}/generation_config.json", "w"), indent=1)
    for seed in range(9000, 9200):
        torch.manual_seed(seed)
        cls = transformers.LlamaForCausalLM
        model = cls(transformers.LlamaConfig(**{k: v for k, v in CONFIG.items() if k not in ("architectures", "model_type")}))
        model.dense_experts = True
        stored, sums = {}, {}
        with torch.no_grad():
            families.randomise(model)
            for key, p in model.state_dict().items():
                if p.dim() == 2 and "layers." in key:
                    base = key[:-len("weight")]
                    parts, d = form(p.clone())
                    assert (d - p).abs().max() < 0.6 * p.abs().max(), (key, d, p)
                    p.copy_(d)
                    stored |= {base + k: v.contiguous() for k, v in parts.items()}
                    sums[key] = hashlib.sha256((d.float() + 0.0).contiguous().numpy().tobytes()).hexdigest()
                else:
                    stored[key] = p.to(torch.bfloat16)
        golden = goldens(model.float().eval(), seed)
        print(name, "seed", seed, "smallest greedy gap %.2e, kinds of tokens %d" % (golden["min_gap"], golden["kinds"]), flush=True)
        if golden["min_gap"] > 1e-3 and golden["kinds"] > 3:
            break
    save_file(stored, f"{folder}/model.safetensors", metadata={"format": "pt"})
    json.dump(golden | {"sums": sums}, open(f"{folder}/goldens.json", "w"))


def goldens(model, seed):
    import random, transformers
    rng, items, gap, kinds = random.Random(seed), [], 9e9, V
    for n in (1, 17, 41):
        prompt = [0] + [rng.randrange(5, V) for _ in range(n - 1)]
        first, ids, greedy = families.logits(model, prompt), list(prompt), []
        row = first
        while len(greedy) < 12:
            top = row.topk(2)
            gap = min(gap, (top.values[0] - top.values[1]).item())
            greedy.append(int(top.indices[0]))
            ids.append(greedy[-1])
            row = families.logits(model, ids)
        kinds = min(kinds, len(set(greedy)))
        items.append({"prompt": prompt, "logits": [float("%.6g" % x) for x in first.tolist()], "greedy": greedy})
    return {"seed": seed, "compute": "float32, eager attention, no cache", "transformers": transformers.__version__, "torch": torch.__version__, "min_gap": gap, "kinds": kinds, "items": items}


if __name__ == "__main__":
    for name in sys.argv[2].split(",") if len(sys.argv) > 2 else FORMS:
        write(sys.argv[1], name)
