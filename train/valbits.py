"""Held-out loss of exported folders, nats a token and bits a byte. Usage: valbits.py DATA HF_DIR...
128 windows of 2048 tokens of each held-out file, evenly spaced, each after <|bos|>."""
import sys, json, math
import torch
from evalpol import load
from train import val_loss

data, dev = sys.argv[1], "cuda" if torch.cuda.is_available() else "cpu"
size = json.load(open(f"{data}/bytes_a_token.json"))
for p in sys.argv[2:]:
    with torch.no_grad():
        v = val_loss(load(p, dev), data, dev, n=128)
    print(p, {k: {"nats": round(x, 4), "bits_a_byte": round(x / math.log(2) / size[k + "_val"], 4)} for k, x in v.items()}, flush=True)
