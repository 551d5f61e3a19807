#!/usr/bin/env bash
# Policies that keep everything and read little: Shoal beside the reference, on the same prompts.
#   accuracy.sh SHOAL MODEL_DIR LENGTH SAMPLES OUT WHAT
# WHAT is a table: shares (equal bytes read), outliers (ShadowKV's outlier chunks), sparsity (of Squeezed Attention), baselines (what
# papers compare with, at equal shares kept, and the forms of SnapStream's votes). Shoal answers what
# it needs, then it is printed and plotted. Or shoal or reference: answers for TABLES (all), on processors (WORKERS) and on
# DEVICE (cuda) in JOBS processes, which may run at the same time; and table: prints and plots what both have so far.
# prompts: writes them. Each continues where it stopped, sample by sample through all tasks. ALONE: policies that only the reference answers.
set -e
here=$(cd "$(dirname "$0")" && pwd) shoal=$1 model=$2 length=$3 n=$4 what=$6
mkdir -p "$5" && out=$(cd "$5" && pwd)
tasks=passkey,niah_single_noise,niah_single_text,niah_multikey,niah_multiquery,kv_json,kv_hex,vt,chat_niah,niah_multivalue,fwe,niah_second,kv_second,niah_all
tables=${TABLES:-shares outliers sparsity}
case $what in shares | outliers | sparsity | baselines) tables=$what ;; esac

# Rows of the cache that a token's answer reads, the index counted in rows. Of a cache of keys and values bounds of a page are a
# row, a landmark or a centroid half of one; of a latent cache, whose row is key and value, two and one.
shares() {
    local small="tail=48,obs=32"
    case $(grep -c deepseek_v3 "$model/config.json")-$length in
    0-4096) echo "1/4 streaming/1024 snapstream/1024 quest/768 shadowkv/768 shadowkv:keys=lowrank,budget=344 shadowkv_c4/512 $(both sparsity=0.8)
1/8 streaming/512 snapstream/512 quest/256 shadowkv_o8/256 $(both sparsity=0.94)
1/16 streaming/256 snapstream/256 quest:page=32,budget=128 shadowkv:chunk=16,budget=64,outliers=1,local=2 $(both clusters=0.02,sparsity=0.97,$small)
1/32 streaming/128 snapstream/128 quest:page=64,budget=128 shadowkv:chunk=32,budget=32,outliers=0,local=1 $(both clusters=0.01,sparsity=0.993,$small)" ;;
    0-*) echo "1/4 streaming/2048 snapstream/2048 quest/1536 shadowkv/1536 shadowkv:keys=lowrank,budget=1112 shadowkv_c4/1024 $(both sparsity=0.79)
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

# As many tokens chosen by landmarks, and always read that many chunks without one (ShadowKV, table 7).
outliers() {
    for o in 0 1 2 4 8 16 32 48; do echo "$o shadowkv:budget=256,outliers=$o"; done
    echo "Quest quest/256"
}

# Each sparsity, and Quest at as many bytes (Squeezed Attention, tables 2 and 3).
sparsity() {
    local quest
    case $(grep -c deepseek_v3 "$model/config.json")-$length in
    0-4096) quest=(1184 800 400) ;;
    0-*) quest=(2256 1456 656) ;;
    *-4096) quest=(1040 640 256) ;;
    *) quest=(1952 1152 352) ;;
    esac
    echo "70% squeezed:sparsity=0.7 quest/${quest[0]}
80% squeezed:sparsity=0.8 quest/${quest[1]}
90% $(both sparsity=0.9) quest/${quest[2]}"
}

# Policies that drop tokens, with as many slots as a share of the prompt, and texts cut to it.
baselines() {
    for share in 4 8 16; do
        b=$((length / share))
        echo "1/$share truncated/$b streaming/$b knorm/$b lagkv/$b h2o/$b sage/$b snapkv/$b pyramidkv/$b adakv/$b snapstream/$b snapstream:sink=4,recent=64,topk=$((b - 68)),votes=prefix snapstream:sink=4,recent=64,topk=$((b - 68)),votes=candidates"
    done
}

for t in $tables; do
    (echo "all full"; $t) >"$out/$t.$$" && mv "$out/$t.$$" "$out/$t"
done
policies=$(for t in $tables; do cut -d" " -f2- "$out/$t"; done | tr " " "\n" | awk '!seen[$0]++' | tr "\n" " " | sed "s, $,,")

# Both models' contexts end at 8192, before the answers do.
big=$out/model
if [ ! -e "$big/config.json" ]; then
    mkdir -p "$big" && cp "$model"/*.json "$model"/*.safetensors "$big"/
    sed -i 's/"max_position_embeddings": 8192/"max_position_embeddings": 8448/' "$big/config.json"
fi
prompts=$out/prompts.json.gz
[ -e "$prompts" ] || { "$shoal" lab ruler -m "$big" -n "$n" -l "$length" --tasks $tasks --write-prompts "$prompts.$$" && mv "$prompts.$$" "$prompts"; }

answer() { "$shoal" lab ruler -m "$big" --together --quant bf16 --kv-type f32 --prompts "$prompts" -l "$length" -n "$n" ${WORKERS:+--workers $WORKERS} -o "$out/shoal" --policy "$policies"; }
print() {
    for t in $tables; do
        python3 "$here/evalshares.py" "$length" "$out/$t" "$out/shoal/results.jsonl" "$out/$t.svg" $(ls "$out"/pol-*.json 2>/dev/null)
    done
}

case $what in
shoal) answer ;;
reference)
    jobs=${JOBS:-4}
    for i in $(seq 0 $((jobs - 1))); do
        (cd "$here" && POLICIES=$(echo ${policies#full } $ALONE | tr ' ' '+') SHARD=$i/$jobs python3 evalpol.py - "$big" "$prompts" "$out/pol-$i.json" "$length:$n:${BATCH:-8}:" ${DEVICE:-cuda}) >"$out/pol-$i.log" 2>&1 &
    done
    wait ;;
table) print ;;
shares | outliers | sparsity | baselines) answer && print ;;
prompts) ;;
*) echo "$what: want shares, outliers, sparsity, baselines, shoal, reference, table or prompts" && exit 1 ;;
esac
