package natsbus

import (
	"fmt"
	"testing"

	"github.com/shoal-llm/shoal/internal/wire/wiretest"
)

// TestWire records the messages of ranks before the first tensor: subjects, hellos, addresses, and the
// logins at one another's servers.
func TestWire(t *testing.T) {
	n := newSubjects("shoal", "g1", 7, 2)
	d := digest("g1", 7, []uint32{11, 12, 13, 14})
	r := &Transport{cfg: TransportConfig{Group: "g1", Epoch: 7, Rank: 2, Size: 4, Incarnations: []uint32{11, 12, 13, 14}},
		barrier: newBarrier(2, 4, d)}
	u := newUsers("shoal", func() []string { return []string{"secret"} }, func() string { return "127.0.0.1:1" })
	wiretest.Check(t,
		wiretest.Form{Name: "subjects", Text: fmt.Sprintln(n.broadcast(2), n.direct(1, 2), n.call(1, 2),
			n.allBroadcasts(), n.allMine(), n.allCalls(), subBroadcast, subDirect)},
		wiretest.Form{Name: "hello", Text: fmt.Sprintf("%x", r.helloMessage(gotBroadcast|gotDirect|replyRequested, ""))},
		wiretest.Form{Name: "call", Text: fmt.Sprintf("%x", r.helloMessage(replyRequested, "127.0.0.1:4222"))},
		wiretest.Form{Name: "ticket", Text: u.ticket("g1", 7, 2, "nonce", "127.0.0.1:1")},
		wiretest.Form{Name: "member of a store", Text: storePeer("node-1")})
}
