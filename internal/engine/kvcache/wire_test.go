package kvcache

import (
	"crypto/sha256"
	"fmt"
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/kvcache/memory"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/internal/wire/wiretest"
)

// TestWire records the blocks in which cache rows move between sockets: of a hand-over, of a whole
// layer, of a decoded token, of the prefix cache.
func TestWire(t *testing.T) {
	var layers, tokens, prompts, segments strings.Builder
	for _, kv := range []tensor.DType{tensor.F32, tensor.BF16, tensor.Int8} {
		g := small
		g.Layout.Type = kv
		for _, p := range policies {
			a := memory.NewArena(1 << 30)
			part := read(t, a, g, tensor.Span{Lo: 0, Hi: g.KVHeads}, 70, 64)
			for layer := range g.Layers {
				b := append1(PromptBlock(g, p, 70, layer, part.Heads()), Selection{part, p, func(head int) (Kept, *Statistics) {
					seen := statistics(part, layer, head)
					return g.Rule(layer, p).Keep(seen), seen
				}})
				fmt.Fprintf(&prompts, "%v %s layer %d: %d bytes %x\n", kv, p.Spec(), layer, len(b), sum(b))
			}
			segment, err := part.Share(0)
			if err != nil {
				t.Fatal(err)
			}
			if b := segment.Append(nil); p.Name() == "full" {
				fmt.Fprintf(&segments, "%v: %d bytes %x\n", kv, len(b), sum(b))
			}
			segment.Release()
			part.Release()
			s := ownedOf(t, a, g, p, 70)
			for layer := range g.Layers {
				b := append1(s.LayerBlock(layer, s.Tokens()), s)
				fmt.Fprintf(&layers, "%v %s layer %d: %d bytes %x\n", kv, p.Spec(), layer, len(b), sum(b))
			}
			observe(s)
			if err := s.Reserve(s.Tokens() + 1); err != nil {
				t.Fatal(err)
			}
			write(s, s.Tokens(), s.Tokens()+1)
			if !p.Scored() {
				b := append1(s.StepBlock(s.Tokens(), 1), s)
				fmt.Fprintf(&tokens, "%v %s: %d bytes %x\n", kv, p.Spec(), len(b), sum(b))
			}
			s.Release()
			a.Close()
		}
	}
	wiretest.Check(t, wiretest.Form{Name: "layers", Text: layers.String()}, wiretest.Form{Name: "tokens", Text: tokens.String()},
		wiretest.Form{Name: "prompts", Text: prompts.String()}, wiretest.Form{Name: "segments", Text: segments.String()})
}

func sum(b []byte) []byte {
	s := sha256.Sum256(b)
	return s[:8]
}
