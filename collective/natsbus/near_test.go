package natsbus

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"shoal/collective"
)

func needsNear(t testing.TB) {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("abstract Unix sockets are Linux's")
	}
}

// nearTo counts the ranks that each one hears, and is heard by, without a server.
func nearTo(ts []*Transport) (hears, heard []int) {
	for _, tr := range ts {
		n, m := 0, 0
		tr.mu.Lock()
		for _, p := range tr.peers {
			if p.near != nil {
				n++
			}
		}
		tr.mu.Unlock()
		for r := range tr.outlets {
			if tr.outlets[r].Load() != nil {
				m++
			}
		}
		hears, heard = append(hears, n), append(heard, m)
	}
	return hears, heard
}

// TestNear: ranks of one machine need no server between them, also where others of the
// group are heard otherwise; sums and gathers come out right in all mixtures.
func TestNear(t *testing.T) {
	needsNear(t)
	for _, c := range []struct {
		name string
		edit func(int, *Config)
		want []int
	}{
		{"all", nil, []int{3, 3, 3, 3}},
		{"one apart", func(i int, c *Config) { c.Apart = i == 1 }, []int{2, 0, 2, 2}},
		{"two apart", func(i int, c *Config) { c.Apart = i < 2 }, []int{0, 0, 1, 1}},
		{"one behind another address", func(i int, c *Config) {
			if i == 1 {
				c.Advertise = "127.0.0.1:1"
			}
		}, []int{2, 3, 2, 2}},
	} {
		t.Run(c.name, func(t *testing.T) {
			ts := openTransports(t, startServers(t, 4, c.edit), 1)
			if hears, _ := nearTo(ts); !slices.Equal(hears, c.want) {
				t.Errorf("ranks hear %v without a server, want %v", hears, c.want)
			}
			gs := openGroups(t, ts, 1, collective.Config{})
			errs := make(chan error, len(gs))
			for r, g := range gs {
				go func() {
					var err error
					for i := uint64(0); i < 12 && err == nil; i += 2 {
						w := newRankWork(r, len(gs), 1+int(i)*9000) // some more than a socket takes at once
						err = errors.Join(w.reduce(g, collective.Op(0, i+1)), w.gather(g, collective.Op(0, i+2)))
					}
					errs <- err
				}()
			}
			for range gs {
				if err := <-errs; err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// TestNearTickets: only a process that knows the secret hears a rank, and nobody hears
// in another's place.
func TestNearTickets(t *testing.T) {
	needsNear(t)
	s := startServers(t, 1, nil)[0]
	open(t, s, TransportConfig{Group: "g", Epoch: 4, Rank: 0, Size: 3})
	knock := func(line string) bool {
		nc, err := dialNear(t.Context(), s.near.name)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { nc.Close() })
		if _, err := io.WriteString(nc, line); err != nil {
			return false
		}
		n, _ := io.ReadFull(nc, make([]byte, 1))
		return n == 1
	}
	good := s.users.ticket("g", 4, 1)
	for _, bad := range []string{
		"\n", "hear 0\n", good + "\n", good + " \n", good + " 1\n", good + " 2\n", good + " x\n", strings.Repeat("x", 2*nearTicket),
		strings.Replace(good, ".1.", ".2.", 1) + " 0\n", strings.Replace(good, ".4.", ".5.", 1) + " 0\n",
		s.users.ticket("g", 5, 1) + " 0\n", s.users.ticket("h", 4, 1) + " 0\n", s.users.ticket("g", 4, 3) + " 0\n", s.users.ticket("g", 4, 0) + " 0\n",
		newUsers("shoal", "other").ticket("g", 4, 1) + " 0\n",
	} {
		if knock(bad) {
			t.Errorf("%.90q was let in", bad)
		}
	}
	if !knock(good + " 0\n") {
		t.Error("rank 1 was not let in")
	}
	if knock(good + " 0\n") {
		t.Error("two listen as rank 1")
	}
}

// TestNearWelcome: what a rank says while others log in comes behind the answer to them.
func TestNearWelcome(t *testing.T) {
	needsNear(t)
	s := startServers(t, 1, nil)[0]
	const ranks = 200
	tr := open(t, s, TransportConfig{Group: "g", Epoch: 4, Rank: 0, Size: ranks})
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
				tr.eachNear(func(o *outlet) { o.send([]byte("x"), false) })
			}
		}
	}()
	for r := 1; r < ranks; r++ {
		nc, err := dialNear(t.Context(), s.near.name)
		if err != nil {
			t.Fatal(err)
		}
		answer := make([]byte, len(welcome))
		if _, err = fmt.Fprintf(nc, "%s 0\n", s.users.ticket("g", 4, r)); err == nil {
			_, err = io.ReadFull(nc, answer)
		}
		nc.Close()
		if err != nil || !bytes.Equal(answer, welcome) {
			t.Errorf("rank %d was answered %q, %v", r, answer, err)
		}
	}
	close(stop)
	<-stopped
}

// TestNearSlowReader: a rank that does not read holds up nobody else, and loses nothing.
func TestNearSlowReader(t *testing.T) {
	needsNear(t)
	s := startServers(t, 1, nil)[0]
	ts := make([]*Transport, 3)
	for r := range ts {
		ts[r] = open(t, s, TransportConfig{Group: "g", Rank: r, Size: 3})
	}
	ready(t, ts)
	const messages, size, first = 60, 300 << 10, 100 // no hellos
	release, quick, slow := make(chan struct{}), make(chan error, 1), make(chan error, 1)
	check := func(told chan<- error, hold <-chan struct{}) func(int, []byte) {
		n := 0
		return func(src int, msg []byte) {
			<-hold
			if len(msg) != size+n || msg[0] != byte(n+first) || msg[len(msg)-1] != msg[0] {
				told <- fmt.Errorf("message %d: %d bytes from rank %d, of message %d", n, len(msg), src, int(msg[0])-first)
			}
			if n++; n == messages {
				told <- nil
			}
		}
	}
	never := make(chan struct{})
	close(never)
	ts[1].Receive(check(slow, release))
	ts[2].Receive(check(quick, never))
	for i := range messages {
		if err := ts[0].Broadcast(bytes.Repeat([]byte{byte(i + first)}, size+i)); err != nil {
			t.Fatal(err)
		}
	}
	got := func(who string, told <-chan error) {
		select {
		case err := <-told:
			if err != nil {
				t.Errorf("%s: %v", who, err)
			}
		case <-time.After(patience):
			t.Errorf("%s did not hear all", who)
		}
	}
	got("a rank beside one that does not read", quick)
	close(release)
	got("a rank that had not read", slow)
}

// TestNearHoldsUp: what waits for a rank that does not read is bounded; then the sender
// waits, until the rank reads or is gone.
func TestNearHoldsUp(t *testing.T) {
	needsNear(t)
	ours, theirs := nearPair(t)
	o, err := newOutlet(ours, new(buffers))
	if err != nil {
		t.Fatal(err)
	}
	o.most = 4 << 20
	sent, over := make(chan int, 1000), make(chan struct{})
	go func() {
		defer close(over)
		for i := range 100 {
			o.send(make([]byte, 1<<20), true)
			o.mu.Lock()
			if o.held > o.most+1<<20+nearHead {
				t.Errorf("%d bytes wait, %d may", o.held, o.most)
			}
			o.mu.Unlock()
			sent <- i
		}
	}()
	for i := range 5 { // these go without a reader
		if got := <-sent; got != i {
			t.Fatal(got)
		}
	}
	waits := func() bool {
		o.mu.Lock()
		defer o.mu.Unlock()
		return o.held > o.most
	}
	waitFor(t, "a sender that waits", waits)
	heard := 0
	speaker := io.LimitReader(theirs, 50*(1<<20+nearHead))
	err = readNear(speaker, new(buffers), func(direct bool, msg []byte) {
		if !direct || len(msg) != 1<<20 {
			t.Errorf("heard %d bytes, direct %v", len(msg), direct)
		}
		heard++
	})
	if heard != 50 || !errors.Is(err, io.EOF) {
		t.Errorf("heard %d messages of 50, then %v", heard, err)
	}
	waitFor(t, "a sender that waits again", waits)
	o.end()
	select {
	case <-over:
	case <-time.After(patience):
		t.Error("a sender waits for one who is gone")
	}
}

// TestNearGone: a rank whose process ends is named at once; one that leaves in peace is not.
func TestNearGone(t *testing.T) {
	needsNear(t)
	servers := startServers(t, 3, nil)
	ts := openTransports(t, servers, 1)
	if hears, heard := nearTo(ts); !slices.Equal(hears, []int{2, 2, 2}) || !slices.Equal(heard, hears) {
		t.Fatalf("ranks hear %v and are heard by %v without a server", hears, heard)
	}
	told := make(chan error, 8)
	ts[1].OnError(func(err error) { told <- err })
	ts[0].Close()
	waitFor(t, "the end of what rank 0 says", func() bool {
		ts[1].mu.Lock()
		defer ts[1].mu.Unlock()
		return ts[1].peers[0].near == nil
	})
	servers[2].near.stop()
	select {
	case err := <-told:
		var op *collective.OpError
		if !errors.As(err, &op) || !slices.Equal(op.Ranks, []int{2}) || !errors.Is(err, collective.ErrPeerGone) || !errors.Is(err, ErrLost) {
			t.Errorf("rank 2 is gone, rank 1 was told: %v", err)
		}
	case <-time.After(patience):
		t.Error("nobody said that rank 2 is gone")
	}
}

// TestReadNear: what a speaker may say, and what it must not.
func TestReadNear(t *testing.T) {
	frame := func(size uint32, msg string) string {
		return string(binary.LittleEndian.AppendUint32(nil, size)) + msg
	}
	big := strings.Repeat("x", 100000)
	for _, c := range []struct{ in, want, err string }{
		{frame(3, "abc") + frame(nearDirect|1, "d") + frame(0, "") + frame(1, "x"), "false abc|true d|", "<nil>"},
		{frame(uint32(len(big)), big), "false " + big + "|", "EOF"},
		{frame(3, "ab"), "", "unexpected EOF"},
		{"abc", "", "EOF"},
		{frame(nearDirect, ""), "", "0 bytes"},
		{frame(maxPayload+1, ""), "", "16777217 bytes"},
	} {
		got := ""
		err := readNear(strings.NewReader(c.in), new(buffers), func(direct bool, msg []byte) { got += fmt.Sprintf("%v %s|", direct, msg) })
		if got != c.want || !strings.Contains(fmt.Sprint(err), c.err) {
			t.Errorf("%.40q: heard %.60q, then %v; want %.60q, then %s", c.in, got, err, c.want, c.err)
		}
	}
}

// FuzzNear: whatever is said, messages follow each other as they were said.
func FuzzNear(f *testing.F) {
	for _, s := range []string{"", "\x03\x00\x00\x00abc\x01\x00\x00\x80d\x00\x00\x00\x00", "\x00\x00\x00\x80", "\xff\xff\xff\xff", "\x02\x00\x00\x00a"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		at := 0
		err := readNear(bytes.NewReader(b), new(buffers), func(direct bool, msg []byte) {
			size := binary.LittleEndian.Uint32(b[at:])
			at += nearHead
			if (size&nearDirect != 0) != direct || int(size&^nearDirect) != len(msg) || !bytes.HasPrefix(b[at:], msg) {
				t.Fatalf("at %d: %d bytes, direct %v", at, len(msg), direct)
			}
			at += len(msg)
		})
		if err == nil && (len(b) < at+nearHead || binary.LittleEndian.Uint32(b[at:]) != 0) {
			t.Error("an end in peace that nobody said")
		}
	})
}

// TestNearLeaves: what was said before a speaker leaves is heard, then that it leaves.
func TestNearLeaves(t *testing.T) {
	needsNear(t)
	ours, theirs := nearPair(t)
	o, err := newOutlet(ours, new(buffers))
	if err != nil {
		t.Fatal(err)
	}
	for range 10 {
		o.send(make([]byte, 1<<20), false)
	}
	o.leave()
	o.send(make([]byte, 1<<20), false) // to nobody
	heard := 0
	if err := readNear(theirs, new(buffers), func(bool, []byte) { heard++ }); err != nil || heard != 10 {
		t.Errorf("heard %d messages of 10, then %v", heard, err)
	}
}

// nearPair is both ends of a connection, the speaker's first.
func nearPair(t *testing.T) (ours, theirs *net.UnixConn) {
	t.Helper()
	l, name, err := listenNear()
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if theirs, err = dialNear(t.Context(), name); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { theirs.Close() })
	if ours, err = l.AcceptUnix(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ours.Close() })
	return ours, theirs
}
