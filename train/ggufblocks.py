"""Writes two random blocks of each GGUF type, dequantized by llama.cpp's package gguf (PyPI), for internal/engine/gguf/dequant/testdata/blocks.json. Usage: ggufblocks.py OUT.json"""
import numpy as np, json, base64, sys
import gguf
from gguf.constants import GGMLQuantizationType as T, GGML_QUANT_SIZES as S
from gguf import quants
rng=np.random.default_rng(7)
out={}
pos={"Q4_0":[0],"Q4_1":[0,2],"Q5_0":[0],"Q5_1":[0,2],"Q8_0":[0],"Q2_K":[80,82],"Q3_K":[108],"Q4_K":[0,2],"Q5_K":[0,2],"Q6_K":[208],
"MXFP4":[],"NVFP4":[],"IQ1_M":[],"TQ1_0":[52],"TQ2_0":[64],**{n:[0] for n in "IQ4_NL IQ4_XS IQ2_XXS IQ2_XS IQ2_S IQ3_XXS IQ3_S IQ1_S".split()}}
for name,ps in pos.items():
    t=T[name]; n,size=S[t]
    b=rng.integers(0,256,(2,size),dtype=np.uint8)
    for r in range(2):
        for p in ps:
            b[r,p:p+2]=np.frombuffer(np.float16(rng.normal()*0.1).tobytes(),dtype=np.uint8)
        if name=="MXFP4": b[r,0]=120+r
        if name=="IQ1_M": b[r,55]&=0x3f # no exponent of infinity
    y=quants.dequantize(b,t).astype(np.float32)
    assert y.shape==(2,n),(name,y.shape)
    out[name]={"blocks":base64.b64encode(b.tobytes()).decode(),"values":base64.b64encode(y.astype('<f4').tobytes()).decode()}
json.dump(out,open(sys.argv[1],"w"),indent=0)
