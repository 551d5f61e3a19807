package rpc

import (
	"fmt"
	"testing"
	"time"
)

// A whole cluster in one process: the same promises, without sockets.
func TestMemoryNetwork(t *testing.T) {
	n := NewNetwork()
	in := func(id string, inc uint64, bind string) *System {
		s := system(t, func(c *Config) {
			c.ID, c.Network, c.Incarnation, c.Bind = id, n, inc, bind
			c.ProbeTimeout = 50 * time.Millisecond
		})
		if err := spawnEcho(s); err != nil {
			t.Fatal(err)
		}
		return s
	}
	var all []*System
	for i := range 5 {
		all = append(all, in(fmt.Sprintf("n%d", i), 1, "mem:0"))
	}
	for _, a := range all {
		for _, b := range all {
			mustSay(t, a, b.Address(), a.ID()+" to "+b.ID())
		}
	}
	_, err := say(all[0], deadline(t, patience), all[1].Address(), kindMissing, "")
	wantErr(t, err, ErrUnknownKind)

	down1, down2 := watching(t, all[0], all[1].Address()), watching(t, all[0], all[2].Address())
	n.Kill(all[1].Address())
	expect(t, down1)
	_, err = say(all[0], deadline(t, patience), all[1].Address(), kindEcho, "x")
	wantErr(t, err, ErrUnreachable)
	_, err = say(all[1], deadline(t, 200*time.Millisecond), all[0].Address(), kindEcho, "x")
	if err == nil {
		t.Error("the killed one was heard")
	}
	again := in("n1", 2, all[1].Address())
	mustSay(t, all[0], again.Address(), "the successor")

	n.Cut(all[0].Address(), all[2].Address())
	_, err = say(all[0], deadline(t, 50*time.Millisecond), all[2].Address(), kindEcho, "x")
	wantErr(t, err, ErrTimeout)
	all[0].PeerGone(all[2].Address())
	expect(t, down2)
	n.Mend(all[0].Address(), all[2].Address())
	mustSay(t, all[0], all[2].Address(), "mended")

	down3 := watching(t, all[0], all[3].Address())
	if err := all[3].Close(); err != nil {
		t.Error(err)
	}
	expect(t, down3)
}
