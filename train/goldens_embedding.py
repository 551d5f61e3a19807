"""Tiny random embedding models and rerankers with reference vectors and scores of sentence-transformers,
in float32. Usage: goldens_embedding.py OUTDIR [name,name]

A folder has what sentence-transformers saves: modules.json, the configurations of its modules, a
tokenizer that adds the special tokens of the family, and goldens.json with texts, token ids and vectors.
"""
import json, math, os, shutil, sys, tempfile
import torch

torch.set_num_threads(1)

V = 512
TEXTS = ["a", "The capital of China is Beijing.", "Gravity is a force that attracts two bodies towards each other.",
         "naïve café – 東京 🙂 " * 4, "How much protein should a female eat? " * 9]
PAIRS = [("What is the capital of China?", "The capital of China is Beijing."), ("What is the capital of China?", "Pandas eat bamboo."),
         ("Explain gravity", "Gravity is a force that attracts two bodies towards each other. " * 3)]
# Jinja drops the last newline.
RERANK_TEMPLATE = """<|im_start|>system
Judge whether the Document meets the requirements based on the Query and the Instruct provided. Note that the answer can only be "yes" or "no".<|im_end|>
<|im_start|>user
<Instruct>: {{ (messages | selectattr("role", "eq", "system") | map(attribute="content") | first) or "Given a web search query, retrieve relevant passages that answer the query" }}
<Query>: {{ messages | selectattr("role", "eq", "query") | map(attribute="content") | first }}
<Document>: {{ messages | selectattr("role", "eq", "document") | map(attribute="content") | first }}<|im_end|>
<|im_start|>assistant
<think>

</think>


"""


def qwen(arch, **k):
    return {"architectures": [arch], "model_type": "qwen3", "vocab_size": V, "hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 3,
            "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "hidden_act": "silu", "max_position_embeddings": 1024, "rms_norm_eps": 1e-6,
            "rope_theta": 1000000.0, "attention_bias": False, "tie_word_embeddings": True, "bos_token_id": 0, "eos_token_id": 0, "torch_dtype": "bfloat16",
            "use_sliding_window": False, "sliding_window": None, "max_window_layers": 3} | k


# The root of 64 is the same in float32 and in bf16, to which files in GGUF round the scale of the embedding.
GEMMA = {"architectures": ["Gemma3TextModel"], "model_type": "gemma3_text", "vocab_size": V, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3,
         "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 16, "hidden_activation": "gelu_pytorch_tanh", "max_position_embeddings": 512,
         "rms_norm_eps": 1e-6, "bos_token_id": 1, "eos_token_id": 0, "pad_token_id": 0, "attention_bias": False, "query_pre_attn_scalar": 16, "sliding_window": 24,
         "_sliding_window_pattern": 3, "layer_types": ["sliding_attention", "sliding_attention", "full_attention"], "rope_theta": 1000000.0,
         "rope_local_base_freq": 10000.0, "use_bidirectional_attention": True, "torch_dtype": "float32"}

MODELS = {
    "qwen3_embedding": dict(config=qwen("Qwen3ForCausalLM"), cls="Qwen3Model", ends="A:0 <|endoftext|>:0", pooling="lasttoken",
                            prompts={"query": "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery:", "document": ""}),
    "embeddinggemma": dict(config=GEMMA, cls="Gemma3TextModel", ends="<bos> A <|endoftext|>", pooling="mean", dense=[(96, "torch.nn.modules.linear.Identity"), (64, "torch.nn.modules.linear.Identity")],
                           prompts={"query": "task: search result | query: ", "document": "title: none | text: "}),
    "mistral_embedding": dict(config=qwen("MistralModel", model_type="mistral", hidden_size=64, sliding_window=40), cls="MistralModel", ends="<bos> A <|endoftext|>", pooling="mean", dense=[(32, "torch.nn.modules.activation.Tanh")], prompts={}),
    "qwen3_reranker": dict(config=qwen("Qwen3ForCausalLM"), cls="Qwen3ForCausalLM", ends=None, score=("yes", "no")),
    "qwen3_classifier": dict(config=qwen("Qwen3ForSequenceClassification", num_labels=1, id2label={"0": "LABEL_0"}, label2id={"LABEL_0": 0}, pad_token_id=0), cls="Qwen3ForSequenceClassification", ends=None, classifier=True),
}


def tokenizer(folder, ends, template):
    from tokenizers import Tokenizer, models, pre_tokenizers, decoders, processors, AddedToken
    special = ["<|endoftext|>", "<bos>", "<|im_start|>", "<|im_end|>", "<think>", "</think>"]
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {t: i for i, t in enumerate(special[:4] + letters)}
    merges = []
    for word in ("yes", "no", "the", "is", "Ġt", "Ġthe", "in", "er"):
        at = word[0]
        for c in word[1:]:
            if at + c not in vocab:
                vocab[at + c] = len(vocab)
                merges.append((at, c))
            at += c
    t = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    t.decoder = decoders.ByteLevel()
    t.add_special_tokens([AddedToken(s, special=True) for s in special[:4]])
    t.add_tokens([AddedToken(s, special=False) for s in special[4:]])
    if ends:
        single = ends if ":" in ends else ends.replace("A", "$A")
        single = single.replace("A:0", "$A:0")
        t.post_processor = processors.TemplateProcessing(single=single, special_tokens=[(s, t.token_to_id(s)) for s in special[:2] if s in ends])
    t.save(f"{folder}/tokenizer.json")
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>", "bos_token": "<bos>", "model_max_length": 512, "padding_side": "left", "clean_up_tokenization_spaces": False}
    if template:
        config["chat_template"] = template
    json.dump(config, open(f"{folder}/tokenizer_config.json", "w"), indent=1)
    return t


def randomise(model):
    for name, p in model.state_dict().items():
        if not p.is_floating_point():
            continue
        if p.dim() < 2 or "norm" in name:
            x = p + 0.15 * torch.randn(p.shape)
        elif "embed_tokens" in name:
            x = 0.5 * torch.randn(p.shape)
        else:
            x = 1.2 * torch.randn(p.shape) / math.sqrt(p.shape[-1])
        p.copy_(x.to(torch.bfloat16))


def numbers(x):
    return [float("%.7g" % v) for v in x]


def write(out, name, m):
    import transformers, sentence_transformers as st
    from sentence_transformers.base.modules import Transformer
    folder = f"{out}/{name}"
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    config = m["config"]
    json.dump(config, open(f"{folder}/config.json", "w"), indent=1)
    tok = tokenizer(folder, m["ends"], RERANK_TEMPLATE if m.get("score") else None)
    torch.manual_seed(9000 + sum(map(ord, name)))
    cls = getattr(transformers, m["cls"])
    model = cls(transformers.AutoConfig.from_pretrained(folder))
    with torch.no_grad():
        randomise(model)
    model.to(torch.float32 if config["torch_dtype"] == "float32" else torch.bfloat16)
    with tempfile.TemporaryDirectory() as tmp:
        model.save_pretrained(tmp)
        shutil.move(f"{tmp}/model.safetensors", f"{folder}/model.safetensors")
    goldens = {"sentence_transformers": st.__version__, "transformers": transformers.__version__, "compute": "float32, eager attention"}
    kwargs = {"model_kwargs": {"dtype": torch.float32, "attn_implementation": "eager"}}
    if m.get("classifier"):
        model = cls.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
        goldens["items"] = []
        for text in TEXTS:
            ids = tok.encode(text).ids
            with torch.no_grad():
                goldens["items"].append({"text": text, "ids": ids, "score": float("%.7g" % model(input_ids=torch.tensor([ids])).logits[0, 0])})
    elif m.get("score"):
        from sentence_transformers.cross_encoder.modules import LogitScore
        from sentence_transformers import CrossEncoder
        yes, no = (tok.token_to_id(s) for s in m["score"])
        ce = CrossEncoder(modules=[Transformer(folder, transformer_task="text-generation", **kwargs), LogitScore(yes, no)])
        keep(ce, folder)
        goldens["items"] = [{"query": q, "document": d, "score": float("%.7g" % s)} for (q, d), s in zip(PAIRS, ce.predict(PAIRS, batch_size=1, activation_fn=torch.nn.Identity()))]
        goldens["relevance"] = numbers(ce.predict(PAIRS, batch_size=1))
    else:
        from sentence_transformers.sentence_transformer.modules import Pooling, Dense, Normalize
        width = config["hidden_size"]
        modules = [Transformer(folder, **kwargs), Pooling(width, m["pooling"])]
        for size, act in m.get("dense", []):
            modules.append(Dense(width, size, bias="Tanh" in act, activation_function=torch.nn.Tanh() if "Tanh" in act else torch.nn.Identity()))
            width = size
        model = st.SentenceTransformer(modules=modules + [Normalize()], prompts=m["prompts"], similarity_fn_name="cosine")
        keep(model, folder)
        goldens["items"] = [{"text": t, "ids": tok.encode(t).ids, "vector": numbers(model.encode(t)), "cut": numbers(model.encode(t, truncate_dim=16, normalize_embeddings=True))} for t in TEXTS]
        goldens["prompted"] = [{"prompt": p, "text": t, "vector": numbers(model.encode(t, prompt_name=p))} for p in m["prompts"] for t in TEXTS[1:3]]
    json.dump(goldens, open(f"{folder}/goldens.json", "w"))
    print(name, {k: len(v) for k, v in goldens.items() if isinstance(v, list)}, flush=True)


def keep(model, folder):
    """Keeps what sentence-transformers saves besides the transformer itself."""
    with tempfile.TemporaryDirectory() as tmp:
        model.save_pretrained(tmp, create_model_card=False)
        for name in sorted(os.listdir(tmp)):
            path = f"{tmp}/{name}"
            if os.path.isdir(path):
                shutil.copytree(path, f"{folder}/{name}")
            elif name in ("modules.json", "config_sentence_transformers.json", "sentence_bert_config.json"):
                shutil.copy(path, folder)


def main():
    names = sys.argv[2].split(",") if len(sys.argv) > 2 else MODELS
    for name in names:
        write(sys.argv[1], name, MODELS[name])


main()
