package coordinator

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/shoal-llm/shoal/actors/batcher/saved"
	"github.com/shoal-llm/shoal/internal/node"
	"github.com/shoal-llm/shoal/internal/proto"
	"github.com/shoal-llm/shoal/topology"
)

// savedSocket is a socket that answers orders for caches of idle sessions.
type savedSocket struct {
	node.Handle
	got   *proto.SavedRequest
	reply *proto.SavedReply
}

func (s *savedSocket) Saved(_ context.Context, r *proto.SavedRequest) (*proto.SavedReply, error) {
	s.got = r
	return s.reply, nil
}

// TestSaved: the digest of a cache is added before the socket gets the order. Of the caches that sockets find, only those
// of the beginning of the text are passed on. An answer without room has the size of the file.
func TestSaved(t *testing.T) {
	text := saved.Text{Policy: "full", Prompt: []int32{1, 2, 3}, Output: []int32{4, 5}}
	cache := text.Cache(3, 4)
	reply := &proto.SavedReply{Prompt: 3, Tokens: 4, Digest: cache.Digest[:]}
	right, wrong := &savedSocket{reply: reply}, &savedSocket{reply: &proto.SavedReply{Prompt: 3, Tokens: 4, Digest: make([]byte, 32)}}
	g := &Group{Handles: []node.Handle{wrong, right}, Nodes: make([]topology.Node, 2)}
	d := g.Saved(t.Context(), saved.Order{Do: saved.Find, Number: 1, Ranks: []int{0, 1}, Text: text, Millis: 10_000})
	if d.Err != "" || len(d.Found) != 1 || d.Found[0] != (saved.Found{Rank: 1, Cache: cache}) {
		t.Errorf("found %+v", d)
	}
	write := saved.Order{Do: saved.Write, Number: 2, Ranks: []int{1}, Seq: 7, Cache: saved.Cache{Prompt: 3, Tokens: 4}, Text: text}
	if d := g.Saved(t.Context(), write); d.Err != "" || d.Lacks != 0 || [32]byte(right.got.Digest) != cache.Digest {
		t.Errorf("a write: %+v, the socket got digest %x", d, right.got.Digest)
	}
	right.reply = &proto.SavedReply{Bytes: 1234}
	if d := g.Saved(t.Context(), write); d.Lacks != 1234 || !strings.Contains(d.Err, "no room for a file of 1234 bytes") {
		t.Errorf("a write without room: %+v", d)
	}
	if d := g.Saved(t.Context(), saved.Order{Do: saved.Drop, Number: 3, Ranks: []int{0, 1}}); d.Err != "" || !wrong.got.Drop || d.Number != 3 {
		t.Errorf("a removal: %+v", d)
	}
	if d := g.Saved(t.Context(), saved.Order{Do: saved.Drop, Number: 4, Ranks: []int{0, 9, 1}}); !strings.Contains(d.Err, "no rank 9") {
		t.Errorf("a removal from a socket that is not there: %+v", d)
	}
}

// TestSavedKeepsNoTimer: a lookup leaves nothing behind in the context of its caller, which lives as long as the process.
func TestSavedKeepsNoTimer(t *testing.T) {
	g := &Group{Handles: []node.Handle{&savedSocket{reply: &proto.SavedReply{}}}, Nodes: make([]topology.Node, 1)}
	ctx := &countingContext{Context: t.Context()}
	g.Saved(ctx, saved.Order{Do: saved.Find, Number: 1, Ranks: []int{0}, Millis: 10_000})
	if n := ctx.open.Load(); n != 0 {
		t.Errorf("%d contexts are still derived from the caller's", n)
	}
}

// countingContext counts the contexts that are derived from it and not cancelled yet.
type countingContext struct {
	context.Context
	open atomic.Int64
}

// AfterFunc is how package context follows a foreign context.
func (c *countingContext) AfterFunc(f func()) (stop func() bool) {
	c.open.Add(1)
	return func() bool { c.open.Add(-1); return true }
}

// Done differs from that of the embedded context, so that package context does not follow that one directly.
func (c *countingContext) Done() <-chan struct{} { return make(chan struct{}) }
