package network_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/shoal-llm/shoal/test/wire/calibrate"
	"github.com/shoal-llm/shoal/test/wire/host"
	"github.com/shoal-llm/shoal/test/wire/network"
	"github.com/shoal-llm/shoal/test/wire/topology"
)

const patience = 30 * time.Second

// start starts a network of three hosts, or skips the test if that is not permitted.
func start(t *testing.T) (*network.Network, *topology.Topology) {
	t.Helper()
	p := fmt.Sprintf("t%d", os.Getpid()) // other tests of this machine have other hosts
	top, err := topology.Parse([]byte(fmt.Sprintf(`
host: {rate: 100mbit, delay: 2ms}
rack: {delay: 10ms}
racks: {%[1]s-r: [%[1]s-a, %[1]s-b], %[1]s-s: [%[1]s-c]}
hosts: {%[1]s-b: {ports: "7000"}}
`, p)))
	if err != nil {
		t.Fatal(err)
	}
	n, err := network.Start(top)
	if errors.Is(err, host.ErrPermission) || errors.Is(err, os.ErrPermission) {
		t.Skipf("NOT TESTED: a simulated network: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat("/run/netns/wire-" + top.Hosts[0].Name); err == nil {
			t.Error("a namespace is left after Close")
		}
	})
	return n, top
}

// TestHosts: hosts reach each other over their links; a firewall, a partition and new settings of a
// link have an effect at once.
func TestHosts(t *testing.T) {
	n, top := start(t)
	a, b, c := top.Hosts[0], top.Hosts[1], top.Hosts[2]
	listen := func(h topology.Host, port int) {
		t.Helper()
		var l net.Listener
		err := host.In(h.Name, func() (err error) {
			l, err = net.Listen("tcp4", fmt.Sprintf("%s:%d", h.Address, port))
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		go func() {
			for {
				x, err := l.Accept()
				if err != nil {
					return
				}
				x.Close()
			}
		}()
	}
	for _, h := range []topology.Host{b, c} {
		listen(h, 7000)
		listen(h, 7001)
	}
	dial := func(from, to topology.Host, port int, within time.Duration) (took time.Duration, err error) {
		err = host.In(from.Name, func() error {
			began := time.Now()
			x, err := net.DialTimeout("tcp4", fmt.Sprintf("%s:%d", to.Address, port), within)
			took = time.Since(began)
			if err == nil {
				x.Close()
			}
			return err
		})
		return took, err
	}
	reach := func(from, to topology.Host, port int) {
		t.Helper()
		if _, err := dial(from, to, port, patience); err != nil {
			t.Error(err)
		}
	}
	blocked := func(from, to topology.Host, port int) {
		t.Helper()
		if _, err := dial(from, to, port, 200*time.Millisecond); err == nil {
			t.Errorf("%s reached port %d of %s", from.Name, port, to.Name)
		}
	}
	do := func(words ...string) string {
		t.Helper()
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		text, err := n.Control(ctx, words)
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	reach(a, b, 7000)
	blocked(a, b, 7001)
	reach(a, c, 7001)
	do("cut", a.Name, c.Name)
	blocked(a, c, 7000)
	reach(a, b, 7000)
	do("heal")
	if took, err := dial(a, c, 7000, patience); err != nil || took < 48*time.Millisecond {
		t.Errorf("a connection over 2 x 24 ms took %v, error %v", took, err)
	}
	do("set", c.Name, "delay=100ms")
	if took, err := dial(a, c, 7000, patience); err != nil || took < 240*time.Millisecond {
		t.Errorf("a connection over 2 x 122 ms took %v, error %v", took, err)
	}
	do("set", c.Name, "loss=100%")
	blocked(a, c, 7000)
	if text := do("stats"); !strings.Contains(text, " lost,") || !strings.Contains(text, "refused by a firewall") || strings.Contains(text, "\n0 refused") {
		t.Errorf("stats: %s", text)
	}
	for _, words := range []string{"", "cut", "cut nobody", "set " + a.Name, "set " + a.Name + " delay=x", "jump"} {
		if _, err := n.Control(context.Background(), strings.Fields(words)); err == nil {
			t.Errorf("%q was accepted", words)
		}
	}
	if err := host.In("nobody", func() error { return nil }); err == nil || !strings.Contains(err.Error(), "no host nobody") {
		t.Errorf("an unknown host: %v", err)
	}
	if _, err := network.Start(top); err == nil || !strings.Contains(err.Error(), "wire down") {
		t.Errorf("the same hosts twice: %v", err)
	}
	reach(a, b, 7000) // the failed start removed nothing
}

// TestCalibrate: a measured path has at least the delay and at most the rate of the topology.
func TestCalibrate(t *testing.T) {
	_, top := start(t)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	r, err := calibrate.Measure(ctx, top, top.Hosts[0].Name, top.Hosts[2].Name,
		calibrate.Options{RoundTrips: 20, Every: time.Millisecond, Transfer: 300 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	if r.RTT < 48*time.Millisecond || r.Rate < 1e5 || r.Rate > 12.5e6 || r.Loss != 0 {
		t.Error(r.Text())
	}
}
