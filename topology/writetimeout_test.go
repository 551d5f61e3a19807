package topology

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// TestLeaseWriteTimeout: a store that accepts no writes stops only a holder that shares it. The
// placement is written when the store accepts writes again, and Recorded is returned once.
func TestLeaseWriteTimeout(t *testing.T) {
	for _, exclusive := range []bool{true, false} {
		var reported []string
		var asked []LeaseEffect
		full := false
		var claim Claim
		revision := uint64(0)
		l := NewLease(LeaseConfig{Holder: "c", Incarnation: 1, TTL: 8 * time.Second, Hint: time.Second,
			Renew: time.Second, Exclusive: exclusive, WriteTimeout: 2 * time.Second, Bootstrap: true})
		now := time.Duration(0)
		take := func(effects []LeaseEffect) {
			for _, e := range effects {
				switch e := e.(type) {
				case Recorded:
					reported = append(reported, fmt.Sprintf("%d %v at %v", e.Epoch, e.Unwritten, now))
				case ReadClaim, WriteClaim:
					asked = append(asked, e)
				}
			}
		}
		until := func(end time.Duration) { // a write on a full disk times out after three seconds; reads are answered
			for ; now < end; now += 100 * time.Millisecond {
				take(l.Tick(now))
				for len(asked) > 0 {
					e := asked[0]
					w, writes := e.(WriteClaim)
					if writes && full {
						if now < l.writingSince+3*time.Second {
							break
						}
						asked = asked[1:]
						take(l.OutcomeUnknown())
						continue
					}
					asked = asked[1:]
					if !writes {
						take(l.ReadDone(claim, revision))
						continue
					}
					revision++
					claim = w.Claim
					take(l.WriteDone(revision))
				}
			}
		}
		until(10 * time.Second)
		take(l.Record(Placement{Epoch: 1}, nil))
		until(12 * time.Second)
		full = true
		until(14 * time.Second) // not known yet
		take(l.Record(Placement{Epoch: 2}, nil))
		until(20 * time.Second)
		take(l.Record(Placement{Epoch: 3}, nil)) // now it is
		until(21 * time.Second)
		unwritten := l.Unwritten()
		full = false
		until(30 * time.Second)
		got := strings.Join(reported, ", ")
		if exclusive {
			if got != "1 false at 10s, 2 true at 16s, 3 true at 20s" || !unwritten {
				t.Errorf("exclusive: effects %s, unwritten %v", got, unwritten)
			}
		} else if !strings.HasPrefix(got, "1 false at 10s, 3 false at 2") || strings.Contains(got, "true") || unwritten {
			t.Errorf("shared: effects %s, unwritten %v", got, unwritten)
		}
		if claim.Placement.Epoch != 3 || l.Unwritten() {
			t.Errorf("exclusive %v: the store has epoch %d in the end, unwritten %v", exclusive, claim.Placement.Epoch, l.Unwritten())
		}
	}
}
