"""Check an exported folder with transformers and write its goldens.json: prompts, last-position logits, 40 greedy tokens.
Usage: finish.py HF_DIR EV.pkl OUT.json"""
import sys, json, pickle, os
import torch
import evalpol as P
import transformers
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

hf, evp, out = sys.argv[1:4]
dev = "cuda" if torch.cuda.is_available() else "cpu"
kw = dict(dtype=torch.float32, attn_implementation="eager")
if json.load(open(hf + "/config.json"))["model_type"] == "deepseek_v3":
    kw["experts_implementation"] = "eager"
m, info = AutoModelForCausalLM.from_pretrained(hf, output_loading_info=True, **kw)
m = m.eval().to(dev)
print("loading", {k: list(v)[:4] for k, v in info.items() if v}, "tied", m.config.tie_word_embeddings, flush=True)
own = P.load(hf, dev)
tok = PreTrainedTokenizerFast.from_pretrained(hf)
ev = pickle.load(open(evp, "rb"))
texts = ["package main\n\nimport (\n\t\"fmt\"\n", "// Reader implements buffering for an io.Reader object.\ntype Reader struct {\n", "Package json implements", "func (b *Buffer) Write(p []byte) (n int, err error) {\n",
         "The Go memory model specifies the conditions under which", "if err != nil {\n", "A", "func TestParse(t *testing.T) {\n\ttests := []struct {\n"]
items, worst, least = [], 0.0, 9.0
with torch.no_grad():
    prompts = [("text", t, tok(t).input_ids) for t in texts]
    short = min(c for _, c in ev)
    for t in ("passkey", "niah_multikey", "kv_json", "vt", "chat_niah"):
        d = ev[(t, short)]
        prompts.append((f"{t}@{short}", d["anstext"][0], d["prompt"][0].tolist()))
    for kind, t, ids in prompts:
        lg = m(torch.tensor([ids]).to(dev), use_cache=False).logits[0, -1].float()
        h = own.body(torch.tensor([ids]).to(dev), own.eager, torch.float32)[-1:]
        worst = max(worst, (own.logits(h)[0] - lg).abs().max().item())
        own._cs.clear()
        o = m(torch.tensor([ids]).to(dev), use_cache=True)
        gen, gaps, cur = [], [], o.logits[0, -1].float()
        worst = max(worst, (cur - lg).abs().max().item())
        for s in range(40):
            top = cur.topk(2)
            gaps.append(float("%.4g" % (top.values[0] - top.values[1]).item()))
            gen.append(int(top.indices[0]))
            if s < 39:
                o = m(top.indices[:1].view(1, 1), use_cache=True, past_key_values=o.past_key_values)
                cur = o.logits[0, -1].float()
        least = min(least, min(gaps))
        items.append({"kind": kind, "text": t, "prompt": ids, "logits": [float("%.7g" % v) for v in lg.tolist()], "greedy": gen, "gaps": gaps, "greedy_text": tok.decode(gen)})
        print(repr(kind), repr(t[-50:]), "->", repr(tok.decode(gen))[:170], flush=True)
    for q in ("Hello", "What is a goroutine?", "Write hello world in Go", "What is the capital of Spain?", "What is a mutex?"):
        ids = tok(tok.apply_chat_template([{"role": "user", "content": q}], tokenize=False, add_generation_prompt=True), add_special_tokens=False).input_ids
        o = m.generate(torch.tensor([ids]).to(dev), max_new_tokens=40, do_sample=False)
        print("chat", repr(q), "->", repr(tok.decode(o[0, len(ids):])), flush=True)
print("own forward against transformers, f32: max |logit difference| %.2e, least greedy gap %.2e" % (worst, least), flush=True)
json.dump({"model": "trained", "compute": "bf16 weights, float32 arithmetic, eager", "transformers": transformers.__version__, "items": items}, open(out, "w"))
