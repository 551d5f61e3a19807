package collective

import (
	"fmt"
	"strings"
	"testing"

	"github.com/shoal-llm/shoal/internal/wire/wiretest"
)

// TestWire records the header of every kind of message.
func TestWire(t *testing.T) {
	var kinds strings.Builder
	for k := range Kind(16) {
		fmt.Fprintf(&kinds, "%d %v\n", k, k)
	}
	h := Header{Kind: KindReduceScatter, DType: dtypeF32, Source: 0x0102, Size: 0x0304, Epoch: 0x05060708, Op: Op(0x11, 0x1213141516),
		Chunk: 0x2122, Chunks: 0x2324, Length: 5, Incarnation: 0x31323334}
	msg := make([]byte, MessageBytes(5))
	copy(msg[HeaderBytes:], "bytes")
	PutMessage(msg, h)
	wiretest.Check(t, wiretest.Form{Name: "kinds", Text: kinds.String()},
		wiretest.Form{Name: "message with a checksum", Text: fmt.Sprintf("%x", msg)},
		wiretest.Form{Name: "limits", Text: fmt.Sprintf("payload %d, ranks %d, types %d %d", MaxPayload, MaxRanks, dtypeBytes, dtypeF32)})
}
