package collective

import (
	"errors"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

// pairOf is rank 0 of two, without goroutines. The test writes the messages of rank 1 itself.
func pairOf(t *testing.T, cfg Config) *network {
	t.Helper()
	return newNetwork(t, 2, rand.New(rand.NewPCG(1, 1)), cfg)
}

// from builds a message of rank 1 for rank 0 and lets edit corrupt it.
func from(edit func(*Header), payload []byte) []byte {
	h := Header{Kind: KindAllGather, DType: dtypeF32, Source: 1, Size: 2, Epoch: 7, Op: Op(0, 1), Chunks: 1, Length: uint32(len(payload))}
	if edit != nil {
		edit(&h)
	}
	msg := make([]byte, MessageBytes(len(payload)))
	copy(msg[HeaderBytes:], payload)
	PutMessage(msg, h)
	return msg
}

func TestDropsAreCounted(t *testing.T) {
	for _, c := range []struct {
		why  Drop
		edit func(*Header)
		raw  func([]byte) []byte
		src  int
	}{
		{why: DropEpoch, edit: func(h *Header) { h.Epoch++ }},
		{why: DropSize, edit: func(h *Header) { h.Size++ }},
		{why: DropIncarnation, edit: func(h *Header) { h.Incarnation++ }},
		{why: DropSource, edit: func(h *Header) { h.Source = 0 }},
		{why: DropSource, edit: func(h *Header) { h.Source = 0 }, src: 0},
		{why: DropSource, edit: func(h *Header) { h.Source = 9 }, src: 9},
		{why: DropMalformed, raw: func(b []byte) []byte { return b[:20] }},
		{why: DropMalformed, raw: func(b []byte) []byte { return b[:len(b)-1] }},
		{why: DropVersion, raw: func(b []byte) []byte { b[0]++; return b }},
		{why: DropVersion, raw: func(b []byte) []byte { b[1]++; return b }},
		{why: DropChecksum, raw: func(b []byte) []byte { b[HeaderBytes] ^= 1; return b }},
		{why: DropChecksum, raw: func(b []byte) []byte { b[13] ^= 1; return b }},
	} {
		net := pairOf(t, Config{})
		g := net.groups[0]
		var calls int
		g.AllGather(Op(0, 1), []float32{1}, [][]float32{nil, make([]float32, 1)}, func(error) { calls++ })
		msg := from(c.edit, []byte{1, 2, 3, 4})
		if c.raw != nil {
			msg = c.raw(msg)
		}
		src := 1
		if c.src != 0 || c.edit != nil && c.why == DropSource && c.src == 0 {
			src = c.src
			if src == 0 {
				src = 1
			}
		}
		g.receive(src, msg)
		if got := g.Stats().Dropped[c.why]; got != 1 || calls != 0 || g.Err() != nil {
			t.Errorf("%v: dropped %d, done %d times, error %v", c.why, got, calls, g.Err())
		}
	}
}

func TestStaleAndDuplicate(t *testing.T) {
	net := pairOf(t, Config{ChunkBytes: 4})
	g := net.groups[0]
	recv := [][]float32{nil, make([]float32, 2)}
	var err error
	calls := 0
	g.AllGather(Op(0, 1), nil, recv, func(e error) { calls++; err = e })
	half := func(i uint16) []byte {
		return from(func(h *Header) { h.Chunks, h.Chunk = 2, i }, []byte{0, 0, 128, 63})
	}
	g.receive(1, half(1))
	g.receive(1, half(1))
	g.receive(1, half(0))
	g.receive(1, half(0))
	s := g.Stats()
	if calls != 1 || err != nil || recv[1][0] != 1 || recv[1][1] != 1 || s.Dropped[DropDuplicate] != 1 || s.Dropped[DropStale] != 1 {
		t.Fatalf("calls %d, error %v, got %v, %+v", calls, err, recv[1], s)
	}
}

func TestMisfitsFailTheGroup(t *testing.T) {
	for name, edit := range map[string]func(*Header){
		"kind":   func(h *Header) { h.Kind = KindBarrier },
		"dtype":  func(h *Header) { h.DType = dtypeBytes },
		"chunks": func(h *Header) { h.Chunks = 2 },
		"chunk":  func(h *Header) { h.Chunk = 1 },
		"length": nil,
	} {
		net := pairOf(t, Config{})
		g := net.groups[0]
		var errs []error
		g.AllGather(Op(0, 1), nil, [][]float32{nil, make([]float32, 1)}, func(e error) { errs = append(errs, e) })
		g.Barrier(Op(1, 1), func(e error) { errs = append(errs, e) })
		payload := []byte{1, 2, 3, 4}
		if name == "length" {
			payload = make([]byte, 8)
		}
		g.receive(1, from(edit, payload))
		if len(errs) != 2 || !errors.Is(errs[0], ErrProtocol) || errs[1] != errs[0] || net.failed[0] != 1 {
			t.Errorf("%s: %v, OnFail %d", name, errs, net.failed[0])
			continue
		}
		if r := blamed(errs[0]); len(r) != 1 || r[0] != 1 || !strings.Contains(errs[0].Error(), "op 0.1") {
			t.Errorf("%s: error names neither rank nor op: %v", name, errs[0])
		}
	}
}

func TestSilentRankMustStaySilent(t *testing.T) {
	net := pairOf(t, Config{})
	g := net.groups[0]
	var err error
	g.AllToAll(Op(0, 1), [][]byte{nil, {1}}, [][]byte{nil, nil}, func(e error) { err = e })
	g.receive(1, from(func(h *Header) { h.Kind, h.DType = KindAllToAll, dtypeBytes }, []byte{1}))
	if !errors.Is(err, ErrProtocol) {
		t.Fatalf("error %v", err)
	}
}

func TestWindow(t *testing.T) {
	ahead := func(batch uint8, seq uint64, n int) []byte {
		return from(func(h *Header) { h.Op = Op(batch, seq) }, make([]byte, n))
	}
	net := pairOf(t, Config{WindowOps: 3})
	g := net.groups[0]
	for i := range 3 {
		g.receive(1, ahead(uint8(i), uint64(10+i), 4))
	}
	if s := g.Stats(); s.StashedOps != 3 || g.Err() != nil {
		t.Fatalf("%+v, %v", s, g.Err())
	}
	g.receive(1, ahead(0, 99, 4))
	if err := g.Err(); !errors.Is(err, ErrWindow) || blamed(err)[0] != 1 {
		t.Fatalf("a fourth operation: %v", err)
	}

	net = pairOf(t, Config{WindowBytes: 1000})
	g = net.groups[0]
	g.receive(1, ahead(0, 1, 800))
	g.receive(1, ahead(0, 1, 800))
	if err := g.Err(); !errors.Is(err, ErrWindow) {
		t.Fatalf("more bytes than the window: %v", err)
	}
	if s := g.Stats(); s.StashedBytes != 0 || s.StashedOps != 0 {
		t.Fatalf("a failed group holds %+v", s)
	}
}

// A rank that owns nothing sends nothing, so its peers may be ahead of it by a step of a model with many layers.
func TestSlowRankThatOwnsNothing(t *testing.T) {
	const layers, perLayer, patience = 126, 4, time.Minute
	groups := make([]*Group, 2)
	for r, end := range NewMemory(2) {
		var err error
		if groups[r], err = NewGroup(Config{Rank: r, Size: 2, Deadline: patience}, end); err != nil {
			t.Fatal(err)
		}
		defer groups[r].Close()
	}
	for r, g := range groups { // the second rank starts when it has all messages of the first
		for end := time.Now().Add(patience); r == 1 && g.Stats().MessagesReceived < layers*perLayer; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%+v", g.Stats())
			}
		}
		done := make(chan error, layers*perLayer)
		recv := make([][][]float32, layers*perLayer)
		for i := range recv {
			mine := []float32{float32(i)}
			if recv[i] = [][]float32{nil, {}}; r == 1 {
				mine, recv[i] = nil, [][]float32{make([]float32, 1), nil}
			}
			g.AllGather(Op(0, uint64(i)), mine, recv[i], func(err error) { done <- err })
		}
		for range recv {
			select {
			case err := <-done:
				if err != nil {
					t.Fatalf("rank %d: %v", r, err)
				}
			case <-time.After(patience):
				t.Fatalf("rank %d: no answer", r)
			}
		}
		for i := range recv {
			if r == 1 && recv[i][0][0] != float32(i) {
				t.Fatalf("operation %d brought %v", i, recv[i][0])
			}
		}
	}
}

func TestSkippedOperation(t *testing.T) {
	net := pairOf(t, Config{})
	g := net.groups[0]
	g.receive(1, from(nil, []byte{1, 2, 3, 4}))
	var err error
	g.Barrier(Op(0, 2), func(e error) { err = e })
	if !errors.Is(err, ErrProtocol) || blamed(err)[0] != 1 {
		t.Fatalf("peer ran op 1, this rank went to op 2: %v", err)
	}
}

func TestBadArguments(t *testing.T) {
	two := [][]byte{nil, nil}
	for name, call := range map[string]func(g *Group, done func(error)){
		"all-gather slices":  func(g *Group, d func(error)) { g.AllGather(1, nil, nil, d) },
		"all-gather own":     func(g *Group, d func(error)) { g.AllGather(1, nil, [][]float32{{1}, nil}, d) },
		"all-to-all slices":  func(g *Group, d func(error)) { g.AllToAll(1, two, nil, d) },
		"all-to-all own":     func(g *Group, d func(error)) { g.AllToAll(1, two, [][]byte{{1}, nil}, d) },
		"all-reduce nodes":   func(g *Group, d func(error)) { g.AllReduceTree(1, 4, nil, nil, nil, d) },
		"reduce-scatter cut": func(g *Group, d func(error)) { g.ReduceScatterTree(1, 4, nil, nil, []int{0, 2, 1}, nil, d) },
	} {
		net := pairOf(t, Config{})
		g := net.groups[0]
		calls := 0
		var err error
		call(g, func(e error) { calls++; err = e })
		if calls != 1 || !errors.Is(err, ErrArgument) || g.Err() != err || net.failed[0] != 1 {
			t.Errorf("%s: done %d times with %v", name, calls, err)
		}
	}
	net := pairOf(t, Config{})
	g := net.groups[0]
	var err error
	g.Barrier(5, nil)
	g.Barrier(5, func(e error) { err = e })
	if !errors.Is(err, ErrArgument) {
		t.Errorf("number used twice: %v", err)
	}
}

func TestConfigValidate(t *testing.T) {
	for _, c := range []Config{{}, {Size: 2, Rank: 2}, {Size: MaxRanks + 1}, {Size: 1, ChunkBytes: 3}, {Size: 1, ChunkBytes: 6},
		{Size: 1, ChunkBytes: MaxPayload + 1}, {Size: 2, Incarnations: []uint32{1}}, {Size: 1, Deadline: 1}, {Size: 1, WindowOps: -1}} {
		if _, err := NewGroup(c, NewMemory(1)[0]); !errors.Is(err, ErrArgument) {
			t.Errorf("%+v accepted: %v", c, err)
		}
	}
}

func TestDeadlineNamesTheSilent(t *testing.T) {
	gs := memoryGroups(t, 4, Config{Deadline: 2 * time.Second})
	errs := make(chan error, 4)
	for r, g := range gs {
		if r != 2 {
			g.Barrier(Op(0, 1), func(e error) { errs <- e })
		}
	}
	for range 3 {
		err := <-errs
		if r := blamed(err); !errors.Is(err, ErrPeerTimeout) || len(r) != 1 || r[0] != 2 {
			t.Errorf("%v", err)
		}
	}
}

func TestCloseEndsEverything(t *testing.T) {
	gs := memoryGroups(t, 2, Config{OnFail: func(error) { t.Error("OnFail on Close") }})
	errs := make(chan error, 3)
	gs[0].Barrier(Op(0, 1), func(e error) { errs <- e; gs[0].Close() })
	gs[0].Barrier(Op(1, 1), func(e error) { errs <- e })
	gs[0].Close()
	gs[0].Close()
	gs[0].Barrier(Op(2, 1), func(e error) { errs <- e })
	for range 3 {
		if err := <-errs; !errors.Is(err, ErrClosed) {
			t.Error(err)
		}
	}
}

func TestPeerGone(t *testing.T) {
	reported := make(chan error, 2)
	gs := memoryGroups(t, 3, Config{OnFail: func(e error) { reported <- e }})
	errs := make(chan error, 1)
	gs[0].Barrier(Op(0, 1), func(e error) { errs <- e })
	gs[0].Fail(&OpError{Ranks: []int{2}, Err: ErrPeerLost})
	gs[0].Fail(&OpError{Ranks: []int{1}, Err: ErrPeerLost})
	if err := <-errs; !errors.Is(err, ErrPeerLost) || blamed(err)[0] != 2 || <-reported != err {
		t.Fatal(err)
	}
}

// brokenTransport fails every send.
type brokenTransport struct{ Transport }

func (brokenTransport) Broadcast([]byte) error { return errors.New("cable cut") }

func TestSendErrorFailsTheGroup(t *testing.T) {
	g, err := NewGroup(Config{Size: 2}, brokenTransport{NewMemory(2)[0]})
	if err != nil {
		t.Fatal(err)
	}
	errs := make(chan error, 1)
	g.Barrier(1, func(e error) { errs <- e })
	if err := <-errs; !errors.Is(err, ErrTransport) || !strings.Contains(err.Error(), "cable cut") {
		t.Fatal(err)
	}
	g.Close()
	<-g.Done()
}

// blamed returns the ranks that err names, or nil.
func blamed(err error) []int {
	if e, ok := errors.AsType[*OpError](err); ok {
		return e.Ranks
	}
	return nil
}
