"""The weights part of the way from one exported folder to another. Usage: between.py OLD NEW SHARE OUT
OUT gets (1 - SHARE) * OLD + SHARE * NEW, in bf16, and OLD's other files."""
import sys, os, shutil
import torch
from safetensors.torch import load_file, save_file

old, new, share, out = sys.argv[1], sys.argv[2], float(sys.argv[3]), sys.argv[4]
os.makedirs(out, exist_ok=True)
a, b = load_file(f"{old}/model.safetensors"), load_file(f"{new}/model.safetensors")
save_file({k: torch.lerp(a[k].float(), b[k].float(), share).to(torch.bfloat16).contiguous() for k in a}, f"{out}/model.safetensors", metadata={"format": "pt"})
for f in ("config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"):
    shutil.copy(f"{old}/{f}", out)
