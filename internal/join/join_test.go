package join

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/shoal-llm/shoal/internal/security"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig is a server on loopback.
type rig struct {
	folder *Folder
	addr   string
	key    security.Key
	log    *bytes.Buffer
	grant  Grant
	during func() // called while the server answers; nil: nothing
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{key: security.NewKey(), log: &bytes.Buffer{}}
	r.grant = Grant{Cluster: "c", Keys: []string{r.key.Text()}, Join: []string{"127.0.0.1:7070"}}
	var err error
	if r.folder, err = OpenFolder(t.TempDir(), true); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r.addr = l.Addr().String()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- r.folder.Serve(ctx, l, func() (*Grant, error) {
			if r.during != nil {
				r.during()
			}
			g := r.grant
			return &g, nil
		}, slog.New(slog.NewTextHandler(r.log, &slog.HandlerOptions{Level: slog.LevelDebug})))
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return r
}

func (r *rig) token(t *testing.T) Token {
	t.Helper()
	token, _, err := r.folder.Tokens.Create(time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	return token
}

func (r *rig) exchange(t *testing.T, token Token) (*Grant, error) {
	t.Helper()
	g, host, err := Exchange(t.Context(), r.addr, token, Request{Machine: "m2"})
	if err == nil && host != "127.0.0.1" {
		t.Errorf("the machine should listen at %s", host)
	}
	return g, err
}

// refused checks the code of a refusal.
func refused(t *testing.T, err error, code string) {
	t.Helper()
	var r *Refusal
	if !errors.As(err, &r) || r.Code != code {
		t.Errorf("got %v, want a refusal %s", err, code)
	}
}

// TestExchange: several machines get the key with one token, and no message discloses the secret.
func TestExchange(t *testing.T) {
	r := newRig(t)
	token := r.token(t)
	read, err := ParseToken(token.Text() + "\n")
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		g, err := r.exchange(t, read)
		if err != nil {
			t.Fatal(err)
		}
		if g.Cluster != "c" || len(g.Keys) != 1 || g.Keys[0] != r.key.Text() {
			t.Errorf("granted %+v", g)
		}
		dir := filepath.Join(t.TempDir(), "c")
		m, err := SaveGrant(dir, g, r.addr, read.Pin)
		if err != nil {
			t.Fatal(err)
		}
		k, err := security.ReadKeyFile(m.KeyFile)
		if err != nil || !k.Equal(r.key) {
			t.Errorf("the key was not kept: %v", err)
		}
		for _, name := range []string{"key", "cluster.json"} {
			if st, err := os.Stat(filepath.Join(dir, name)); err != nil || st.Mode().Perm() != 0o600 {
				t.Errorf("%s: %v, %v", name, st.Mode(), err)
			}
		}
		if all, err := Memberships(filepath.Dir(dir)); err != nil || len(all) != 1 || all[0].Cluster != "c" ||
			!all[0].From(read.Pin) || all[0].From(Pin{}) {
			t.Errorf("read back: %+v, %v", all, err)
		}
	}
	list, err := r.folder.Tokens.List()
	if err != nil || len(list) != 1 || list[0].Uses != 2 || len(list[0].Joined) != 1 || list[0].Joined[0] != "m2" {
		t.Errorf("listed %+v, %v", list, err)
	}
	file, err := os.ReadFile(filepath.Join(r.folder.Dir, "tokens.json"))
	if err != nil {
		t.Fatal(err)
	}
	seed := token.key().Seed()
	text := strings.TrimPrefix(token.Text(), tokenPrefix)
	for _, secret := range []string{text[8:24], fmt.Sprintf("%x", token.secret), fmt.Sprintf("%x", seed), r.key.Text()} {
		for where, shown := range map[string]string{"the file of tokens": string(file), "the log": r.log.String(),
			"a printed token": fmt.Sprintf("%v %+v %#v %s %x", token, token, token, token, token)} {
			if strings.Contains(shown, secret) {
				t.Errorf("%s shows a secret:\n%s", where, shown)
			}
		}
	}
	if b, err := json.Marshal(token); err != nil || strings.Contains(string(b), text[8:24]) {
		t.Errorf("JSON of a token: %s, %v", b, err)
	}
}

// TestIdentityAtOnce: a coordinator that starts and `shoal token create` use one identity of a new folder.
func TestIdentityAtOnce(t *testing.T) {
	for range 50 {
		dir := t.TempDir()
		var pins [4]Pin
		var wg sync.WaitGroup
		for i := range pins {
			wg.Go(func() {
				f, err := OpenFolder(dir, true)
				if err != nil {
					t.Error(err)
					return
				}
				pins[i] = f.Pin()
			})
		}
		wg.Wait()
		for _, p := range pins {
			if p != pins[0] {
				t.Fatalf("identities %x and %x of one folder", p[:4], pins[0][:4])
			}
		}
	}
}

// TestRefusals: a client without a valid token is refused.
func TestRefusals(t *testing.T) {
	r := newRig(t)
	good, revoked := r.token(t), r.token(t)
	if err := r.folder.Tokens.Revoke(revoked.ID); err != nil {
		t.Fatal(err)
	}
	_, err := r.exchange(t, revoked)
	refused(t, err, CodeWrong)
	forged := good // the name and the fingerprint are right
	forged.secret[3] ^= 1
	_, err = r.exchange(t, forged)
	refused(t, err, CodeWrong)
	if _, err = r.exchange(t, good); err != nil {
		t.Errorf("a right token after wrong ones: %v", err)
	}
	for range failBurst - 2 {
		_, err = r.exchange(t, forged)
		refused(t, err, CodeWrong)
	}
	_, err = r.exchange(t, forged)
	refused(t, err, CodeLimited)
	_, err = r.exchange(t, good) // further tries do not show which token is right
	refused(t, err, CodeLimited)
	if err := r.folder.Tokens.Revoke("00000000"); err == nil {
		t.Error("revoked a token that there is not")
	}
	for _, life := range []time.Duration{0, -time.Hour, 30 * 24 * time.Hour} {
		if _, _, err := r.folder.Tokens.Create(life); err == nil {
			t.Errorf("made a token for %v", life)
		}
	}
}

// TestRevokedDuringTheExchange: the key is not given for a token that is revoked while the server tries the ports of the machine.
func TestRevokedDuringTheExchange(t *testing.T) {
	r := newRig(t)
	token := r.token(t)
	r.during = func() {
		if err := r.folder.Tokens.Revoke(token.ID); err != nil {
			t.Error(err)
		}
	}
	g, err := r.exchange(t, token)
	if g != nil {
		t.Errorf("granted %+v", g)
	}
	refused(t, err, CodeWrong)
}

// TestExpired: an expired token is refused by its name, to its holder alone.
func TestExpired(t *testing.T) {
	r := newRig(t)
	token := r.token(t)
	if err := r.folder.Tokens.change(func(all []Record) ([]Record, error) {
		all[0].Expires = time.Now().Add(-time.Minute)
		return all, nil
	}); err != nil {
		t.Fatal(err)
	}
	_, err := r.exchange(t, token)
	refused(t, err, CodeExpired)
	if !strings.Contains(err.Error(), token.ID) {
		t.Errorf("%v does not name token %s", err, token.ID)
	}
	token.secret[0] ^= 1
	_, err = r.exchange(t, token)
	refused(t, err, CodeWrong)
}

// TestImpostor: a server with another certificate is refused before anything is sent to it.
func TestImpostor(t *testing.T) {
	r := newRig(t)
	token := r.token(t)
	other, err := openIdentity(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	got := make(chan int, 1)
	at := listen(t, func(c net.Conn) { // in the middle: it would forward the bytes that it gets
		s := tls.Server(c, &tls.Config{Certificates: []tls.Certificate{other.cert}, MinVersion: tls.VersionTLS13})
		b, _ := io.ReadAll(s)
		got <- len(b)
	})
	_, _, err = Exchange(t.Context(), at, token, Request{Machine: "m2"})
	if !errors.Is(err, ErrImpostor) {
		t.Fatalf("got %v, want %v", err, ErrImpostor)
	}
	if n := <-got; n != 0 {
		t.Errorf("the one in the middle got %d bytes", n)
	}
	for _, want := range []string{other.pin.Short(), token.Pin.Short(), token.ID} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%v lacks %s", err, want)
		}
	}
}

// TestSignatureIsOfOneConnection: a signature of one connection is refused on another.
func TestSignatureIsOfOneConnection(t *testing.T) {
	r := newRig(t)
	token := r.token(t)
	ask := func(exported []byte) reply {
		raw, err := net.Dial("tcp", r.addr)
		if err != nil {
			t.Fatal(err)
		}
		defer raw.Close()
		c := tls.Client(raw, &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS13})
		if err := c.Handshake(); err != nil {
			t.Fatal(err)
		}
		state := c.ConnectionState()
		if exported == nil {
			if exported, err = state.ExportKeyingMaterial(exporterLabel, nil, 32); err != nil {
				t.Fatal(err)
			}
		}
		x := request{Version: version, Token: token.ID, Machine: "m"}
		x.Signature = ed25519.Sign(token.key(), signed(exported, &x))
		var a reply
		if err := errors.Join(send(c, x), receive(c, maxReply, &a)); err != nil {
			t.Fatal(err)
		}
		return a
	}
	if a := ask(nil); a.Grant == nil {
		t.Fatalf("the connection's own signature: %+v", a.Refusal)
	}
	if a := ask(make([]byte, 32)); a.Grant != nil || a.Refusal.Code != CodeWrong {
		t.Errorf("another connection's signature: %+v", a)
	}
}

// listen runs f with one connection, and returns the address.
func listen(t *testing.T, f func(net.Conn)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(time.Minute))
		f(c)
	}()
	t.Cleanup(func() { l.Close(); <-done })
	return l.Addr().String()
}

// TestErrorsTeach: each way in which a first machine is not reached has its own advice.
func TestErrorsTeach(t *testing.T) {
	r := newRig(t)
	token := r.token(t)
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed.Close()
	for name, c := range map[string]struct{ addr, want string }{
		"nothing there": {closed.Addr().String(), "nothing listens"},
		"not TLS":       {listen(t, func(c net.Conn) { io.WriteString(c, "SSH-2.0-OpenSSH_9.2\r\n") }), "not a join server"},
		"hangs up":      {listen(t, func(net.Conn) {}), "closed the connection"},
		"unknown name":  {"no-such-host.invalid:7069", "the name is unknown"},
		"another answer": {listen(t, func(c net.Conn) {
			s := tls.Server(c, &tls.Config{Certificates: []tls.Certificate{r.folder.identity.cert}})
			io.WriteString(s, "[]\n")
			io.Copy(io.Discard, s)
		}), "no answer that can be read"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, _, err := Exchange(t.Context(), c.addr, token, Request{Machine: "m2"}); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
	if _, _, err := Exchange(t.Context(), r.addr, token, Request{Machine: "m2\nlevel=ERROR"}); err == nil ||
		!strings.Contains(err.Error(), "the name of the machine") {
		t.Errorf("a name with a line break: %v", err)
	}
	g := &Grant{Seen: "10.0.0.2", Time: time.Now()}
	if err := reachable(g, "10.0.0.2", g.Time); err != nil {
		t.Error(err)
	}
	for want, err := range map[string]error{
		"reaches the first machine from 10.0.0.2": reachable(g, "192.168.0.2", g.Time),
		"clock of this machine differs":           reachable(g, "10.0.0.2", g.Time.Add(3*time.Hour)),
		"clock of this machine":                   reachable(g, "10.0.0.2", g.Time.Add(-3*time.Hour)),
		"cannot connect back to 10.0.0.2, TCP p": reachable(&Grant{Seen: "10.0.0.2", Time: g.Time, Closed: []string{"7070 (no answer)"}},
			"10.0.0.2", g.Time),
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	if closed := dialBack(t.Context(), netip.MustParseAddr("127.0.0.1"), []int{closed.Addr().(*net.TCPAddr).Port}); len(closed) != 1 ||
		!strings.Contains(closed[0], "connection refused") {
		t.Errorf("a closed port: %v", closed)
	}
}

// TestBusyServer: a source with too many connections is turned away, and others are not.
func TestBusyServer(t *testing.T) {
	var l limiter
	a, b := source(netip.MustParseAddr("10.0.0.1")), source(netip.MustParseAddr("10.0.0.2"))
	for range mostOfSource {
		if !l.enter(a) {
			t.Fatal("turned away early")
		}
	}
	if l.enter(a) || !l.enter(b) {
		t.Error("one source's connections are not bounded, or another's are")
	}
	l.leave(a)
	if !l.enter(a) {
		t.Error("a connection that ended still counts")
	}
	for i := range 2 * mostAtOnce {
		l.enter(source(netip.AddrFrom4([4]byte{10, 1, 0, byte(i)})))
	}
	if l.total != mostAtOnce {
		t.Errorf("%d connections, want at most %d", l.total, mostAtOnce)
	}
	now := time.Now()
	for i := range 3 * mostSources {
		l.failed(source(netip.AddrFrom4([4]byte{10, 2, byte(i >> 8), byte(i)})), now)
	}
	if len(l.fails) > mostSources {
		t.Errorf("%d sources are remembered", len(l.fails))
	}
	for range failBurst {
		l.failed(b, now)
	}
	if !l.blocked(b, now) || l.blocked(b, now.Add(failEvery)) {
		t.Error("attempts do not come back after a while")
	}
	if x, y := source(netip.MustParseAddr("2001:db8::1")), source(netip.MustParseAddr("2001:db8::2")); x != y {
		t.Error("one network of IPv6 counts as two sources")
	}
	if source(netip.MustParseAddr("::ffff:10.0.0.1")) != a {
		t.Error("an IPv4 address in IPv6 is another source")
	}
}

func TestTokenText(t *testing.T) {
	token := newToken(Pin{1, 2, 3})
	text := token.Text()
	got, err := ParseToken("  " + text + "\n")
	if err != nil || got != token {
		t.Fatalf("read back %v: %v", got, err)
	}
	for i := range text {
		bad := []byte(text)
		bad[i] ^= 1
		if _, err := ParseToken(string(bad)); !errors.Is(err, ErrTokenFormat) {
			t.Errorf("character %d changed: %v", i, err)
		} else if strings.Contains(err.Error(), text[20:30]) {
			t.Errorf("the error repeats the token: %v", err)
		}
	}
}

func FuzzParseToken(f *testing.F) {
	f.Add(newToken(Pin{}).Text())
	f.Add(tokenPrefix + "AAAA")
	f.Fuzz(func(t *testing.T, text string) {
		token, err := ParseToken(text)
		if err == nil && token.Text() != strings.TrimSpace(text) {
			t.Errorf("two texts for one token: %q", text)
		}
	})
}

// TestIdentityStays: a restart keeps the fingerprint, and a damaged file is named.
func TestIdentityStays(t *testing.T) {
	dir := t.TempDir()
	a, err := OpenFolder(dir, true)
	if err != nil {
		t.Fatal(err)
	}
	b, err := OpenFolder(dir, false)
	if err != nil || a.Pin() != b.Pin() || a.Pin() == (Pin{}) {
		t.Errorf("%v: %s, then %s", err, a.Pin().Short(), b.Pin().Short())
	}
	if _, err := OpenFolder(filepath.Join(dir, "none"), false); err == nil || !strings.Contains(err.Error(), "shoal up --cluster") {
		t.Errorf("a folder that is not there: %v", err)
	}
	path := filepath.Join(dir, "identity.pem")
	if err := os.WriteFile(path, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenFolder(dir, false); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("a damaged identity: %v", err)
	}
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenFolder(dir, false); err == nil || !strings.Contains(err.Error(), "chmod 600") {
		t.Errorf("an identity that others can read: %v", err)
	}
}
