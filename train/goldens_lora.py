"""Tiny random LoRA adapters of the random models of internal/engine/model/testdata, in PEFT's format, with
reference logits in float32: every adapted module adds scale * B(A x) to its output, as PEFT's Linear does.
Usage: goldens_lora.py MODELS OUTDIR
"""
import json, math, os, re, sys
import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

torch.set_num_threads(1)

ADAPTERS = {
    # name: (base, settings, suffixes of the modules, type of the factors)
    "llama_r8": ("llama", {"r": 8, "lora_alpha": 16}, ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"), torch.bfloat16),
    "qwen3_r16": ("qwen3", {"r": 16, "lora_alpha": 24, "rank_pattern": {"down_proj": 40, r"layers\.1\.self_attn\.q_proj": 4}, "alpha_pattern": {"v_proj": 10}},
                  ("q_proj", "v_proj", "o_proj", "up_proj", "down_proj"), torch.float32),
    "phi3_rslora": ("phi3", {"r": 12, "lora_alpha": 4, "use_rslora": True}, ("qkv_proj", "gate_up_proj", "o_proj", "down_proj"), torch.float16),
    "glm4_r8": ("glm4", {"r": 8, "lora_alpha": 8}, ("q_proj", "k_proj", "gate_up_proj"), torch.bfloat16),
}
LENGTHS, ANSWER = (1, 23, 70), 12


def value(patterns, module, default):
    """PEFT: the first pattern that matches the end of the name of the module."""
    for key, v in patterns.items():
        if re.match(rf"(.*\.)?({key})$", module):
            return v
    return default


def adapt(model, config, suffixes, dtype, seed):
    gen, tensors = torch.Generator().manual_seed(seed), {}
    for name, module in model.named_modules():
        if not isinstance(module, torch.nn.Linear) or not name.endswith(suffixes):
            continue
        r, alpha = value(config.get("rank_pattern", {}), name, config["r"]), value(config.get("alpha_pattern", {}), name, config["lora_alpha"])
        scale = alpha / (math.sqrt(r) if config.get("use_rslora") else r)
        a = (torch.randn(r, module.in_features, generator=gen) / math.sqrt(module.in_features)).to(dtype)
        b = (torch.randn(module.out_features, r, generator=gen) * 0.15 / math.sqrt(r)).to(dtype)
        tensors[f"base_model.model.{name}.lora_A.weight"], tensors[f"base_model.model.{name}.lora_B.weight"] = a, b

        def forward(x, inner=module.forward, a=a.float(), b=b.float(), scale=scale):
            return inner(x) + (x @ a.T) @ b.T * scale
        module.forward = forward
    return tensors


def main():
    models, out = sys.argv[1:3]
    for seed, (name, (base, settings, suffixes, dtype)) in enumerate(ADAPTERS.items()):
        folder = f"{out}/{name}"
        os.makedirs(folder, exist_ok=True)
        plain = AutoModelForCausalLM.from_pretrained(f"{models}/{base}", dtype=torch.float32, attn_implementation="eager").eval()
        model = AutoModelForCausalLM.from_pretrained(f"{models}/{base}", dtype=torch.float32, attn_implementation="eager").eval()
        config = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": base, "bias": "none", "fan_in_fan_out": False, "inference_mode": True,
                  "lora_dropout": 0.0, "target_modules": list(suffixes), "modules_to_save": None, "use_dora": False} | settings
        tensors = adapt(model, config, suffixes, dtype, 100 + seed)
        json.dump(config, open(f"{folder}/adapter_config.json", "w"), indent=1)
        save_file(tensors, f"{folder}/adapter_model.safetensors", metadata={"format": "pt"})
        items, moved, gap = [], 0.0, 9.0
        with torch.no_grad():
            for n in LENGTHS:
                prompt = torch.randint(3, plain.config.vocab_size, (n,), generator=torch.Generator().manual_seed(n)).tolist()
                ids, greedy, first = list(prompt), [], None
                for _ in range(ANSWER):
                    row = model(torch.tensor([ids]), use_cache=False).logits[0, -1]
                    first = row if first is None else first
                    top = torch.topk(row, 2)
                    gap = min(gap, float(top.values[0] - top.values[1]))
                    greedy.append(int(top.indices[0]))
                    ids.append(greedy[-1])
                moved = max(moved, float((first - plain(torch.tensor([prompt]), use_cache=False).logits[0, -1]).abs().max()))
                items.append({"prompt": prompt, "logits": [float("%.6g" % x) for x in first.tolist()], "greedy": greedy})
        print(name, "largest change of a logit %.3f, smallest greedy gap %.1e, tensors %d" % (moved, gap, len(tensors)))
        json.dump({"items": items}, open(f"{folder}/goldens.json", "w"))


if __name__ == "__main__":
    main()
