package kvcache

import (
	"crypto/sha256"
	"fmt"
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/internal/wire/wiretest"
)

// TestWire records the bytes in which caches move between sockets: the rows of a hand-over, whole
// layers, and the rows of a decoded token.
func TestWire(t *testing.T) {
	var layers, tokens, queries strings.Builder
	for _, kv := range []tensor.DType{tensor.F32, tensor.BF16, tensor.Int8} {
		g := small
		g.Layout.Type = kv
		for _, p := range policies {
			a := NewArena(1 << 30)
			s := ownedOf(t, a, g, p, 70)
			for layer := range g.Layers {
				b := s.ExportLayer(nil, layer, s.Tokens())
				fmt.Fprintf(&layers, "%v %s layer %d: %d bytes %x\n", kv, p.Spec(), layer, len(b), sum(b))
			}
			observe(s)
			if err := s.Reserve(s.Tokens() + 1); err != nil {
				t.Fatal(err)
			}
			write(s, s.Tokens(), s.Tokens()+1)
			if !p.Scored() {
				b := s.ExportToken(nil, s.Tokens())
				fmt.Fprintf(&tokens, "%v %s: %d bytes %x\n", kv, p.Spec(), len(b), sum(b))
			}
			s.Release()
			a.Close()
		}
	}
	q := make([]float32, 3*2*4)
	for i := range q {
		q[i] = float32(i) / 8
	}
	for _, p := range policies {
		st := &Statistics{Prompt: 3, Group: 2, Layout: tensor.KVLayout{Type: tensor.BF16, KDim: 4, VDim: 4}, Queries: q}
		if b := ExportQueries(nil, p, st); len(b) > 0 {
			fmt.Fprintf(&queries, "%s: %x\n", p.Spec(), b)
		}
	}
	wiretest.Check(t, wiretest.Form{Name: "layers", Text: layers.String()}, wiretest.Form{Name: "tokens", Text: tokens.String()}, wiretest.Form{Name: "queries", Text: queries.String()})
}

func sum(b []byte) []byte {
	s := sha256.Sum256(b)
	return s[:8]
}
