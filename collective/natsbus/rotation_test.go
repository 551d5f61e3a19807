package natsbus

import (
	"errors"
	"sync/atomic"
	"testing"

	"github.com/shoal-llm/shoal/collective"
)

// Ranks that have logged in with a secret stay connected when the secret is no longer accepted, also if their
// server then gets a route. New logins need the new secret.
func TestRouteAfterRotation(t *testing.T) {
	var secret atomic.Pointer[string]
	set := func(s string) { secret.Store(&s) }
	set("old")
	servers := startServers(t, 3, func(_ int, c *Config) { c.Secrets = func() []string { return []string{*secret.Load()} } })
	gs := openGroups(t, openTransports(t, servers[:2], 1), 1, collective.Config{})
	work := func(op collective.OpID) {
		t.Helper()
		errs := make(chan error, len(gs))
		for r, g := range gs {
			go func() {
				w := newRankWork(r, 2, 4000)
				errs <- errors.Join(w.reduce(g, op), w.gather(g, op+1))
			}()
		}
		for range gs {
			if err := <-errs; err != nil {
				t.Fatal(err)
			}
		}
	}
	work(1)
	before := servers[0].users.ticket("g", 1, 1, "nonce", servers[0].announcedAddr())
	set("new")
	if servers[0].users.admit(before, "nonce") != nil {
		t.Error("a ticket of the old secret was admitted")
	}
	for _, s := range servers[:2] {
		if err := s.AddRoute(servers[2].RouteAddr()); err != nil {
			t.Fatal(err)
		}
	}
	work(3)
	openTransports(t, servers[:2], 2)
}
