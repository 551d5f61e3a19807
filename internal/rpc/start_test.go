package rpc

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/asynkron/protoactor-go/actor"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/shoal-llm/shoal/internal/proto"
	"github.com/shoal-llm/shoal/internal/security"
	"github.com/shoal-llm/shoal/internal/testutil"
)

func itoa(n int) string { return strconv.Itoa(n) }

func TestPortTaken(t *testing.T) {
	p := spawn(t, "127.0.0.1:0", "far", 1)
	_, err := Start(Config{ID: "second", Bind: p.address, Logger: quiet()})
	wantErr(t, err, ErrAddressTaken)
	if !strings.Contains(err.Error(), p.address) {
		t.Errorf("error %q does not name the address", err)
	}
}

func TestConfig(t *testing.T) {
	for name, c := range map[string]Config{
		"no id":           {Bind: "127.0.0.1:0"},
		"bad id":          {ID: "a b", Bind: "127.0.0.1:0"},
		"no bind":         {ID: "a"},
		"bad port":        {ID: "a", Bind: "127.0.0.1:http"},
		"every interface": {ID: "a", Bind: "0.0.0.0:0"},
		"not ours":        {ID: "a", Bind: "192.0.2.1:0"},
		"negative":        {ID: "a", Bind: "127.0.0.1:0", MailboxLimit: -1},
	} {
		c.Logger = quiet()
		if s, err := Start(c); err == nil {
			s.Close()
			t.Errorf("%s: started", name)
		} else {
			t.Logf("%s: %v", name, err)
		}
	}
	c := Config{Bind: "0.0.0.0:0", Advertise: "10.1.2.3"}
	if a, err := c.advertised(77); err != nil || a != "10.1.2.3:77" {
		t.Errorf("advertised %q, %v", a, err)
	}
	c = Config{Bind: "[::1]:0"}
	if a, err := c.advertised(77); err != nil || a != "[::1]:77" {
		t.Errorf("advertised %q, %v", a, err)
	}
}

// After Close, Proto.Actor leaves data but no goroutines, once the throttle of its dead letters has
// finished its one-second sleep.
func TestCloseLeavesNothing(t *testing.T) {
	if !isolate(t) {
		return
	}
	before := goleak.IgnoreCurrent()
	p := spawn(t, "127.0.0.1:0", "far", 1)
	s := system(t)
	if err := spawnEcho(s); err != nil {
		t.Fatal(err)
	}
	mustSay(t, s, p.address, "hello")
	mustSay(t, s, s.Address(), "to myself")
	watching(t, s, p.address)
	// An endpoint that cannot connect used to keep sleeping after Close.
	s.Actors().Root.Send(actor.NewPID(freePort(t), "echo"), &proto.Envelope{})
	if err := errors.Join(s.Close(), s.Close()); err != nil {
		t.Error(err)
	}
	p.stdin.Close()
	p.cmd.Wait()
	testutil.Eventually(t, patience, "all goroutines end", func() (bool, string) {
		err := goleak.Find(before)
		return err == nil, fmt.Sprint(err)
	})
	wantErr(t, s.Call(context.Background(), s.PID(p.address, "echo"), kindEcho, nil, nil), ErrClosed)
	if _, err := s.Spawn("late", actor.PropsFromFunc(func(actor.Context) {})); !errors.Is(err, ErrClosed) {
		t.Errorf("spawn after close: %v", err)
	}
}

func TestFullMailbox(t *testing.T) {
	if !isolate(t) {
		return
	}
	s := system(t, func(c *Config) { c.MailboxLimit = 4 })
	release := make(chan struct{})
	m := NewMux(s)
	Handle(m, kindEcho, func(c *Ctx, v *wrapperspb.StringValue) { <-release; c.Reply(v) })
	if _, err := s.Spawn("echo", actor.PropsFromFunc(func(c actor.Context) { m.Receive(c) })); err != nil {
		t.Fatal(err)
	}
	for i := range 5 { // one in the handler, four queued
		if err := s.Send(deadline(t, patience), s.PID(s.Address(), "echo"), kindEcho, wrapperspb.String("x")); err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			v, _ := s.boxes.Load("echo")
			testutil.Eventually(t, patience, "the handler takes the first message", func() (bool, string) {
				n := v.(*box).waiting.Load()
				return n == 0, fmt.Sprint(n, " messages wait")
			})
		}
	}
	_, err := say(s, deadline(t, patience), s.Address(), kindEcho, "one too many")
	wantErr(t, err, ErrBusy)
	close(release)
	got, err := say(s, deadline(t, patience), s.Address(), kindEcho, "later", Idempotent(0))
	if err != nil || got != "later" {
		t.Errorf("%q, %v", got, err)
	}
}

func TestMutualTLS(t *testing.T) {
	key, other := security.NewKey(), security.NewKey()
	with := func(k security.Key, role security.Role) func(*Config) {
		return func(c *Config) {
			if err := secure(c, k.Text(), role); err != nil {
				t.Fatal(err)
			}
		}
	}
	secured := spawn(t, "127.0.0.1:0", "far", 1, keyEnv+"="+key.Text(), roleEnv+"=node")
	plain := spawn(t, "127.0.0.1:0", "plain", 1)

	t.Run("same key", func(t *testing.T) {
		if !isolate(t) {
			return
		}
		s := system(t, with(key, security.RoleCoordinator))
		mustSay(t, s, secured.address, "secret")
		ch := watching(t, s, secured.address)
		select {
		case d := <-ch:
			t.Errorf("down: %s", d.Reason)
		default:
		}
		_, err := say(s, deadline(t, patience), plain.address, kindEcho, "x", Idempotent(0))
		wantErr(t, err, security.ErrPlaintext)
		t.Log(err)
	})
	for name, c := range map[string]struct {
		change func(*Config)
		want   error
	}{
		"other key": {with(other, security.RoleCoordinator), security.ErrWrongKey},
		"no key":    {func(*Config) {}, security.ErrPlaintext},
		"role":      {with(key, security.RoleClient), security.ErrRefused},
	} {
		t.Run(name, func(t *testing.T) {
			if !isolate(t) {
				return
			}
			s := system(t, c.change)
			_, err := say(s, deadline(t, patience), secured.address, kindEcho, "x", Idempotent(0))
			wantErr(t, err, c.want)
			if errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("a refused request was retried until the deadline: %v", err)
			}
			t.Log(err)
		})
	}
	t.Run("wrong id", func(t *testing.T) {
		c := Config{ID: "me", Bind: "127.0.0.1:0", Logger: quiet()}
		with(key, security.RoleNode)(&c)
		c.ID = "somebody-else"
		_, err := Start(c)
		wantErr(t, err, ErrIdentity)
	})
}
