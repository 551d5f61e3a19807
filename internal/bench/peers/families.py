"""What GGUF files of Gemma 4, gpt-oss and Qwen3.5 hold, in the shapes of public models.
Each function returns the architecture's name, its keys and its tensors: (name, shape, kind).
"weight" in kind's place: the type that the file is asked for."""

WEIGHT = "weight"


def routed(d, ffn, n):
    """Router and routed experts."""
    return [("ffn_gate_inp.weight", (d, n), "f32"), ("ffn_gate_exps.weight", (d, ffn, n), WEIGHT),
            ("ffn_up_exps.weight", (d, ffn, n), WEIGHT), ("ffn_down_exps.weight", (ffn, d, n), WEIGHT)]


def dense(prefix, d, ffn):
    return [(f"ffn_gate{prefix}.weight", (d, ffn), WEIGHT), (f"ffn_up{prefix}.weight", (d, ffn), WEIGHT), (f"ffn_down{prefix}.weight", (ffn, d), WEIGHT)]


def norms(d, *names):
    return [(f"{name}.weight", (d,), "one") for name in names]


def attention(d, q, k, v, o):
    """Projections of queries, keys, values (0: there is none) and outputs."""
    return [(f"attn_{name}.weight", shape, WEIGHT) for name, shape in (("q", (d, q)), ("k", (d, k)), ("v", (d, v)), ("output", (o, d))) if shape[1]]


def gpt_oss(layers=24, d=2880, heads=64, kv=8, head=64, n=32, ffn=2880, vocab=201088):
    q, k = heads * head, kv * head
    biases = [("attn_q", q), ("attn_k", k), ("attn_v", k), ("attn_output", d)]
    layer = norms(d, "attn_norm", "post_attention_norm") + attention(d, q, k, k, q) + [("attn_sinks.weight", (heads,), "f32")]
    layer += [(f"{name}.bias", (rows,), "f32") for name, rows in biases] + routed(d, ffn, n)
    layer += [("ffn_gate_inp.bias", (n,), "f32")] + [(f"ffn_{name}_exps.bias", (rows, n), "f32") for name, rows in (("gate", ffn), ("up", ffn), ("down", d))]
    keys = {"attention.head_count": heads, "attention.head_count_kv": kv, "attention.key_length": head, "attention.value_length": head,
            "attention.sliding_window": 128, "expert_count": n, "expert_used_count": 4, "expert_feed_forward_length": ffn, "feed_forward_length": ffn,
            "rope.freq_base": 150000.0, "rope.dimension_count": head, "rope.scaling.type": "yarn", "rope.scaling.factor": 32.0, "rope.scaling.original_context_length": 4096}
    return "gpt-oss", d, vocab, False, keys, [layer] * layers


def qwen35(layers=40, d=2048, heads=16, kv=2, head=256, n=256, ffn=512, key_heads=16, value_heads=32, state=128, vocab=248320):
    keys_width, values = key_heads * state, value_heads * state
    full = attention(d, 2 * heads * head, kv * head, kv * head, heads * head) + norms(head, "attn_q_norm", "attn_k_norm")
    linear = [("attn_qkv.weight", (d, 2 * keys_width + values), WEIGHT), ("attn_gate.weight", (d, values), WEIGHT), ("ssm_out.weight", (values, d), WEIGHT),
              ("ssm_conv1d.weight", (4, 2 * keys_width + values), "f32"), ("ssm_dt.bias", (value_heads,), "f32"), ("ssm_a", (value_heads,), "f32"),
              ("ssm_beta.weight", (d, value_heads), WEIGHT), ("ssm_alpha.weight", (d, value_heads), WEIGHT), ("ssm_norm.weight", (state,), "one")]
    rest = norms(d, "attn_norm", "post_attention_norm") + routed(d, ffn, n) + dense("_shexp", d, ffn) + [("ffn_gate_inp_shexp.weight", (d,), "f32")]
    keys = {"attention.head_count": heads, "attention.head_count_kv": kv, "attention.key_length": head, "attention.value_length": head,
            "expert_count": n, "expert_used_count": 8, "expert_feed_forward_length": ffn, "expert_shared_feed_forward_length": ffn,
            "rope.freq_base": 1e7, "rope.dimension_count": head // 4, "rope.dimension_sections": [11, 11, 10, 0], "full_attention_interval": 4,
            "ssm.conv_kernel": 4, "ssm.inner_size": values, "ssm.state_size": state, "ssm.time_step_rank": value_heads, "ssm.group_count": key_heads}
    return "qwen35moe", d, vocab, False, keys, [(full if i % 4 == 3 else linear) + rest for i in range(layers)]


def gemma4(layers=30, d=2816, heads=16, n=128, ffn=704, shared=2112, vocab=262144):
    def layer(i):
        head, kv = (512, 2) if i % 6 == 5 else (256, 8)
        own = attention(d, heads * head, kv * head, 0 if head == 512 else kv * head, heads * head) + norms(head, "attn_q_norm", "attn_k_norm")
        own += norms(d, "attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm", "pre_ffw_norm_2", "post_ffw_norm_1", "post_ffw_norm_2")
        return own + dense("", d, shared) + routed(d, ffn, n) + [("ffn_gate_inp.scale", (d,), "one")]
    pattern = [i % 6 != 5 for i in range(layers)]
    keys = {"attention.head_count": heads, "attention.head_count_kv": [8 if local else 2 for local in pattern], "attention.key_length": 512, "attention.value_length": 512,
            "attention.key_length_swa": 256, "attention.value_length_swa": 256, "attention.sliding_window": 1024, "attention.sliding_window_pattern": pattern,
            "rope.freq_base": 1e6, "rope.freq_base_swa": 1e4, "rope.dimension_count": 512, "rope.dimension_count_swa": 256,
            "expert_count": n, "expert_used_count": 8, "expert_feed_forward_length": ffn, "feed_forward_length": shared, "embedding_length_per_layer_input": 0,
            "final_logit_softcapping": 30.0}
    return "gemma4", d, vocab, True, keys, [layer(i) for i in range(layers)]


FAMILIES = {"gpt-oss-20b": gpt_oss, "qwen3.5-35b-a3b": qwen35, "gemma-4-26b-a4b": gemma4}
