package arithmetic

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math"

	"github.com/shoal-llm/shoal/internal/engine/alone"
	"github.com/shoal-llm/shoal/internal/engine/pooling"
	"github.com/shoal-llm/shoal/internal/proto"
)

// vectors reads a text with a model that only makes vectors, once per method of pooling.
func vectors(ctx context.Context, out []result, name string, c alone.Config, a *alone.Socket) ([]result, error) {
	ids := uint32(c.Checkpoint.Config.IDs())
	req := &proto.StepRequest{DeadlineMillis: uint32(selfTestTimeout.Milliseconds())}
	methods := []pooling.Method{pooling.Last, pooling.Mean, pooling.CLS}
	for i, m := range methods {
		seq := uint64(i + 1)
		req.Open = append(req.Open, &proto.Open{Seq: seq, Policy: "full", PromptTokens: promptTokens, Pool: uint32(m)})
		chunk := &proto.Chunk{Seq: seq, Prefill: true}
		for t := range uint32(promptTokens) {
			chunk.Tokens = append(chunk.Tokens, (t*t+t/3)%ids)
		}
		req.Chunks = append(req.Chunks, chunk)
	}
	reply, _, _, err := a.Step(ctx, req)
	if err != nil {
		return nil, err
	}
	for _, s := range reply.Sampled {
		if len(s.Pooled) != c.Checkpoint.Config.Hidden {
			return nil, fmt.Errorf("a vector of %d elements, want %d", len(s.Pooled), c.Checkpoint.Config.Hidden)
		}
		var b []byte
		for _, v := range s.Pooled {
			b = binary.LittleEndian.AppendUint32(b, math.Float32bits(v))
		}
		sum := sha256.Sum256(b)
		out = append(out, result{fmt.Sprintf("%s %v %v pooled %v", name, c.Weights, c.KV, methods[s.Seq-1]), sum[:]})
	}
	return out, nil
}
