# tools.sh OLD [GPUS]: trains the Llama of folder OLD further, so that it calls functions, and gives it the template that shows them
O=$1; N=${2:-4}
set -e
export PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1
[ -e w/data/bytes_a_token.json ] || python3 prep.py . w/data $O/tokenizer.json
[ -e w/ev.pkl ] || python3 evalgen.py w/data w/ev.pkl 1024:64,2048:100,4096:100,8192:48
python3 -m torch.distributed.run --nproc-per-node $N train.py --data w/data --out w/tools --init $O --evalset w/ev.pkl --seconds ${S:-900} --phases ${PHASES:-2048:0.60:1,4096:0.85:1,8192:1:1} --tools ${TOOLS:-0.25} --eval-every 300 --evaln 24 --backend cudnn --workers 14 --decay-from ${DECAY:-0.4} --lr ${LR:-1.5e-3} --warm 300 --ends ${ENDS:-0.125} --short 0.1 --go ${GO:-1.5}
python3 - <<'PY'
import json, tools
p = "w/tools/hf/tokenizer_config.json"
c = json.load(open(p))
c["chat_template"] = tools.TEMPLATE
json.dump(c, open(p, "w"), indent=1)
PY
python3 valbits.py w/data $O w/tools/hf
python3 finish.py w/tools/hf w/ev.pkl w/tools/hf/goldens.json
python3 tools.py eval w/tools/hf 100
