# again.sh OLD [GPUS]: trains the Llama of folder OLD further, so that compressed caches hold what its answers need; then half way back
O=$1; N=${2:-2}
export PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1
[ -e w/data/bytes_a_token.json ] || python3 prep.py . w/data $O/tokenizer.json
[ -e w/ev.pkl ] || python3 evalgen.py w/data w/ev.pkl 1024:64,2048:100,4096:100,8192:48
POLICIES=snapstream_r64 python3 -m torch.distributed.run --nproc-per-node $N train.py --data w/data --out w/again --init $O --evalset w/ev.pkl --seconds ${S:-215} --phases ${PHASES:-2048:0.30:1,4096:0.65:1,8192:1:1} --eval-every 190 --evaln 24 --backend cudnn --workers 14 --decay-from 0.03 --lr ${LR:-1.5e-3} --warm 150 --ends ${ENDS:-0.1875} --short 0.1 --go ${GO:-6}
python3 between.py $O w/again/hf ${SHARE:-0.5} w/between
python3 valbits.py w/data $O w/again/hf w/between
POLICIES=${POLICIES:-stream+h2o+sage+snapkv+snapstream_r64+snapstream_w32_r64+h2o_step+tova} python3 evalpol.py w/data w/between w/ev-4096.json.gz w/pol.json ${POL:-4096:100:20:512+1024}
python3 finish.py w/between w/ev.pkl w/between/goldens.json
