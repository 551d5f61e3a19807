# pipe.sh ARCH [GPUS]: the whole way for one model; ARCH llama (models/fry) or deepseek (models/dace)
A=$1; N=${2:-1}
export PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1
mkdir -p w/$A
[ -e w/data/bytes_a_token.json ] || python3 prep.py . w/data ../models/fry/tokenizer.json
[ -e w/ev.pkl ] || python3 evalgen.py w/data w/ev.pkl 1024:64,2048:100,4096:100,8192:48
python3 -m torch.distributed.run --nproc-per-node $N train.py --arch $A --data w/data --out w/$A --evalset w/ev.pkl --seconds ${S:-860} --phases ${PHASES:-512:0.07:1,2048:0.50:1,4096:0.80:1,8192:1:1} --eval-every 110 --evaln 24 --backend $([ $A = llama ] && echo cudnn || echo cudnn_nopad) --workers 14 --decay-from ${DECAY:-0.5}
python3 valbits.py w/data w/$A/hf
POLICIES=${POLICIES:-stream+h2o+sage+snapkv+snapstream_r64+snapstream_w32_r64} python3 evalpol.py w/data w/$A/hf w/ev.pkl w/$A/pol.json ${POL:-4096:100:20:512+1024}
python3 finish.py w/$A/hf w/ev.pkl w/$A/hf/goldens.json
