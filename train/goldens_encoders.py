"""Tiny random encoders (BERT, XLM-RoBERTa, Nomic, ModernBERT) and rerankers of them, with reference vectors and
scores of transformers in float32 with eager attention. Usage: goldens_encoders.py OUTDIR [name,name]
"""
import json, math, os, shutil, sys, tempfile
import torch
import transformers

torch.set_num_threads(1)
V = 320
SIZES = dict(vocab_size=V, hidden_size=64, num_hidden_layers=3, num_attention_heads=4, intermediate_size=96, pad_token_id=1)
BERT = SIZES | dict(max_position_embeddings=160, type_vocab_size=2, pad_token_id=0)
XLMR = SIZES | dict(max_position_embeddings=162, type_vocab_size=1, layer_norm_eps=1e-5)
NOMIC = SIZES | dict(max_position_embeddings=256, type_vocab_size=2, pad_token_id=0)
MODERN = SIZES | dict(num_hidden_layers=4, max_position_embeddings=256, local_attention=16, pad_token_id=0, bos_token_id=2, eos_token_id=3, cls_token_id=2, sep_token_id=3, global_attn_every_n_layers=3)
# name: class, config, pooling, further settings
MODELS = {
    "bert": ("BertModel", BERT, "mean"),
    "xlmr": ("XLMRobertaModel", XLMR, "cls"),
    "nomic": ("NomicBertModel", NOMIC, "mean"),
    "distilbert": ("DistilBertModel", dict(vocab_size=V, dim=64, n_layers=3, n_heads=4, hidden_dim=96, max_position_embeddings=160, pad_token_id=0), "mean"),
    "modernbert": ("ModernBertModel", MODERN, "cls"),
    "bert_reranker": ("BertForSequenceClassification", BERT | dict(num_labels=1, num_hidden_layers=2), None),
    "xlmr_reranker": ("XLMRobertaForSequenceClassification", XLMR | dict(num_labels=1, num_hidden_layers=2), None),
    "modernbert_reranker": ("ModernBertForSequenceClassification", MODERN | dict(num_labels=1, num_hidden_layers=2, classifier_pooling="mean"), None),
}


TEXTS = ["a", "The capital of China is Beijing.", "Gravity is a force that attracts two bodies.", "naïve café – 東京 🙂 " * 2, "How much protein should a female eat? " * 3]
PAIRS = [("What is the capital of China?", "The capital of China is Beijing."), ("What is the capital of China?", "Pandas eat bamboo."), ("Explain gravity", "Gravity is a force that attracts two bodies. " * 2), ("x", "y")]
WORDS = "the capital of china is beijing what how gravity a force that".split()


def tokenizer(folder, name):
    """A tokenizer of the family's kind with at most V tokens."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers as P, processors
    letters = [chr(c) for c in range(33, 127)]
    if "bert" in name and "modern" not in name or name == "nomic":
        vocab = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"] + letters + ["##" + c for c in letters if not c.isupper()] + WORDS
        with open(f"{folder}/vocab.txt", "w") as f:
            f.write("".join(t + "\n" for t in vocab))
        json.dump({"tokenizer_class": "BertTokenizer", "do_lower_case": True}, open(f"{folder}/tokenizer_config.json", "w"))
        from transformers import BertTokenizer
        return BertTokenizer.from_pretrained(folder)._tokenizer
    if "xlmr" in name:
        pieces = [("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -2.0)] + [("▁" + w, -4.0 - i / 8) for i, w in enumerate(WORDS)] + [(c, -5.0 - i / 16) for i, c in enumerate(letters + list("éï東"))] + [("<mask>", 0.0)]
        t = Tokenizer(models.Unigram(pieces, unk_id=3))
        t.pre_tokenizer, t.decoder = P.Metaspace(), decoders.Metaspace()
        t.normalizer = normalizers.Sequence([normalizers.Nmt(), normalizers.NFKC()])
        t.add_special_tokens(["<s>", "<pad>", "</s>", "<unk>", "<mask>"])
        t.post_processor = processors.TemplateProcessing(single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)])
    else:
        special = ["[UNK]", "[PAD]", "[CLS]", "[SEP]", "[MASK]"]
        t = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(special + sorted(P.ByteLevel.alphabet()))}, merges=[]))
        t.pre_tokenizer, t.decoder = P.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
        t.add_special_tokens([AddedToken(s, special=True) for s in special])
        t.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    t.save(f"{folder}/tokenizer.json")
    json.dump({"tokenizer_class": "PreTrainedTokenizerFast"}, open(f"{folder}/tokenizer_config.json", "w"))
    return t


def randomise(model):
    for name, p in model.state_dict().items():
        if not p.is_floating_point():
            continue
        if p.dim() < 2:
            x = p + 0.2 * torch.randn(p.shape)
        elif "embeddings" in name:
            x = 0.5 * torch.randn(p.shape)
        else:
            x = 1.2 * torch.randn(p.shape) / math.sqrt(p.shape[-1])
        p.copy_(x.to(torch.bfloat16))


def numbers(x):
    return [float("%.7g" % v) for v in x]


def write(out, name):
    cls, settings, pooling = MODELS[name]
    folder = os.path.join(out, name)
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    cls = getattr(transformers, cls)
    torch.manual_seed(4000 + sum(map(ord, name)))
    model = cls(cls.config_class(**settings, attn_implementation="eager")).eval()
    with torch.no_grad():
        randomise(model)
    with tempfile.TemporaryDirectory() as tmp:
        model.to(torch.bfloat16).save_pretrained(tmp)
        for f in ("config.json", "model.safetensors"):
            shutil.move(f"{tmp}/{f}", f"{folder}/{f}")
    model = cls.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    tok = tokenizer(folder, name)
    goldens = {"transformers": transformers.__version__, "items": []}
    typed = settings.get("type_vocab_size") == 2
    for text in TEXTS if pooling else PAIRS:
        e = tok.encode(text) if pooling else tok.encode(*text)
        ids, types = e.ids, e.type_ids if typed else [0] * len(e.ids)
        args = {"input_ids": torch.tensor([ids])}
        if "type_vocab_size" in settings:
            args["token_type_ids"] = torch.tensor([types])
        with torch.no_grad():
            res = model(**args)
        item = {"ids": ids, "types": types} | ({"text": text} if pooling else {"query": text[0], "document": text[1]})
        if pooling:
            x = res.last_hidden_state[0]
            x = x.mean(0) if pooling == "mean" else x[0]
            item["vector"] = numbers(x / x.norm())
        else:
            item["score"] = float("%.7g" % res.logits[0, 0])
        goldens["items"].append(item)
    json.dump(goldens, open(f"{folder}/goldens.json", "w"))
    if pooling:
        json.dump([{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"}, {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
                   {"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"}], open(f"{folder}/modules.json", "w"))
        os.makedirs(f"{folder}/1_Pooling")
        json.dump({"word_embedding_dimension": 64, "pooling_mode_cls_token": pooling == "cls", "pooling_mode_mean_tokens": pooling == "mean"}, open(f"{folder}/1_Pooling/config.json", "w"))
    print(name, sum(os.path.getsize(f"{folder}/{f}") for f in os.listdir(folder) if os.path.isfile(f"{folder}/{f}")), flush=True)


for name in sys.argv[2].split(",") if len(sys.argv) > 2 else MODELS:
    write(sys.argv[1], name)
