package rpc

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/shoal-llm/shoal/internal/security"
	"github.com/shoal-llm/shoal/internal/sys/fixedport"
	"github.com/shoal-llm/shoal/internal/testutil"
)

// Tests use real processes: the test binary runs itself with childEnv set.
const (
	childEnv = "SHOAL_RPC_TEST_CHILD" // "address id incarnation" of the child
	keyEnv   = "SHOAL_RPC_TEST_KEY"
	roleEnv  = "SHOAL_RPC_TEST_ROLE"

	kindEcho    = FirstKind + iota - 3 // 16
	kindSilent                         // 17: never replies
	kindPanic                          // 18
	kindSlow                           // 19: replies after the number of milliseconds in the payload
	kindCount                          // 20: replies with the number of requests received
	kindMissing = 99
)

func TestMain(m *testing.M) {
	if spec := os.Getenv(childEnv); spec != "" {
		if err := child(spec); err != nil {
			fmt.Println("error", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func child(spec string) error {
	var address, id string
	var incarnation uint64
	if _, err := fmt.Sscan(spec, &address, &id, &incarnation); err != nil {
		return err
	}
	cfg := Config{ID: id, Role: "node", Bind: address, Incarnation: incarnation, Logger: quiet(),
		ConnectTimeout: patience, ProbeTimeout: patience}
	if text := os.Getenv(keyEnv); text != "" {
		if err := secure(&cfg, text, security.Role(os.Getenv(roleEnv))); err != nil {
			return err
		}
	}
	s, err := Start(cfg)
	if err != nil {
		return err
	}
	if err := spawnEcho(s); err != nil {
		return err
	}
	fmt.Println("address", s.Address())
	io.Copy(io.Discard, os.Stdin)
	return s.Close()
}

func secure(cfg *Config, text string, role security.Role) error {
	key, err := security.ParseKey(text)
	if err != nil {
		return err
	}
	cfg.Role = string(role)
	cfg.ServerTLS, cfg.ClientTLS, err = key.TLS(security.Identity{Role: role, ID: cfg.ID}, security.RoleNode, security.RoleCoordinator)
	return err
}

type echo struct {
	mux   *Mux
	count int
}

func (e *echo) Receive(c actor.Context) { e.mux.Receive(c) }

func spawnEcho(s *System) error {
	e := &echo{mux: NewMux(s)}
	Handle(e.mux, kindEcho, func(c *Ctx, m *wrapperspb.StringValue) { e.count++; c.Reply(m) })
	Handle(e.mux, kindSilent, func(c *Ctx, m *wrapperspb.StringValue) { e.count++ })
	Handle(e.mux, kindPanic, func(c *Ctx, m *wrapperspb.StringValue) { panic(m.Value) })
	Handle(e.mux, kindSlow, func(c *Ctx, m *wrapperspb.StringValue) {
		ms, _ := strconv.Atoi(m.Value)
		time.AfterFunc(time.Duration(ms)*time.Millisecond, func() { c.Reply(m) })
	})
	Handle(e.mux, kindCount, func(c *Ctx, m *wrapperspb.StringValue) { c.Reply(wrapperspb.String(strconv.Itoa(e.count))) })
	_, err := s.Spawn("echo", actor.PropsFromProducer(func() actor.Actor { return e }))
	return err
}

// patience is the deadline of every wait and of every attempt to reach a live process. It allows
// for a heavily loaded machine.
const patience = time.Minute

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

func (p *process) kill() {
	p.cmd.Process.Signal(syscall.SIGKILL)
	p.cmd.Wait()
}

// freeze stops the process and returns when every thread has stopped. The signal takes time, during
// which the process still answers.
func (p *process) freeze(t *testing.T) {
	t.Helper()
	p.cmd.Process.Signal(syscall.SIGSTOP)
	testutil.Eventually(t, patience, "every thread of the child stops", func() (bool, string) {
		threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", p.cmd.Process.Pid))
		stopped := 0
		for _, f := range threads {
			if b, err := os.ReadFile(f); err == nil && strings.Contains(string(b), ") T ") {
				stopped++
			}
		}
		return len(threads) > 0 && stopped == len(threads), fmt.Sprintf("%d of %d threads stopped", stopped, len(threads))
	})
}

func spawn(t *testing.T, address, id string, incarnation uint64, env ...string) *process {
	t.Helper()
	p, err := spawnErr(t, address, id, incarnation, env...)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func spawnErr(t *testing.T, address, id string, incarnation uint64, env ...string) (*process, error) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(append(os.Environ(), fmt.Sprintf("%s=%s %s %d", childEnv, address, id, incarnation), "GORACE=atexit_sleep_ms=0"), env...)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &process{cmd: cmd, stdin: in}
	t.Cleanup(func() { in.Close(); cmd.Process.Kill(); cmd.Wait() })
	line, err := bufio.NewReader(out).ReadString('\n')
	what, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
	if err != nil || what != "address" {
		return nil, fmt.Errorf("the child wrote %q, %v", line, err)
	}
	p.address = rest
	return p, nil
}

func system(t *testing.T, change ...func(*Config)) *System {
	t.Helper()
	cfg := Config{ID: "tester", Role: "coordinator", Bind: "127.0.0.1:0", Logger: quiet(), ConnectTimeout: patience, ProbeTimeout: patience}
	for _, f := range change {
		f(&cfg)
	}
	s, err := Start(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func deadline(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

func say(s *System, ctx context.Context, address string, kind uint32, text string, opts ...Option) (string, error) {
	var reply wrapperspb.StringValue
	err := s.Call(ctx, s.PID(address, "echo"), kind, wrapperspb.String(text), &reply, opts...)
	return reply.Value, err
}

func mustSay(t *testing.T, s *System, address, text string) {
	t.Helper()
	got, err := say(s, deadline(t, patience), address, kindEcho, text)
	if err != nil || got != text {
		t.Fatalf("echo of %q: %q, %v", text, got, err)
	}
}

func wantErr(t *testing.T, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Fatalf("got error %v, want %v", err, want)
	}
}

func freePort(t *testing.T) string {
	t.Helper()
	l, err := fixedport.Listen("127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}
