# again.sh OLD [GPUS]: trains the Llama of folder OLD further, so that compressed caches hold what its answers need
O=$1; N=${2:-4}
set -e
export PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1
[ -e w/data/bytes_a_token.json ] || python3 prep.py . w/data $O/tokenizer.json
[ -e w/ev.pkl ] || python3 evalgen.py w/data w/ev.pkl 1024:64,2048:100,4096:100,8192:48
python3 -m torch.distributed.run --nproc-per-node $N train.py --data w/data --out w/again --init $O --evalset w/ev.pkl --seconds ${S:-1210} --phases ${PHASES:-2048:0.50:1,4096:0.78:1,8192:1:1} --eval-every 270 --evaln 24 --backend cudnn --workers 14 --decay-from ${DECAY:-0.42} --lr ${LR:-2.5e-3} --warm 300 --ends ${ENDS:-0.1875} --short 0.1 --go ${GO:-1.5}
python3 valbits.py w/data $O w/again/hf
python3 finish.py w/again/hf w/ev.pkl w/again/hf/goldens.json
export POLICIES=${POLICIES:-stream+h2o+sage+snapkv+snapstream_r64+snapstream_w32_r64+snapstream_p15_r64+h2o_step+tova}
for k in $(seq 0 $((N - 1))); do
  CUDA_VISIBLE_DEVICES=$k SHARD=$k/$N python3 evalpol.py w/data w/again/hf w/ev-4096.json.gz w/pol$k.json ${POL:-4096:100:20:512+1024} &
done
for j in $(jobs -p); do wait $j; done
