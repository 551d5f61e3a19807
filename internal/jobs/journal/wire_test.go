package journal

import (
	"fmt"
	"testing"

	"github.com/shoal-llm/shoal/internal/wire/wiretest"
)

// TestWire records the encoding of a journal record, which the next coordinator must be able to
// read.
func TestWire(t *testing.T) {
	r := Record{Kind: 3, Attempt: 0x01020304, At: 0x1112131415161718, Number: 0x21222324, Payload: []byte("payload"), prev: [32]byte{1, 2, 3}}
	wiretest.Check(t, wiretest.Form{Name: "record", Text: fmt.Sprintf("%x", r.Encode("journal"))})
}
