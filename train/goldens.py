"""Tiny random checkpoints of nine architectures with reference logits. Usage: goldens.py SRC OUTDIR [arch,arch]
SRC holds the texts that tokenizers are trained on; "-" makes checkpoints without a tokenizer."""
import sys, os, json, math, random, lzma, tarfile, time, traceback
import torch

torch.manual_seed(0)
torch.set_num_threads(4)

GPT2 = r"""'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""
LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN2 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
DS1 = r"\p{N}{1,3}"
DS2 = "[一-龥぀-ゟ゠-ヿ]+"
DS3 = "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"

TEXTS = ["Hello, world!", "The quick brown fox jumps over the lazy dog.", "func main() {\n\tfmt.Println(\"hi\")\n}\n", "  two  spaces\tand a tab\n\n\nthree newlines ",
         "don't I'll WE'RE you'd it's", "1234567890 12 3.14159 0x1F", "naïve café façade — “quotes” … 5€", "日本語のテキスト と 漢字", "🙂 emoji 👩‍👩‍👧‍👦 family", "Привет, мир! Γειά", "", " ", "\n", "a", "   leading", "trailing   ",
         "{\"key\": [1, 2, {\"a\": null}], \"b\": true}", "x+=y*(z-1)//2 && !done || a[i]<=b", "e\u0301 combining, \u00a0nbsp, \u200bzero width", "MixedCASE camelCase snake_case SCREAMING_CASE", "\r\nwindows\r\nlines\r\n", "tab\t\tdouble", "https://example.com/a?b=c&d=e#f", "한국어 텍스트", "<|bos|>special inside<|eos|>"]


def make_tok(kind, texts, bos, eos, add_bos):
    from tokenizers import Tokenizer, models, pre_tokenizers as P, decoders, trainers, processors, Regex
    tok = Tokenizer(models.BPE())
    if kind == "gpt2":
        tok.pre_tokenizer = P.ByteLevel(add_prefix_space=False, trim_offsets=True, use_regex=True)
    else:
        pats = {"llama3": [LLAMA3], "qwen2": [QWEN2], "deepseek": [DS1, DS2, DS3]}[kind]
        tok.pre_tokenizer = P.Sequence([P.Split(Regex(p), behavior="isolated", invert=False) for p in pats] + [P.ByteLevel(add_prefix_space=False, trim_offsets=True, use_regex=False)])
    if kind == "qwen2":
        from tokenizers import normalizers
        tok.normalizer = normalizers.NFC()
    tok.decoder = decoders.ByteLevel()
    tr = trainers.BpeTrainer(vocab_size=512, special_tokens=["<|bos|>", "<|eos|>", "<|pad|>", "<|im_start|>", "<|im_end|>"], show_progress=False, initial_alphabet=P.ByteLevel.alphabet())
    tok.train_from_iterator(texts, tr)
    if add_bos:
        tok.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), processors.TemplateProcessing(single="<|bos|> $A", pair="<|bos|> $A <|bos|> $B", special_tokens=[("<|bos|>", 0)])])
    else:
        tok.post_processor = processors.ByteLevel(trim_offsets=False)
    return tok


def rnd(*shape, s=1.0):
    return torch.randn(*shape) * s

def lin(o, i, g=1.0):
    return rnd(o, i, s=g / math.sqrt(i))

def norm(n):
    return 1.0 + 0.15 * torch.randn(n)


def attn(d, p, D, H, KV, HD, bias=False, qknorm=False):
    d[p + "self_attn.q_proj.weight"] = lin(H * HD, D, 1.3)
    d[p + "self_attn.k_proj.weight"] = lin(KV * HD, D, 1.3)
    d[p + "self_attn.v_proj.weight"] = lin(KV * HD, D)
    d[p + "self_attn.o_proj.weight"] = lin(D, H * HD)
    if bias:
        for n, o in (("q", H * HD), ("k", KV * HD), ("v", KV * HD)):
            d[p + f"self_attn.{n}_proj.bias"] = rnd(o, s=0.4)
    if qknorm:
        d[p + "self_attn.q_norm.weight"] = norm(HD)
        d[p + "self_attn.k_norm.weight"] = norm(HD)


def mlp(d, p, D, FF):
    d[p + "gate_proj.weight"] = lin(FF, D)
    d[p + "up_proj.weight"] = lin(FF, D)
    d[p + "down_proj.weight"] = lin(D, FF)


def common(d, V, D, L, tied):
    d["model.embed_tokens.weight"] = rnd(V, D, s=1.0 if not tied else 0.5)
    d["model.norm.weight"] = norm(D)
    for i in range(L):
        d[f"model.layers.{i}.input_layernorm.weight"] = norm(D)
        d[f"model.layers.{i}.post_attention_layernorm.weight"] = norm(D)
    if not tied:
        d["lm_head.weight"] = lin(V, D, 2.5)


V = 512
WINDOW = None  # of Mistral: 64 to see it slide
def base(arch, mt, **k):
    c = {"architectures": [arch], "model_type": mt, "vocab_size": V, "hidden_act": "silu", "max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "initializer_range": 0.02,
         "use_cache": True, "bos_token_id": 0, "eos_token_id": 1, "attention_dropout": 0.0, "tie_word_embeddings": False}
    c.update(k)
    return c


def a_llama():
    D, L, H, KV, HD, FF = 128, 3, 16, 4, 8, 256
    c = base("LlamaForCausalLM", "llama", hidden_size=D, num_hidden_layers=L, num_attention_heads=H, num_key_value_heads=KV, intermediate_size=FF, attention_bias=False, mlp_bias=False, rope_theta=500000.0,
             rope_scaling={"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 128, "rope_type": "llama3"}, torch_dtype="bfloat16")
    d = {}
    common(d, V, D, L, False)
    for i in range(L):
        attn(d, f"model.layers.{i}.", D, H, KV, HD); mlp(d, f"model.layers.{i}.mlp.", D, FF)
    return c, d, "llama3", True, torch.bfloat16

def a_qwen2():
    D, L, H, KV, HD, FF = 128, 3, 16, 2, 8, 192
    c = base("Qwen2ForCausalLM", "qwen2", hidden_size=D, num_hidden_layers=L, num_attention_heads=H, num_key_value_heads=KV, intermediate_size=FF, rope_theta=1000000.0, rms_norm_eps=1e-6, tie_word_embeddings=True,
             use_sliding_window=False, sliding_window=1024, max_window_layers=L, torch_dtype="float32")
    d = {}
    common(d, V, D, L, True)
    for i in range(L):
        attn(d, f"model.layers.{i}.", D, H, KV, HD, bias=True); mlp(d, f"model.layers.{i}.mlp.", D, FF)
    return c, d, "qwen2", False, torch.float32

def a_qwen3():
    D, L, H, KV, HD, FF = 96, 3, 16, 8, 16, 192
    c = base("Qwen3ForCausalLM", "qwen3", hidden_size=D, num_hidden_layers=L, num_attention_heads=H, num_key_value_heads=KV, head_dim=HD, intermediate_size=FF, rope_theta=1000000.0, rms_norm_eps=1e-6, tie_word_embeddings=True,
             attention_bias=False, use_sliding_window=False, sliding_window=None, max_window_layers=L, rope_scaling=None, torch_dtype="bfloat16")
    d = {}
    common(d, V, D, L, True)
    for i in range(L):
        attn(d, f"model.layers.{i}.", D, H, KV, HD, qknorm=True); mlp(d, f"model.layers.{i}.mlp.", D, FF)
    return c, d, "qwen2", False, torch.bfloat16

def a_mistral():
    D, L, H, KV, HD, FF = 128, 3, 16, 8, 8, 256
    c = base("MistralForCausalLM", "mistral", hidden_size=D, num_hidden_layers=L, num_attention_heads=H, num_key_value_heads=KV, intermediate_size=FF, rope_theta=10000.0, sliding_window=WINDOW, torch_dtype="bfloat16")
    d = {}
    common(d, V, D, L, False)
    for i in range(L):
        attn(d, f"model.layers.{i}.", D, H, KV, HD); mlp(d, f"model.layers.{i}.mlp.", D, FF)
    return c, d, "gpt2", True, torch.bfloat16

def a_phi3():
    D, L, H, KV, HD, FF = 128, 3, 8, 4, 16, 192
    c = base("Phi3ForCausalLM", "phi3", hidden_size=D, num_hidden_layers=L, num_attention_heads=H, num_key_value_heads=KV, intermediate_size=FF, rope_theta=10000.0, rope_scaling=None, sliding_window=64,
             original_max_position_embeddings=2048, pad_token_id=2, torch_dtype="bfloat16")
    d = {}
    common(d, V, D, L, False)
    for i in range(L):
        p = f"model.layers.{i}."
        d[p + "self_attn.qkv_proj.weight"] = torch.cat([lin(H * HD, D, 1.3), lin(KV * HD, D, 1.3), lin(KV * HD, D)])
        d[p + "self_attn.o_proj.weight"] = lin(D, H * HD)
        d[p + "mlp.gate_up_proj.weight"] = lin(2 * FF, D)
        d[p + "mlp.down_proj.weight"] = lin(D, FF)
    return c, d, "llama3", True, torch.bfloat16

def a_mixtral():
    D, L, H, KV, HD, FF, E = 64, 2, 8, 4, 8, 80, 8
    c = base("MixtralForCausalLM", "mixtral", hidden_size=D, num_hidden_layers=L, num_attention_heads=H, num_key_value_heads=KV, intermediate_size=FF, num_local_experts=E, num_experts_per_tok=2, rope_theta=1000000.0, sliding_window=None,
             output_router_logits=False, router_aux_loss_coef=0.02, router_jitter_noise=0.0, torch_dtype="bfloat16")
    d = {}
    common(d, V, D, L, False)
    for i in range(L):
        p = f"model.layers.{i}."
        attn(d, p, D, H, KV, HD)
        d[p + "block_sparse_moe.gate.weight"] = lin(E, D, 1.5)
        for e in range(E):
            q = p + f"block_sparse_moe.experts.{e}."
            d[q + "w1.weight"] = lin(FF, D); d[q + "w3.weight"] = lin(FF, D); d[q + "w2.weight"] = lin(D, FF)
    return c, d, "gpt2", True, torch.bfloat16

def a_qwen3_moe():
    D, L, H, KV, HD, FF, MF, E = 64, 3, 8, 4, 16, 96, 48, 12
    c = base("Qwen3MoeForCausalLM", "qwen3_moe", hidden_size=D, num_hidden_layers=L, num_attention_heads=H, num_key_value_heads=KV, head_dim=HD, intermediate_size=FF, moe_intermediate_size=MF, num_experts=E,
             num_experts_per_tok=3, norm_topk_prob=True, decoder_sparse_step=1, mlp_only_layers=[1], rope_theta=1000000.0, rms_norm_eps=1e-6, attention_bias=False, use_sliding_window=False, sliding_window=None,
             max_window_layers=L, rope_scaling=None, output_router_logits=False, router_aux_loss_coef=0.001, torch_dtype="bfloat16")
    d = {}
    common(d, V, D, L, False)
    for i in range(L):
        p = f"model.layers.{i}."
        attn(d, p, D, H, KV, HD, qknorm=True)
        if i in c["mlp_only_layers"]:
            mlp(d, p + "mlp.", D, FF)
            continue
        d[p + "mlp.gate.weight"] = lin(E, D, 1.5)
        for e in range(E):
            mlp(d, p + f"mlp.experts.{e}.", D, MF)
    return c, d, "qwen2", False, torch.bfloat16

def a_deepseek():
    D, L, H, FF, MF, E = 128, 3, 16, 256, 48, 16
    ql, kl, no, ro, vd = 48, 32, 16, 8, 12
    c = base("DeepseekV3ForCausalLM", "deepseek_v3", hidden_size=D, num_hidden_layers=L, num_attention_heads=H, num_key_value_heads=H, intermediate_size=FF, moe_intermediate_size=MF, n_routed_experts=E, n_shared_experts=1,
             num_experts_per_tok=4, n_group=4, topk_group=2, routed_scaling_factor=2.5, norm_topk_prob=True, first_k_dense_replace=1, moe_layer_freq=1, scoring_func="sigmoid", topk_method="noaux_tc",
             q_lora_rank=ql, kv_lora_rank=kl, qk_nope_head_dim=no, qk_rope_head_dim=ro, v_head_dim=vd, attention_bias=False, rope_theta=10000.0, rms_norm_eps=1e-6, ep_size=1, num_nextn_predict_layers=0,
             rope_scaling={"type": "yarn", "factor": 40.0, "original_max_position_embeddings": 64, "beta_fast": 32, "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 1.0}, max_position_embeddings=2560, torch_dtype="bfloat16")
    d = {}
    common(d, V, D, L, False)
    for i in range(L):
        p = f"model.layers.{i}.self_attn."
        d[p + "q_a_proj.weight"] = lin(ql, D); d[p + "q_a_layernorm.weight"] = norm(ql)
        d[p + "q_b_proj.weight"] = lin(H * (no + ro), ql, 1.2)
        d[p + "kv_a_proj_with_mqa.weight"] = lin(kl + ro, D, 1.2); d[p + "kv_a_layernorm.weight"] = norm(kl)
        d[p + "kv_b_proj.weight"] = lin(H * (no + vd), kl, 1.2)
        d[p + "o_proj.weight"] = lin(D, H * vd)
        p = f"model.layers.{i}.mlp."
        if i < 1:
            mlp(d, p, D, FF)
        else:
            d[p + "gate.weight"] = lin(E, D, 1.5)
            d[p + "gate.e_score_correction_bias"] = rnd(E, s=0.15)
            for e in range(E):
                mlp(d, p + f"experts.{e}.", D, MF)
            mlp(d, p + "shared_experts.", D, MF)
    return c, d, "deepseek", True, torch.bfloat16


def a_deepseek_v2():
    D, L, H, FF, MF, E = 80, 3, 20, 160, 32, 12
    kl, no, ro, vd = 40, 12, 8, 8
    c = base("DeepseekV2ForCausalLM", "deepseek_v2", hidden_size=D, num_hidden_layers=L, num_attention_heads=H, num_key_value_heads=H, intermediate_size=FF, moe_intermediate_size=MF, n_routed_experts=E, n_shared_experts=2,
             num_experts_per_tok=3, n_group=3, topk_group=2, routed_scaling_factor=1.5, norm_topk_prob=False, first_k_dense_replace=1, moe_layer_freq=1, scoring_func="softmax", topk_method="group_limited_greedy",
             q_lora_rank=None, kv_lora_rank=kl, qk_nope_head_dim=no, qk_rope_head_dim=ro, v_head_dim=vd, attention_bias=False, rope_theta=10000.0, rms_norm_eps=1e-5, ep_size=1,
             rope_scaling={"type": "yarn", "factor": 16.0, "original_max_position_embeddings": 64, "beta_fast": 32, "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 0.707}, max_position_embeddings=1024, torch_dtype="bfloat16")
    d = {}
    common(d, V, D, L, False)
    for i in range(L):
        p = f"model.layers.{i}.self_attn."
        d[p + "q_proj.weight"] = lin(H * (no + ro), D, 1.2)
        d[p + "kv_a_proj_with_mqa.weight"] = lin(kl + ro, D, 1.2); d[p + "kv_a_layernorm.weight"] = norm(kl)
        d[p + "kv_b_proj.weight"] = lin(H * (no + vd), kl, 1.2)
        d[p + "o_proj.weight"] = lin(D, H * vd)
        p = f"model.layers.{i}.mlp."
        if i < 1:
            mlp(d, p, D, FF)
        else:
            d[p + "gate.weight"] = lin(E, D, 1.5)
            for e in range(E):
                mlp(d, p + f"experts.{e}.", D, MF)
            mlp(d, p + "shared_experts.", D, 2 * MF)
    return c, d, "deepseek", True, torch.bfloat16


ARCH = {"llama": a_llama, "qwen2": a_qwen2, "qwen3": a_qwen3, "mistral": a_mistral, "mixtral": a_mixtral, "deepseek_v3": a_deepseek, "qwen3_moe": a_qwen3_moe, "deepseek_v2": a_deepseek_v2, "phi3": a_phi3}


def watch_routers(model, k):
    """The smallest gap between the last chosen and the first refused expert's score, over all tokens that the model sees from now on. Below about 1e-4 another order of sums may choose differently."""
    seen = [9e9]

    def hook(mod, args, out):
        s = out[0].float().topk(k + 1, dim=-1).values
        seen[0] = min(seen[0], (s[:, k - 1] - s[:, k]).min().item())
    for mod in model.modules():
        if type(mod).__name__.endswith("Router"):
            mod.register_forward_hook(hook)
    return seen


def main():
    src, out = sys.argv[1], sys.argv[2]
    only = sys.argv[3].split(",") if len(sys.argv) > 3 else list(ARCH)
    import transformers
    from transformers import AutoModelForCausalLM, AutoConfig, PreTrainedTokenizerFast
    from safetensors.torch import save_file, load_file
    print("transformers", transformers.__version__, "torch", torch.__version__, flush=True)
    if src != "-":
        t = [x for x in lzma.open(f"{src}/code_val.txt.xz", "rt", encoding="utf-8", newline="").read().split("\0")][:60]
        t += [x for x in lzma.open(f"{src}/eng_val.txt.xz", "rt", encoding="utf-8", newline="").read().split("\0")]
    report = {}
    for ai, name in enumerate(only):
        t0 = time.time()
        try:
            seed0 = 1000 + 10 * list(ARCH).index(name)
            best = None
            for seed in range(seed0, seed0 + 12):
                torch.manual_seed(seed)
                cfg, w, tk, add_bos, dt = ARCH[name]()
                folder = f"{out}/{name}"
                os.makedirs(folder, exist_ok=True)
                w = {k: v.to(torch.float32 if k.endswith("e_score_correction_bias") else dt).contiguous() for k, v in w.items()}
                save_file(w, f"{folder}/model.safetensors", metadata={"format": "pt"})
                json.dump(cfg, open(f"{folder}/config.json", "w"), indent=1)
                json.dump({"bos_token_id": 0, "eos_token_id": 1, "do_sample": False}, open(f"{folder}/generation_config.json", "w"), indent=1)
                kw = {}
                try:
                    model, info = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager", experts_implementation="eager", output_loading_info=True)
                except Exception as e:
                    print(name, "experts_implementation refused:", repr(e)[:200])
                    model, info = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
                model.eval()
                bad = {k: list(v)[:5] for k, v in info.items() if v and k != "error_msgs"}
                assert next(model.parameters()).dtype == torch.float32
                routed = watch_routers(model, cfg["num_experts_per_tok"]) if "num_experts_per_tok" in cfg else [9e9]
                rng = random.Random(seed)
                prompts = []
                for n in (1, 2, 5, 17, 33, 64, 65, 127, 200, 300):
                    prompts.append([0] + [rng.randrange(5, V) for _ in range(n - 1)])
                # also text prompts, through the tokenizer, when it is there
                items, mingap, maxabs = [], 9e9, 0.0
                with torch.no_grad():
                    for p in prompts:
                        ids = torch.tensor([p])
                        lg = model(ids, use_cache=False).logits[0, -1].float()
                        seq, gaps = list(p), []
                        cur = lg
                        gen = []
                        for s in range(32):
                            top = cur.topk(2)
                            gaps.append((top.values[0] - top.values[1]).item())
                            nx = int(top.indices[0])
                            gen.append(nx); seq.append(nx)
                            if s < 31:
                                cur = model(torch.tensor([seq]), use_cache=False).logits[0, -1].float()
                        mingap = min(mingap, min(gaps)); maxabs = max(maxabs, lg.abs().max().item())
                        items.append({"prompt": p, "logits": [float("%.8g" % x) for x in lg.tolist()], "greedy": gen, "gaps": [float("%.5g" % g) for g in gaps]})
                print(name, "seed", seed, "min greedy gap %.2e" % mingap, "min routing gap %.2e" % routed[0], "max |logit| %.2f" % maxabs, "loading", bad, round(time.time() - t0, 1), "s", flush=True)
                mingap = min(mingap, 10 * routed[0])
                if best is None or mingap > best[0]:
                    best = (mingap, seed, items, w, cfg, bad)
                if mingap > 1e-3:
                    break
            mingap, seed, items, w, cfg, bad = best
            save_file(w, f"{folder}/model.safetensors", metadata={"format": "pt"})
            model, info = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
            model.eval()
            with torch.no_grad():
                # the default experts implementation, all positions of one prompt, and the cached path
                p = torch.tensor([items[4]["prompt"]])
                full = model(p, use_cache=False).logits[0].float()
                dd = (full[-1] - torch.tensor(items[4]["logits"])).abs().max().item()
                cached = []
                for it in items:
                    o = model.generate(torch.tensor([it["prompt"]]), max_new_tokens=32, do_sample=False, eos_token_id=None, pad_token_id=2, attention_mask=torch.ones(1, len(it["prompt"]), dtype=torch.long))
                    cached.append(o[0, len(it["prompt"]):].tolist() == it["greedy"])
                hid = model(p, use_cache=False, output_hidden_states=True).hidden_states
                hs = [[float("%.8g" % x) for x in h[0, -1].tolist()] for h in hid]
                inv = None
                for n, b in model.named_buffers():
                    if n.endswith("rotary_emb.inv_freq"):
                        inv = [float("%.9g" % x) for x in b.tolist()]
                rot = getattr(model.model, "rotary_emb", None)
                scal = getattr(rot, "attention_scaling", None)
            # what transformers itself would save
            model.config._name_or_path = ""
            try:
                model.save_pretrained(f"{out}/tmp_{name}")
                k2 = {}
                import glob
                for f in glob.glob(f"{out}/tmp_{name}/*.safetensors"):
                    k2.update({k: tuple(v.shape) for k, v in load_file(f).items()})
                k1 = {k: tuple(v.shape) for k, v in w.items()}
                same = k1 == k2
                if not same:
                    print(name, "save_pretrained keys differ:", sorted(set(k2) - set(k1))[:6], "missing", sorted(set(k1) - set(k2))[:6], flush=True)
                os.replace(f"{out}/tmp_{name}/config.json", f"{folder}/config.v5.json")
            except Exception as e:
                same = repr(e)[:200]
            golden = {"arch": name, "seed": seed, "weights": str(dt), "compute": "float32, eager attention, no cache", "transformers": transformers.__version__, "torch": torch.__version__, "min_gap": mingap,
                      "items": items, "all_positions": {"prompt": items[4]["prompt"], "logits": [[float("%.7g" % x) for x in r] for r in full.tolist()]},
                      "hidden_states_last_position": {"prompt": items[4]["prompt"], "note": "entry 0 is the embedding, entry i the output of layer i, the last one after the final norm", "states": hs},
                      "inv_freq": inv, "rope_attention_scaling": scal}
            if src == "-":
                json.dump(golden, open(f"{folder}/goldens.json", "w"))
                print(f"OK {name} seed={seed} min_gap={mingap:.2e} cached==uncached {all(cached)} default-experts diff {dd:.1e} save_pretrained same keys {same} loading {bad}", flush=True)
                continue
            tok = make_tok(tk, t, 0, 1, add_bos)
            tok.save(f"{folder}/tokenizer.json")
            json.dump({"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<|bos|>", "eos_token": "<|eos|>", "pad_token": "<|pad|>", "add_bos_token": add_bos, "clean_up_tokenization_spaces": False, "model_max_length": 2048,
                       "chat_template": "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"},
                      open(f"{folder}/tokenizer_config.json", "w"), indent=1)
            htok = PreTrainedTokenizerFast.from_pretrained(folder)
            tg = []
            texts = TEXTS + [t[1][:700], t[-1][:700]]
            for s in texts:
                e = tok.encode(s)
                tg.append({"text": s, "ids": e.ids, "ids_no_special": tok.encode(s, add_special_tokens=False).ids, "decoded": tok.decode(tok.encode(s, add_special_tokens=False).ids, skip_special_tokens=False)})
            chat = htok.apply_chat_template([{"role": "user", "content": "Hi there"}], tokenize=False, add_generation_prompt=True)
            # a text prompt through the model as well
            tp = tok.encode("package main\n\nimport \"fmt\"\n").ids
            with torch.no_grad():
                lg = model(torch.tensor([tp]), use_cache=False).logits[0, -1].float()
            json.dump(golden | {"text_prompt": {"ids": tp, "logits": [float("%.8g" % x) for x in lg.tolist()]}, "chat_rendered": chat}, open(f"{folder}/goldens.json", "w"))
            json.dump(tg, open(f"{folder}/tokenizer_goldens.json", "w"), ensure_ascii=False, indent=0)
            tar = f"{out}/{name}.tar.gz"
            with tarfile.open(tar, "w:gz") as z:
                z.add(folder, arcname=name)
            sz = sum(os.path.getsize(f"{folder}/{f}") for f in os.listdir(folder))
            print(f"OK {name} seed={seed} min_gap={mingap:.2e} cached==uncached {all(cached)} default-experts diff {dd:.1e} save_pretrained same keys {same} loading {bad} folder {sz>>10} KiB tar {os.path.getsize(tar)>>10} KiB scaling {scal} {time.time()-t0:.1f}s", flush=True)
        except Exception:
            print("FAILED", name)
            traceback.print_exc()
            sys.stderr.flush()


if __name__ == "__main__":
    main()
