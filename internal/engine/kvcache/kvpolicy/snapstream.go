package kvpolicy

import (
	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/method"
)

// snapStream keeps, in this order of slots, the first sink tokens, a ring of the newest tokens, and
// the topk prompt tokens between them that the last obs queries attend to most (SnapStream, arXiv
// 2511.03092, section 3):
//
//	| sink | ring of recent | top-K |
//
// Prefill fills the ring by listing 3 and selects the top-K by listing 6. Decode writes one row in
// place by listing 5. Positions are the original ones.
//
//	case 1, L <  sink+recent: no token is evicted, the top-K section is empty
//	case 2, L >= sink+recent: valid_topk = min(L-sink-recent, topk) of it are kept
//
// The paper masks the unused rest of a static top-K section. Here the section is as long as
// valid_topk, so no slot is empty.
//
// The named settings have the cache sizes of the paper, and count votes as listing 6 does. The paper gives
// neither the parts of a size, nor obs and pool.
var snapStream = method.Method{Name: "snapstream", Params: []method.Param{method.Size("sink", 4, 0), method.Size("recent", 1020, 1),
	method.Size("topk", 1024, 0), method.Size("obs", 64, 1), method.Odd("pool", 7), counted},
	Parts: func(v []int) kvcache.Parts {
		of := windowVotes(v[3], v[4], v[5], v[0], v[1])
		return kvcache.Parts{Sink: v[0], Recent: v[1], TopK: v[2], Compressor: of, Needs: of.needs,
			Eviction: kvcache.Ring{Sink: v[0], Recent: v[1]}}
	},
	Named: []method.Named{
		{Name: "llama", Settings: "sink=4,recent=4092,topk=4096,votes=prefix"}, // 128K to 8K, section 5.1
		{Name: "r1", Settings: "sink=4,recent=12.5%,topk=12.5%,votes=prefix"}}} // a quarter of the prompt, section 5.2 and table 5
