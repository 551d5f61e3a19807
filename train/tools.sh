# tools.sh OLD [GPUS]: trains a LoRA adapter of the Llama in folder OLD, so that it calls functions -> w/tools/adapter: models/fry-tools
O=$1; N=${2:-1}
set -e
export PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1
[ -e w/data/bytes_a_token.json ] || python3 prep.py . w/data $O/tokenizer.json
[ -e w/data/code_train.npy ] || for f in .npy _starts.npy; do ln -s codego_train$f w/data/code_train$f; done   # of the Go authors' text alone
[ -e w/ev.pkl ] || python3 evalgen.py w/data w/ev.pkl ${EV:-1024:50,2048:50,4096:50,8192:25}
T="python3 -m torch.distributed.run --nproc-per-node $N train.py --data w/data --init $O --evalset w/ev.pkl --lora ${RANK:-32} --backend cudnn --eval-every 9999 $ARGS"
$T --out w/before --seconds 0 --no-compile --workers 1 --phases 2048:1:1   # OLD's own figures
$T --out w/tools --seconds ${S:-270} --phases ${PHASES:-2048:0.55:1,4096:0.8:1,8192:1:1} --tools 0.3 --workers ${W:-14} --decay-from 0.3 --lr ${LR:-1e-3} --warm 100 --ends 0.125 --short 0.1
python3 tools.py template > w/tools/adapter/chat_template.jinja
python3 valbits.py w/data $O w/tools/hf
python3 tools.py eval $O 20
python3 tools.py eval w/tools/hf ${EVALN:-200}
python3 - <<'PY'
import json, tools
p = "w/tools/hf/tokenizer_config.json"
c = json.load(open(p))
c["chat_template"] = tools.TEMPLATE
json.dump(c, open(p, "w"), indent=1)
PY
python3 finish.py w/tools/hf w/ev.pkl w/tools/hf/goldens.json
