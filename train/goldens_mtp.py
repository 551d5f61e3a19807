"""A random layer of multi-token prediction for internal/engine/model/testdata/deepseek_v3, and what it guesses: the layer is transformers' own
DeepseekV3DecoderLayer, around it the formulas of the DeepSeek-V3 report, section 2.2 (embedding first, as in the published
weights). Its own output is read again for further tokens. float32, no cache.
Usage: goldens_mtp.py MODEL OUT"""
import json, os, random, sys
import torch
import torch.nn.functional as F
from transformers import AutoModelForCausalLM
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3DecoderLayer, DeepseekV3RMSNorm

DEPTH = 4


@torch.no_grad()
def main():
    from safetensors.torch import save_file
    folder, out = sys.argv[1:3]
    lm = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    c = lm.config
    mlp = c.mlp_layer_types if hasattr(c, "mlp_layer_types") and c.mlp_layer_types else None
    for seed in range(1, 200):
        torch.manual_seed(seed)
        index = c.num_hidden_layers - 1                    # a layer with experts; its number is only one of a cache
        layer = DeepseekV3DecoderLayer(c, index).float().eval()
        D = c.hidden_size
        norms = {n: DeepseekV3RMSNorm(D, c.rms_norm_eps) for n in ("enorm", "hnorm", "shared_head.norm")}
        eh = torch.nn.Linear(2 * D, D, bias=False)
        for p in [*layer.parameters(), *layer.buffers(), eh.weight, *(n.weight for n in norms.values())]:
            p.data = (1 + 0.2 * torch.randn_like(p) if p.dim() == 1 else torch.randn_like(p) * 1.2 / p.shape[-1] ** 0.5)
        for n, b in layer.named_buffers():
            b.data = 0.1 * torch.randn_like(b)
        sd = {}
        P = f"model.layers.{c.num_hidden_layers}."
        for n, v in layer.state_dict().items():
            if n == "mlp.experts.gate_up_proj":
                for e in range(v.shape[0]):
                    sd[P + f"mlp.experts.{e}.gate_proj.weight"], sd[P + f"mlp.experts.{e}.up_proj.weight"] = v[e].chunk(2, 0)
            elif n == "mlp.experts.down_proj":
                for e in range(v.shape[0]):
                    sd[P + f"mlp.experts.{e}.down_proj.weight"] = v[e]
            else:
                sd[P + n] = v
        sd[P + "eh_proj.weight"] = eh.weight
        for n, m in norms.items():
            sd[P + n + ".weight"] = m.weight
        for v in [*layer.parameters(), eh.weight, *(m.weight for m in norms.values())]:
            v.data = v.data.to(torch.bfloat16).float()
        items, gap, rng = [], 9.0, random.Random(seed)
        for n in (1, 7, 20):
            ids = [0] + [rng.randrange(5, c.vocab_size) for _ in range(n)]
            hidden = lm.model(torch.tensor([ids[:-1]])).last_hidden_state[0]    # what the head reads
            x, tokens, drafts, odds = hidden, ids[1:], [], []
            states = hidden
            for k in range(DEPTH):
                e = lm.model.embed_tokens(torch.tensor([tokens]))
                z = eh(torch.cat([norms["enorm"](e), norms["hnorm"](states[None])], -1))
                T = z.shape[1]
                pos = torch.arange(T)[None]
                mask = torch.full((T, T), float("-inf")).triu(1)[None, None]
                y = layer(z, attention_mask=mask, position_ids=pos, position_embeddings=lm.model.rotary_emb(z, pos))
                y = (y[0] if isinstance(y, tuple) else y)[0]
                p = F.softmax(lm.lm_head(norms["shared_head.norm"](y[-1:]))[0], -1)
                top = p.topk(2)
                gap = min(gap, float(top.values[0] / top.values[1]) - 1)
                drafts.append(int(top.indices[0])), odds.append(float("%.7g" % top.values[0]))
                tokens, states = tokens + drafts[-1:], torch.cat([states, y[-1:]])
            items.append({"tokens": ids[1:], "hidden": [float("%.7g" % v) for v in hidden.flatten().tolist()], "drafts": drafts, "odds": odds})
        print("seed", seed, "smallest gap %.1e" % gap)
        if gap > 1e-2:
            break
    os.makedirs(out, exist_ok=True)
    save_file({k: v.to(torch.float32 if k.endswith("correction_bias") else torch.bfloat16).contiguous() for k, v in sd.items()}, out + "/mtp.safetensors", metadata={"format": "pt"})
    json.dump({"torch": torch.__version__, "items": items}, open(out + "/goldens.json", "w"))


if __name__ == "__main__":
    main()
