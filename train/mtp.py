"""Trains a layer of multi-token prediction (DeepSeek-V3 report, section 2.2) behind a frozen model of mla.py: it begins as
the model's last layer, reads [RMSNorm(embedding of token i+1) | RMSNorm(hidden state of token i)], and learns what the model
itself will say of token i+2 (KL against its logits). In a part of the steps it also reads its own output once, as when it
drafts several tokens. Only the layer is trained, so minutes of one core are enough.
Usage: mtp.py FOLDER OUT --seconds N FILE...        (any UTF-8 files)   -> OUT/mtp.safetensors; started again, it goes on"""
import argparse, json, math, os, random, time
import torch
import torch.nn.functional as F
import mla
from model import Muon, rms


def shape(folder):
    h = json.load(open(folder + "/config.json"))
    names = dict(V="vocab_size", D="hidden_size", L="num_hidden_layers", H="num_attention_heads", QL="q_lora_rank", KL="kv_lora_rank", NO="qk_nope_head_dim",
                 RO="qk_rope_head_dim", VD="v_head_dim", FF="intermediate_size", DENSE="first_k_dense_replace", E="n_routed_experts", MF="moe_intermediate_size",
                 TOP="num_experts_per_tok", GROUPS="n_group", TOPG="topk_group", SCALE="routed_scaling_factor", THETA="rope_theta", EPS="rms_norm_eps")
    return mla.Cfg(**{k: h[v] for k, v in names.items()})


class MTP(torch.nn.Module):
    def __init__(self, lm):
        super().__init__()
        c = lm.c
        self.layer = mla.Layer(c, True)
        self.layer.load_state_dict(lm.layers[-1].state_dict())
        ones = lambda: torch.nn.Parameter(torch.ones(c.D))
        self.enorm, self.hnorm, self.norm = ones(), ones(), torch.nn.Parameter(lm.lnf.detach().clone())
        self.eh = torch.nn.Parameter(torch.cat([torch.eye(c.D) * 0.3, torch.eye(c.D) * 3.0], 1))

    def forward(self, lm, h, ids):
        """h [B, T, D] of tokens i, ids [B, T] tokens i+1 -> x [B, T, D]"""
        B, T = ids.shape
        c, l, f = lm.c, self.layer, lm.eager
        e = F.embedding(ids.reshape(-1), lm.emb).to(h.dtype)
        x = F.linear(torch.cat([rms(e, self.enorm, c.EPS), rms(h.reshape(B * T, -1), self.hnorm, c.EPS)], -1), self.eh.to(h.dtype))
        cos, sin = lm.cs(B, T, ids.device)
        q, k, v = f[0](x, l.ln1, l.wqa, l.lnq, l.wqb, l.wkva, l.lnkv, l.wkvb, cos, sin)
        return lm.finish(l, x, lm.sdpa(q, k, v, B, T)).view(B, T, -1)

    def logits(self, lm, x):
        return F.linear(rms(x, self.norm, lm.c.EPS), lm.emb.to(x.dtype)).float()

    def state(self, c):
        p = f"model.layers.{c.L}."
        d = {p + "enorm.weight": self.enorm, p + "hnorm.weight": self.hnorm, p + "eh_proj.weight": self.eh, p + "shared_head.norm.weight": self.norm}
        one = mla.LM.__new__(mla.LM)
        torch.nn.Module.__init__(one)
        one.c, one.emb, one.lnf, one.layers = c, self.norm, self.norm, torch.nn.ModuleList([self.layer])
        for k, (v, e) in one.names().items():
            if k.startswith("model.layers.0."):
                d[p + k[len("model.layers.0."):]] = v if e is None else v[e]
        return {k: v.detach().to(torch.float32 if k.endswith("correction_bias") else torch.bfloat16).contiguous() for k, v in d.items()}


def main():
    from safetensors.torch import load_file, save_file
    from tokenizers import Tokenizer
    a = argparse.ArgumentParser()
    a.add_argument("folder"), a.add_argument("out"), a.add_argument("text", nargs="+")
    a.add_argument("--seconds", type=float, default=300), a.add_argument("--window", type=int, default=256), a.add_argument("--batch", type=int, default=6)
    a.add_argument("--lr", type=float, default=2e-3), a.add_argument("--muon", type=float, default=1e-2), a.add_argument("--tokens", type=int, default=1_500_000), a.add_argument("--seed", type=int, default=1)
    o = a.parse_args()
    torch.manual_seed(o.seed), torch.set_num_threads(1)
    c = shape(o.folder)
    lm = mla.LM(c)
    lm.load_hf(load_file(o.folder + "/model.safetensors"))
    lm.requires_grad_(False)
    m = MTP(lm)
    m.layer.bias.requires_grad_(False)
    tok, r = Tokenizer.from_file(o.folder + "/tokenizer.json"), random.Random(o.seed)
    r.shuffle(o.text)
    ids = []
    for f in o.text:
        ids += [0] + tok.encode(open(f, encoding="utf-8", errors="ignore").read()[:60000], add_special_tokens=False).ids
        if len(ids) > o.tokens:
            break
    ids = torch.tensor(ids)
    held, ids = ids[:12 * (o.window + 3)], ids[12 * (o.window + 3):]
    print(f"{len(ids)} tokens", flush=True)

    def parts(w):
        """hidden states and logits of the model for windows [B, T+3]"""
        with torch.no_grad():
            h = rms(lm.body(w, lm.eager, torch.bfloat16), lm.lnf, c.EPS).view(*w.shape, -1)
        return h

    def losses(w, deep):
        h, T = parts(w), w.shape[1] - 3
        teach = lambda k: F.log_softmax(F.linear(h[:, k:k + T], lm.emb.to(h.dtype)).float(), -1)
        x = m(lm, h[:, :T], w[:, 1:T + 1])
        out = []
        for k in range(1, 3 if deep else 2):
            if k == 2:
                x = m(lm, x, w[:, 2:T + 2])
            y = F.log_softmax(m.logits(lm, x), -1)
            t = teach(k)
            out.append((F.kl_div(y, t, log_target=True, reduction="none").sum(-1).mean(), (y.argmax(-1) == t.argmax(-1)).float().mean()))
        return out

    params = [p for p in m.parameters() if p.requires_grad]
    opt = torch.optim.AdamW([p for p in params if p.dim() < 2], lr=o.lr, betas=(0.9, 0.98), weight_decay=0.0)
    muon = Muon([p for p in params if p.dim() > 1], wd=0.0)
    state, step, spent = o.out + "/state.pt", 0, 0.0
    os.makedirs(o.out, exist_ok=True)
    if os.path.exists(state):
        d = torch.load(state)
        m.load_state_dict(d["m"]), opt.load_state_dict(d["opt"])
        muon.buf, step, spent = d["muon"], d["step"], d["spent"]

    def test():
        with torch.no_grad():
            s = losses(held.view(12, -1), True)
        print(f"step {step}, {spent:.0f} s: held out " + ", ".join(f"kl {a:.3f} the model's choice {100 * b:.1f} %" for a, b in s), flush=True)

    def save():
        save_file(m.state(c), o.out + "/mtp.safetensors", metadata={"format": "pt"})
        torch.save(dict(m=m.state_dict(), opt=opt.state_dict(), muon=muon.buf, step=step, spent=spent), state)
    test()
    saved = spent
    while spent < o.seconds:
        began = time.process_time()
        part = spent / o.seconds
        for g in opt.param_groups:
            g["lr"] = o.lr * min(1, (step + 1) / 20) * (1 if part < 0.4 else 0.02 + 0.98 * (1 - part) / 0.6)
        at = torch.randint(0, len(ids) - o.window - 3, (o.batch,), generator=torch.Generator().manual_seed(o.seed * 100000 + step))
        s = losses(torch.stack([ids[i:i + o.window + 3] for i in at]), step % 3 == 2)
        opt.zero_grad()
        sum(a for a, _ in s).backward()
        torch.nn.utils.clip_grad_norm_(params, 1.0)
        opt.step(), muon.step(o.muon * opt.param_groups[0]["lr"] / o.lr)
        step += 1
        spent += time.process_time() - began
        if spent - saved > 30:
            saved = spent
            test(), save()
    test(), save()


if __name__ == "__main__":
    main()
