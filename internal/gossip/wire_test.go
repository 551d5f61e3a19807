package gossip

import (
	"fmt"
	"testing"

	"github.com/shoal-llm/shoal/internal/wire/wiretest"
)

// TestWire records the encoding of a member's metadata.
func TestWire(t *testing.T) {
	b, err := Meta{Role: "node", State: Draining, Incarnation: 0x0102030405060708, RPC: "10.0.0.1:1",
		Route: "10.0.0.1:2", PID: 0x11121314, Load: 50, Build: "build",
		Store: "10.0.0.1:3", Arithmetic: "2-c015", WireMin: 0x2122, WireMax: 0x2324, Leads: true}.Encode()
	if err != nil {
		t.Fatal(err)
	}
	wiretest.Check(t, wiretest.Form{Name: "metadata", Text: fmt.Sprintf("%x", b)}, wiretest.Form{Name: "states", Text: fmt.Sprint(stateNames)})
}
