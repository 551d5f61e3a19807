#!/usr/bin/env bash
# Policies at equal bytes read: Shoal beside the reference, on the same prompts.
#   accuracy.sh SHOAL MODEL_DIR LENGTH SAMPLES OUT shoal|reference|table
# shoal answers on processors (WORKERS), reference on DEVICE (cuda) in JOBS processes, table prints and plots what both have so
# far. The first two may run at the same time; each goes on where it stopped. ALONE: policies that only the reference answers.
set -e
here=$(cd "$(dirname "$0")" && pwd) shoal=$1 model=$2 length=$3 n=$4 out=$5
tasks=passkey,niah_single_noise,niah_single_text,niah_multikey,niah_multiquery,kv_json,kv_hex,vt,chat_niah,niah_multivalue,fwe,niah_second,kv_second,niah_all
mkdir -p "$out"

# Rows of the cache that a token's answer reads, the index counted in rows. Of a cache of keys and values bounds of a page are a
# row, a landmark or a centroid half of one; of a latent cache, whose row is key and value, two and one.
rows() {
    local small="tail=48,obs=32"
    case $(grep -c deepseek_v3 "$model/config.json")-$length in
    0-4096) echo "1/4 streaming/1024 snapstream/1024 quest/768 shadowkv/768 shadowkv_c4/512 $(both sparsity=0.8)
1/8 streaming/512 snapstream/512 quest/256 shadowkv_o8/256 $(both sparsity=0.94)
1/16 streaming/256 snapstream/256 quest:page=32,budget=128 shadowkv:chunk=16,budget=64,outliers=1,local=2 $(both clusters=0.02,sparsity=0.97,$small)
1/32 streaming/128 snapstream/128 quest:page=64,budget=128 shadowkv:chunk=32,budget=32,outliers=0,local=1 $(both clusters=0.01,sparsity=0.993,$small)" ;;
    0-*) echo "1/4 streaming/2048 snapstream/2048 quest/1536 shadowkv/1536 shadowkv_c4/1024 $(both sparsity=0.79)
1/8 streaming/1024 snapstream/1024 quest/512 shadowkv/512 $(both sparsity=0.92)
1/16 streaming/512 snapstream/512 quest:page=32,budget=256 shadowkv:chunk=16,budget=128,outliers=4,local=3 $(both clusters=0.03,sparsity=0.972)
1/32 streaming/256 snapstream/256 quest:page=64,budget=128 shadowkv:chunk=32,budget=64,outliers=0,local=1 $(both clusters=0.01,sparsity=0.994)" ;;
    *-4096) echo "1/4 streaming/1024 snapstream/1024 quest/512 shadowkv/512 shadowkv:chunk=16,budget=464,outliers=16,local=2 $(both sparsity=0.833)
1/8 streaming/512 snapstream/512 quest:page=32,budget=256 shadowkv:chunk=16,budget=112,outliers=6,local=2 $(both clusters=0.03,sparsity=0.943)
1/16 streaming/256 snapstream/256 quest:page=64,budget=128 shadowkv:chunk=32,budget=64,outliers=0,local=1 $(both clusters=0.01,sparsity=0.966,$small)
1/32 streaming/128 snapstream/128 $(both clusters=0.005,sparsity=0.993,$small)" ;;
    *) echo "1/4 streaming/2048 snapstream/2048 quest/1024 shadowkv/1024 shadowkv:chunk=16,budget=976,outliers=32,local=2 $(both sparsity=0.816)
1/8 streaming/1024 snapstream/1024 quest:page=32,budget=512 shadowkv:chunk=16,budget=272,outliers=12,local=2 $(both clusters=0.03,sparsity=0.923)
1/16 streaming/512 snapstream/512 quest:page=64,budget=256 shadowkv:chunk=32,budget=160,outliers=1,local=1 $(both clusters=0.02,sparsity=0.977)
1/32 streaming/256 snapstream/256 shadowkv:chunk=64,budget=64,outliers=0,local=1 $(both clusters=0.005,sparsity=0.994)" ;;
    esac
}
both() { echo "squeezed:$1 squeezed:levels=2,$1"; }
(echo "all full"; rows) >"$out/shares.$$" && mv "$out/shares.$$" "$out/shares"
policies=$(cut -d" " -f2- "$out/shares" | tr "\n" " " | sed "s, $,,")

# Both models' contexts end at 8192, before the answers do.
big=$out/model
if [ ! -e "$big/config.json" ]; then
    mkdir -p "$big" && cp "$model"/*.json "$model"/*.safetensors "$big"/
    sed -i 's/"max_position_embeddings": 8192/"max_position_embeddings": 8448/' "$big/config.json"
fi
prompts=$out/prompts.json.gz
[ -e "$prompts" ] || { "$shoal" eval ruler -m "$big" -n "$n" -l "$length" --tasks $tasks --write-prompts "$prompts.$$" && mv "$prompts.$$" "$prompts"; }

case $6 in
shoal)
    "$shoal" eval ruler -m "$big" --together --quant bf16 --kv-type f32 --prompts "$prompts" -l "$length" -n "$n" ${WORKERS:+--workers $WORKERS} -o "$out/shoal" --policy "$policies" ;;
reference)
    jobs=${JOBS:-4}
    for i in $(seq 0 $((jobs - 1))); do
        (cd "$here" && POLICIES=$(echo ${policies#full } $ALONE | tr ' ' '+') SHARD=$i/$jobs python3 evalpol.py - "$big" "$prompts" "$out/pol-$i.json" "$length:$n:$n:" ${DEVICE:-cuda}) >"$out/pol-$i.log" 2>&1 &
    done
    wait ;;
table)
    python3 "$here/evalshares.py" "$length" "$out/shares" "$out/shoal/results.jsonl" "$out/shares.svg" "$out"/pol-*.json ;;
esac
