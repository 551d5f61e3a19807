package gossip

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/memberlist"
	"go.uber.org/goleak"

	"github.com/shoal-llm/shoal/internal/security"
	"github.com/shoal-llm/shoal/internal/testutil"
)

// patience is the deadline of every wait; it allows for a heavily loaded machine.
const patience = time.Minute

const childEnv = "SHOAL_GOSSIP_TEST_CHILD" // "name seed incarnation"

func TestMain(m *testing.M) {
	if spec := os.Getenv(childEnv); spec != "" {
		if err := child(spec); err != nil {
			fmt.Println("error", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

func child(spec string) error {
	var name, seed, bind string
	var inc uint64
	if _, err := fmt.Sscan(spec, &name, &seed, &bind, &inc); err != nil {
		return err
	}
	n, err := Start(Config{Name: name, Bind: bind, Keys: [][]byte{key.Gossip()}, Profile: Local,
		Logger: quiet(), Meta: Meta{Role: "node", Incarnation: inc}})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := n.Join(ctx, []string{seed}, 2); err != nil {
		return err
	}
	fmt.Println("joined", n.Address())
	io.Copy(io.Discard, os.Stdin)
	return n.Leave()
}

// key is shared by the tests and their child processes.
var key = func() security.Key {
	k, err := security.ParseKey(os.Getenv("SHOAL_GOSSIP_TEST_KEY"))
	if err != nil {
		k = security.NewKey()
	}
	return k
}()

func quiet() *slog.Logger {
	if os.Getenv("SHOAL_TEST_LOG") != "" {
		return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	return slog.New(slog.DiscardHandler)
}

type process struct {
	cmd     *exec.Cmd
	stdin   io.WriteCloser
	address string
}

func spawn(t *testing.T, name, seed, bind string, inc uint64) *process {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s %s %s %d", childEnv, name, seed, bind, inc),
		"SHOAL_GOSSIP_TEST_KEY="+key.Text(), "GORACE=atexit_sleep_ms=0")
	cmd.Stderr = os.Stderr
	in, _ := cmd.StdinPipe()
	out, _ := cmd.StdoutPipe()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { in.Close(); cmd.Process.Kill(); cmd.Wait() })
	line, err := bufio.NewReader(out).ReadString('\n')
	what, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
	if err != nil || what != "joined" {
		t.Fatalf("the child wrote %q, %v", line, err)
	}
	return &process{cmd, in, rest}
}

type recorder struct {
	*Node
	events chan Event
}

func start(t *testing.T, name string, change ...func(*Config)) *recorder {
	t.Helper()
	r := &recorder{events: make(chan Event, 256)}
	cfg := Config{Name: name, Bind: "127.0.0.1:0", Keys: [][]byte{key.Gossip()}, Profile: Local, Logger: quiet(),
		Meta: Meta{Role: "node", Incarnation: 1, RPC: "127.0.0.1:1"}, OnEvent: func(e Event) { r.events <- e }}
	for _, f := range change {
		f(&cfg)
	}
	n, err := Start(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	})
	r.Node = n
	return r
}

// expect waits for the next event and skips false reports: on a loaded machine memberlist may report
// a live member as failed, and then as alive again.
func (r *recorder) expect(t *testing.T, kind Kind, name string) Event {
	t.Helper()
	begun := time.Now()
	for {
		select {
		case e := <-r.events:
			if e.Kind == kind && e.Member.Name == name {
				t.Logf("%v of %s after %v", kind, name, time.Since(begun).Round(time.Millisecond))
				return e
			}
			if !alarm(e) {
				t.Fatalf("got %v %+v, want %v of %s", e.Kind, e.Member, kind, name)
			}
			t.Logf("a false alarm: %v of %s", e.Kind, e.Member.Name)
		case <-time.After(patience):
			t.Fatalf("no %v of %s within %v", kind, name, patience)
		}
	}
}

// alarm reports whether the event may belong to a false alarm.
func alarm(e Event) bool { return e.Kind == Failed || e.Kind == Join && e.Rejoined }

func (r *recorder) quiet(t *testing.T, d time.Duration) {
	t.Helper()
	select {
	case e := <-r.events:
		t.Fatalf("unexpected %v %+v", e.Kind, e.Member)
	case <-time.After(d):
	}
}

func deadline(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

func join(t *testing.T, n *recorder, want int, seeds ...*recorder) {
	t.Helper()
	var at []string
	for _, s := range seeds {
		at = append(at, s.Address())
	}
	if err := n.Join(deadline(t, patience), at, want); err != nil {
		t.Fatal(err)
	}
}

func TestJoinUpdateLeave(t *testing.T) {
	a, b := start(t, "a"), start(t, "b")
	join(t, b, 2, a)
	if e := a.expect(t, Join, "b"); e.Member.Meta.RPC != "127.0.0.1:1" || e.Rejoined {
		t.Errorf("%+v", e)
	}
	b.expect(t, Join, "a")
	m := b.Meta()
	m.State, m.Load = Ready, 40
	if err := b.UpdateMeta(m); err != nil {
		t.Fatal(err)
	}
	if e := a.expect(t, Update, "b"); e.Member.Meta != m {
		t.Errorf("%+v, want %+v", e.Member.Meta, m)
	}
	if got := len(a.Members()); got != 2 {
		t.Errorf("%d members", got)
	}
	if err := errors.Join(b.Leave(), b.Leave(), b.Close()); err != nil {
		t.Error(err)
	}
	// The draining state may be reported as an update first, or only with the leave.
	e := <-a.events
	for e.Kind == Update && e.Member.Meta.State == Draining || alarm(e) {
		e = <-a.events
	}
	if e.Kind != Leave || e.Member.Name != "b" {
		t.Errorf("%v %+v", e.Kind, e.Member)
	}
	if err := b.UpdateMeta(m); !errors.Is(err, ErrClosed) {
		t.Errorf("update after leave: %v", err)
	}
	if err := b.Join(deadline(t, time.Second), []string{a.Address()}, 2); !errors.Is(err, ErrClosed) {
		t.Errorf("join after leave: %v", err)
	}
}

func TestParallelJoinsConverge(t *testing.T) {
	const n = 8
	nodes := []*recorder{start(t, "n0")}
	for i := 1; i < n; i++ {
		nodes = append(nodes, start(t, fmt.Sprintf("n%d", i)))
	}
	begun := time.Now()
	var wg sync.WaitGroup
	ctx := deadline(t, patience)
	for _, r := range nodes {
		wg.Go(func() {
			if err := r.Join(ctx, []string{nodes[0].Address()}, n); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	t.Logf("%d members met in %v", n, time.Since(begun))
	for _, r := range nodes {
		testutil.Eventually(t, patience, "the end of false alarms", func() (bool, string) {
			got := len(r.Members())
			return got == n, fmt.Sprintf("%d members, want %d", got, n)
		})
	}
}

func TestSeedThatStartsLater(t *testing.T) {
	a := start(t, "a")
	at := a.Address()
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	b := start(t, "b")
	err := b.Join(deadline(t, 100*time.Millisecond), []string{at}, 2)
	if !errors.Is(err, ErrJoin) || !strings.Contains(err.Error(), at) {
		t.Errorf("join without a reachable seed: %v", err)
	}
	result := make(chan error, 1)
	ctx := deadline(t, patience)
	go func() { result <- b.Join(ctx, []string{at}, 2) }()
	time.Sleep(100 * time.Millisecond)
	start(t, "a2", func(c *Config) { c.Bind = at })
	if err := <-result; err != nil {
		t.Error(err)
	}
}

// A killed process is Failed. One that restarts with the same name and address before the failure
// was noticed causes Failed and Join.
func TestKillAndRestart(t *testing.T) {
	a := start(t, "a")
	p := spawn(t, "b", a.Address(), "127.0.0.1:0", 1)
	a.expect(t, Join, "b")
	p.cmd.Process.Signal(syscall.SIGKILL)
	p.cmd.Wait()
	spawn(t, "b", a.Address(), p.address, 2)
	if e := a.expect(t, Failed, "b"); e.Member.Meta.Incarnation != 1 {
		t.Errorf("%+v", e)
	}
	e := a.expect(t, Join, "b")
	for e.Rejoined { // skip false alarms
		e = a.expect(t, Join, "b")
	}
	if e.Member.Meta.Incarnation != 2 {
		t.Errorf("%+v", e)
	}
}

// A frozen process is Failed. When it resumes it refutes that: the same incarnation joins again,
// with Again set.
func TestFrozenMemberRefutes(t *testing.T) {
	a := start(t, "a")
	p := spawn(t, "b", a.Address(), "127.0.0.1:0", 1)
	a.expect(t, Join, "b")
	p.cmd.Process.Signal(syscall.SIGSTOP)
	a.expect(t, Failed, "b")
	p.cmd.Process.Signal(syscall.SIGCONT)
	if e := a.expect(t, Join, "b"); !e.Rejoined || e.Member.Meta.Incarnation != 1 {
		t.Errorf("%+v", e)
	}
	p.stdin.Close()
	for {
		e := <-a.events
		if e.Kind == Leave {
			break
		}
		if e.Kind != Update && !alarm(e) {
			t.Fatalf("%v %+v", e.Kind, e.Member)
		}
	}
}

func TestWrongKeyAndLabel(t *testing.T) {
	a := start(t, "a")
	for name, change := range map[string]func(*Config){
		"another key":   func(c *Config) { c.Keys = [][]byte{security.NewKey().Gossip()} },
		"no key":        func(c *Config) { c.Keys = nil },
		"another label": func(c *Config) { c.Label = "other" },
	} {
		t.Run(name, func(t *testing.T) {
			b := start(t, "b", change)
			begun := time.Now()
			within := time.Second
			if name == "another key" { // reported immediately
				within = patience
			}
			err := b.Join(deadline(t, within), []string{a.Address()}, 2)
			t.Logf("after %v: %v", time.Since(begun), err)
			if err == nil {
				t.Fatal("joined")
			}
			if !errors.Is(err, ErrWrongKey) && !errors.Is(err, ErrJoin) {
				t.Errorf("error %v", err)
			}
			if name == "another key" && !errors.Is(err, ErrWrongKey) {
				t.Errorf("error %v, want %v", err, ErrWrongKey)
			}
		})
	}
	a.quiet(t, 50*time.Millisecond)
}

func TestConfig(t *testing.T) {
	long := strings.Repeat("x", 200)
	for name, c := range map[string]Config{
		"no name":         {Bind: "127.0.0.1:0"},
		"open, no key":    {Name: "a", Bind: "0.0.0.0:0"},
		"every interface": {Name: "a", Bind: "0.0.0.0:0", Keys: [][]byte{key.Gossip()}},
		"short key":       {Name: "a", Bind: "127.0.0.1:0", Keys: [][]byte{[]byte("short")}},
		"bad address":     {Name: "a", Bind: "127.0.0.1"},
		"advertised name": {Name: "a", Bind: "127.0.0.1:0", Advertise: "machine.example"},
		"unknown profile": {Name: "a", Bind: "127.0.0.1:0", Profile: 9},
		"large meta":      {Name: "a", Bind: "127.0.0.1:0", Meta: Meta{RPC: long, Route: long, Build: long}},
		"long label":      {Name: "a", Bind: "127.0.0.1:0", Label: long + long},
	} {
		c.Logger = quiet()
		if n, err := Start(c); err == nil {
			n.Close()
			t.Errorf("%s: started", name)
		} else {
			t.Logf("%s: %v", name, err)
		}
	}
	a := start(t, "a")
	if n, err := Start(Config{Name: "b", Bind: a.Address(), Logger: quiet()}); err == nil {
		n.Close()
		t.Error("started on a port that is taken")
	} else {
		t.Log(err)
	}
	if err := a.UpdateMeta(Meta{RPC: long, Route: long, Build: long}); !errors.Is(err, ErrMetaTooLarge) {
		t.Errorf("update: %v", err)
	}
}

// TestProfiles: members asked for an indirect probe answer negatively two ProbeTimeouts after it
// begins. That must be in time, with slack for a loaded machine. A name must also be free again
// long before the entry of its dead owner is removed.
func TestProfiles(t *testing.T) {
	for _, p := range []Profile{LAN, Local} {
		m := memberlist.DefaultLANConfig()
		if err := p.apply(m); err != nil {
			t.Fatal(err)
		}
		if slack := m.ProbeInterval - 2*m.ProbeTimeout; slack < m.ProbeInterval/4 {
			t.Errorf("profile %d: an answer has %v to arrive within a probe of %v", p, slack, m.ProbeInterval)
		}
		if r := m.DeadNodeReclaimTime; r <= 0 || r > m.GossipToTheDeadTime/10 {
			t.Errorf("profile %d: a process that comes back at another address waits for %v, or %v", p, r, m.GossipToTheDeadTime)
		}
	}
}

// A blocked consumer delays events, but it neither blocks memberlist nor uses memory.
func TestSlowConsumer(t *testing.T) {
	release := make(chan struct{})
	var mu sync.Mutex
	var got []Event
	a := start(t, "a", func(c *Config) {
		c.OnEvent = func(e Event) {
			<-release
			mu.Lock()
			got = append(got, e)
			mu.Unlock()
		}
	})
	b := start(t, "b")
	join(t, b, 2, a)
	for i := range 5 {
		m := b.Meta()
		m.Load = uint8(i + 1)
		if err := b.UpdateMeta(m); err != nil {
			t.Fatal(err)
		}
	}
	testutil.Eventually(t, patience, "memberlist, which must not be blocked, has the last state", func() (bool, string) {
		m := a.Members()
		return len(m) >= 2 && m[0].Meta.Load+m[1].Meta.Load == 5, fmt.Sprintf("%+v", m)
	})
	close(release)
	reported := func() (n int) {
		mu.Lock()
		defer mu.Unlock()
		for _, e := range got {
			if !alarm(e) {
				n++
			}
		}
		if len(got) == 0 || got[len(got)-1].Member.Meta.Load != 5 {
			return 0
		}
		return n
	}
	testutil.Eventually(t, patience, "the last state is reported", func() (bool, string) { return reported() > 0, "not yet" })
	time.Sleep(50 * time.Millisecond)
	if n := reported(); n == 0 || n > 3 {
		t.Errorf("%d events: %+v", n, got)
	}
}

// Pings measure a member's round trip; for an unknown member it is 0.
func TestRoundTrip(t *testing.T) {
	a, b := start(t, "a"), start(t, "b")
	if err := b.Join(t.Context(), []string{a.Address()}, 2); err != nil {
		t.Fatal(err)
	}
	testutil.Eventually(t, patience, "an answer to a ping", func() (bool, string) { // a busy machine misses memberlist's limit
		took := a.RoundTrip(Member{Name: "b", Address: b.Address()})
		return took > 0, took.String()
	})
	if took := a.RoundTrip(Member{Name: "c", Address: b.Address()}); took != 0 {
		t.Errorf("an absent member answered in %v", took)
	}
	if took := a.RoundTrip(Member{Name: "b", Address: "nowhere"}); took != 0 {
		t.Errorf("no address, and yet %v", took)
	}
}
