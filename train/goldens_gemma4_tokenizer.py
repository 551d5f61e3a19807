"""A small tokenizer of Gemma 4's kind (merges over characters, spaces as U+2581, byte fallback) and its
ids, from the tokenizers library. Usage: goldens_gemma4_tokenizer.py OUTDIR TEXTFILE"""
import json, random, sys
from tokenizers import Tokenizer, models, normalizers, decoders, trainers, pre_tokenizers as P, Regex, processors
out=sys.argv[1]
tok=Tokenizer(models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
tok.normalizer=normalizers.Replace(" ","▁")
tok.pre_tokenizer=P.Split(" ", "merged_with_previous")
tok.decoder=decoders.Sequence([decoders.Replace("▁"," "),decoders.ByteFallback(),decoders.Fuse()])
texts=open(sys.argv[2]).read()
sp=["<pad>","<eos>","<bos>","<unk>","<|tool_call>","<tool_call|>","<|\"|>","<|channel>","<channel|>","<|turn>","<turn|>"]
by=["<0x%02X>"%i for i in range(256)]
# train without newlines joined to other characters, as in the published vocabulary
tr=trainers.BpeTrainer(vocab_size=700, special_tokens=sp+by, show_progress=False)
t2=Tokenizer(models.BPE(byte_fallback=True)); t2.normalizer=tok.normalizer
t2.pre_tokenizer=P.Split(Regex(r"\n+"),"isolated")
t2.train_from_iterator([l+"\n\n" for l in texts.split("\n")], tr)
j=json.loads(t2.to_str())
doc=json.loads(tok.to_str())
doc["model"]["vocab"]=j["model"]["vocab"]; doc["model"]["merges"]=j["model"]["merges"]
doc["added_tokens"]=[a for a in j["added_tokens"] if a["content"] in sp]
tok=Tokenizer.from_str(json.dumps(doc))
tok.post_processor=processors.TemplateProcessing(single="<bos> $A",special_tokens=[("<bos>",2)])
tok.save(out+"/tokenizer.json")
json.dump({"tokenizer_class":"PreTrainedTokenizerFast","bos_token":"<bos>","eos_token":"<eos>","pad_token":"<pad>","unk_token":"<unk>","add_bos_token":True,"clean_up_tokenization_spaces":False},open(out+"/tokenizer_config.json","w"),indent=1)
from goldens import TEXTS
tg=[]
for s in TEXTS+["a\n\n\nb \n c\n","<|turn>user\nHi<turn|>\n","<|tool_call>call:f{a:<|\"|>x y<|\"|>}<tool_call|>", texts[:600]]:
    e=tok.encode(s); n=tok.encode(s,add_special_tokens=False).ids
    tg.append({"text":s,"ids":e.ids,"ids_no_special":n,"decoded":tok.decode(n,skip_special_tokens=False)})
json.dump(tg,open(out+"/tokenizer_goldens.json","w"),ensure_ascii=False,indent=0)
