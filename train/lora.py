"""A LoRA adapter (arXiv:2106.09685) of a Llama of model.py, for train.py --lora: every matrix of every layer is W + B A, and
only A and B learn. Exported as PEFT writes it; shoal merges it into its base."""
import json, math
import torch

NAMES = dict(wq="self_attn.q_proj", wk="self_attn.k_proj", wv="self_attn.v_proj", wo="self_attn.o_proj", wg="mlp.gate_proj", wu="mlp.up_proj", wd="mlp.down_proj")


class LoRA(torch.nn.Module):
    def __init__(self, lm, rank, seed=0):
        """takes the matrices out of the layers of lm; they come back with apply"""
        super().__init__()
        lm.requires_grad_(False)
        r = torch.Generator().manual_seed(seed)
        self.lm, self.rank, self.base = [lm], rank, {}
        self.ab = torch.nn.ParameterDict()
        for i, l in enumerate(lm.layers):
            for n in NAMES:
                w = self.base[i, n] = getattr(l, n).detach()
                delattr(l, n)
                self.ab[f"{i}_{n}_A"] = torch.nn.Parameter((torch.randn(rank, w.shape[1], generator=r) / math.sqrt(w.shape[1])).to(w.device))
                self.ab[f"{i}_{n}_B"] = torch.nn.Parameter(torch.zeros(w.shape[0], rank, device=w.device))
        self.apply_()

    def apply_(self):
        """the layers' matrices, as A and B are now"""
        for (i, n), w in self.base.items():
            setattr(self.lm[0].layers[i], n, w + self.ab[f"{i}_{n}_B"] @ self.ab[f"{i}_{n}_A"])

    def save(self, out, base):
        from safetensors.torch import save_file
        save_file({f"base_model.model.model.layers.{i}.{NAMES[n]}.lora_{s}.weight": self.ab[f"{i}_{n}_{s}"].detach().to(torch.bfloat16).contiguous().cpu()
                   for i, n in self.base for s in "AB"}, out + "/adapter_model.safetensors", metadata={"format": "pt"})
        json.dump({"peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": base, "r": self.rank, "lora_alpha": self.rank, "lora_dropout": 0.0, "bias": "none",
                   "fan_in_fan_out": False, "inference_mode": True, "target_modules": [n.split(".")[1] for n in NAMES.values()]}, open(out + "/adapter_config.json", "w"), indent=1)
