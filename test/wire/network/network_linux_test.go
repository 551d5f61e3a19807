package network_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
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
	return startOf(t, `
host: {rate: 100mbit, delay: 2ms}
rack: {delay: 10ms}
racks: {%[1]s-r: [%[1]s-a, %[1]s-b], %[1]s-s: [%[1]s-c]}
hosts: {%[1]s-b: {ports: "7000"}}
`)
}

// startOf starts the network of a text with a prefix for the names of hosts.
func startOf(t *testing.T, text string) (*network.Network, *topology.Topology) {
	t.Helper()
	p := fmt.Sprintf("t%d", os.Getpid()) // other tests of this machine have other hosts
	top, err := topology.Parse([]byte(fmt.Sprintf(text, p)))
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
	if text := do("stats"); !strings.Contains(text, " lost,") || !strings.Contains(text, "refused by a firewall") ||
		strings.Contains(text, "\n0 refused") {
		t.Errorf("stats: %s", text)
	}
	for _, words := range []string{"", "cut", "cut nohost", "set " + a.Name, "set " + a.Name + " delay=x", "jump"} {
		if _, err := n.Control(context.Background(), strings.Fields(words)); err == nil {
			t.Errorf("%q was accepted", words)
		}
	}
	if err := host.In("nohost", func() error { return nil }); err == nil || !strings.Contains(err.Error(), "no host nohost") {
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

// TestVersions: processes connect over both versions of IP, by the names of the network, and a host behind a router
// only outwards.
func TestVersions(t *testing.T) {
	_, top := startOf(t, `
addresses: both
racks: {%[1]s-r: [%[1]s-a, %[1]s-b, %[1]s-c]}
hosts: {%[1]s-b: {addresses: ipv6}, %[1]s-c: {addresses: ipv4, nat: 10.200.7.2}}
names: {%[1]s-all: [%[1]s-b, %[1]s-a]}
`)
	a, b, c := top.Hosts[0].Name, top.Hosts[1].Name, top.Hosts[2].Name
	on := func(name string, f func() error) error {
		done := make(chan error, 1)
		go func() {
			runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
			err := host.JoinWithNames(name)
			if err == nil {
				err = f()
			}
			done <- err
		}()
		return <-done
	}
	for _, name := range []string{a, b, c} {
		var l net.Listener
		if err := on(name, func() (err error) { l, err = net.Listen("tcp", ":7000"); return err }); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
	}
	for _, x := range []struct {
		from, to, network string
		ok                bool
	}{
		{a, "10.77.1.1", "tcp4", true}, {a, b, "tcp6", true}, {a, b, "tcp4", false}, {b, a, "tcp6", true}, {b, a, "tcp4", false},
		{b, top.Hosts[0].Name[:len(a)-1] + "all", "tcp6", true}, {c, a, "tcp4", true}, {a, c, "tcp4", false},
		{c, b, "tcp", false}, {a, "no-such-name", "tcp", false},
	} {
		within := patience
		if !x.ok {
			within = 300 * time.Millisecond
		}
		cmd := exec.Command("/proc/self/exe", "-test.run=^$") // reads the names of its host
		cmd.Env = append(os.Environ(), dialWord+"="+strings.Join([]string{x.network, x.to, within.String()}, " "))
		var text []byte
		err := on(x.from, func() (err error) { text, err = cmd.CombinedOutput(); return err })
		if (err == nil) != x.ok {
			t.Errorf("%s to %s by %s: %v %s", x.from, x.to, x.network, err, text)
		}
	}
}

// dialWord makes the test program only connect.
const dialWord = "WIRE_TEST_DIAL"

func TestMain(m *testing.M) {
	if words := strings.Fields(os.Getenv(dialWord)); len(words) == 3 {
		within, err := time.ParseDuration(words[2])
		if err == nil {
			_, err = net.DialTimeout(words[0], net.JoinHostPort(words[1], "7000"), within)
		}
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}
