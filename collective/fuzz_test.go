package collective

import (
	"bytes"
	"math/rand/v2"
	"testing"
)

func FuzzParseMessage(f *testing.F) {
	f.Add(from(nil, []byte{1, 2, 3, 4}))
	f.Add(from(func(h *Header) { h.Chunk, h.Chunks, h.Incarnation = 3, 4, 5 }, nil))
	plain := make([]byte, MessageBytes(8))
	PutMessage(plain, Header{Kind: KindAllGather, Length: 8})
	f.Add(plain)
	f.Add(plain[:31])
	f.Fuzz(func(t *testing.T, msg []byte) {
		h, payload, bad := ParseMessage(msg)
		if bad != DropNone {
			return
		}
		again := make([]byte, MessageBytes(len(payload)))
		copy(again[HeaderBytes:], payload)
		PutMessage(again, h)
		if !bytes.Equal(again, msg) {
			t.Fatalf("%x is read as %+v, which is written as %x", msg, h, again)
		}
	})
}

// FuzzReceive sends arbitrary messages of a peer of the group (right epoch, size, source): no
// panic, no write outside the slices, bounded memory, every done once.
func FuzzReceive(f *testing.F) {
	f.Add([]byte{byte(KindAllGather), dtypeF32, 0, 1, 0, 1, 4, 9, 9, 9, 9})
	f.Add([]byte{byte(KindReduceScatter), dtypeF32, 1, 1, 0, 1, 4, 9, 9, 9, 9, byte(KindReduceGather), 1, 1, 1, 0, 1, 0})
	f.Add([]byte{byte(KindBarrier), 0, 2, 200, 0, 1, 0})
	f.Fuzz(func(t *testing.T, data []byte) {
		net := newNetwork(t, 2, rand.New(rand.NewPCG(1, 2)), Config{ChunkBytes: 16, OneShotBytes: 1, WindowOps: 4, WindowBytes: 2000})
		g := net.groups[0]
		buf := make([]float32, 64)
		for i := range buf {
			buf[i] = 5
		}
		calls := 0
		done := func(error) { calls++ }
		g.AllGather(Op(0, 1), buf[:3], [][]float32{nil, buf[8:17]}, done)
		_, nodes, values, _ := randomTree(rand.New(rand.NewPCG(3, 4)), 2, 40)
		units := nodes[1][len(nodes[1])-1].Hi
		out := make([]float32, 40)
		g.AllReduceTree(Op(1, 1), units, nodes, values[0], out, done)
		g.Barrier(Op(2, 1), done)
		for len(data) >= 7 {
			h := data[:7]
			data = data[7:]
			n := min(int(h[6]), len(data))
			payload := data[:n]
			data = data[n:]
			g.receive(1, from(func(x *Header) {
				x.Kind, x.DType, x.Op = Kind(h[0]), h[1], Op(h[2], uint64(h[3]))
				x.Chunk, x.Chunks = uint16(h[4]), uint16(h[5])
			}, payload))
			for net.step() {
			}
		}
		for i, v := range buf {
			if (i < 8 || i >= 17) && v != 5 {
				t.Fatalf("value %d outside the receive slice was written", i)
			}
		}
		if s := g.Stats(); s.StashedBytesPeak > 2000 {
			t.Fatalf("%+v", s)
		}
		net.expire()
		if calls != 3 {
			t.Fatalf("%d operations ended, want 3", calls)
		}
	})
}
