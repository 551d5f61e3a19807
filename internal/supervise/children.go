// Package supervise runs the node processes of a local cluster and ends them with it.
package supervise

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/internal/security"
)

// Children are the node processes of a local cluster: this same program, run
// again with other arguments. Each holds the read end of a pipe and ends when
// the parent is gone, however the parent died. Another one has the cluster's key in it:
// who did not come from here does not get it.
type Children struct {
	// KeyFile, when set, is where the key stands: the processes read it there, and again
	// on SIGHUP.
	KeyFile string

	key  security.Key
	log  *slog.Logger
	mu   sync.Mutex
	list []*child
	stop bool
	wait sync.WaitGroup
}

type child struct {
	id   string
	cmd  *exec.Cmd
	pipe io.WriteCloser
	tail lastLines

	ended bool // guarded by Children.mu
}

type Child struct {
	ID     string
	Args   []string
	Env    []string   // more than this process's, without its settings
	Files  []*os.File // its descriptors from 3 on
	Stderr io.Writer
	Log    string          // file that Stderr writes; "": none
	Exited func(err error) // told when it ends by itself
}

// New prepares a set of processes of one cluster; log takes their last words.
func New(key security.Key, log *slog.Logger) *Children {
	return &Children{key: key, log: log}
}

// Start runs one more process.
func (c *Children) Start(x Child) error {
	id := x.ID
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("supervise: cannot find this program to run it again: %w", err)
	}
	files, args := slices.Clip(x.Files), append(slices.Clip(x.Args), "--cluster-key", c.KeyFile)
	if c.KeyFile == "" {
		key, err := security.KeyPipe(c.key)
		if err != nil {
			return err
		}
		defer key.Close() // the process has its own
		files, args = append(files, key), append(slices.Clip(x.Args), "--cluster-key-fd", strconv.Itoa(3+len(x.Files)))
	}
	k := &child{id: id, cmd: exec.Command(self, args...)}
	k.cmd.Env = append(childEnv(os.Environ()), x.Env...)
	k.cmd.ExtraFiles = files
	k.cmd.SysProcAttr = ownGroup()
	if k.pipe, err = k.cmd.StdinPipe(); err != nil {
		return err
	}
	k.cmd.Stderr = io.MultiWriter(x.Stderr, &k.tail)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stop {
		return errors.New("supervise: the local cluster is stopping")
	}
	if err := coarseTimers(k.cmd.Start); err != nil {
		return fmt.Errorf("supervise: %s did not start: %w", id, err)
	}
	c.list = append(c.list, k)
	c.wait.Go(func() {
		err := k.cmd.Wait()
		c.mu.Lock()
		stopping := c.stop
		k.ended = true
		c.mu.Unlock()
		if !stopping {
			c.log.Error("a process ended", ending(id, k.cmd.Process.Pid, err, x.Log, k.tail.String())...)
			x.Exited(err)
		}
	})
	return nil
}

// ending is what the log says of a process that ended by itself: how, where its log is, and
// the line that tells why. A process that was killed has had no time to write one.
func ending(id string, pid int, err error, file, tail string) []any {
	attrs := []any{"id", id, "pid", pid, "how", howEnded(err)}
	if file == "" {
		file = "none kept; --log-dir DIR keeps it"
	}
	attrs = append(attrs, "log", file)
	var failed *exec.ExitError
	if killed := errors.As(err, &failed) && !failed.Exited(); killed {
		return attrs
	}
	if line := lastWords(tail); line != "" {
		attrs = append(attrs, "last", line)
	}
	return attrs
}

// howEnded names the way in which a process ended.
func howEnded(err error) string {
	if err == nil {
		return "exit status 0"
	}
	return err.Error()
}

// lastWords is the line of a log that tells why its process ended: of a panic the first one,
// else the last one, cut to 300 bytes.
func lastWords(tail string) string {
	last := ""
	for line := range strings.Lines(tail) {
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		last = line
		if strings.HasPrefix(line, "panic: ") || strings.HasPrefix(line, "fatal error: ") {
			break
		}
	}
	return strings.ToValidUTF8(last[:min(len(last), 300)], "")
}

// childEnv leaves out the settings of this program: args say everything that a
// child needs, and what was meant for the parent (a cluster key, a list of shares)
// would be taken for its own.
func childEnv(env []string) []string {
	return slices.DeleteFunc(env, func(v string) bool {
		name, _, _ := strings.Cut(v, "=")
		return strings.HasPrefix(name, "SHOAL_") && name != tensor.EnvCPU
	})
}

// PIDs lists the processes by id.
func (c *Children) PIDs() map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := map[string]int{}
	for _, k := range c.list {
		out[k.id] = k.cmd.Process.Pid
	}
	return out
}

// Signal passes a signal on to every process.
func (c *Children) Signal(s os.Signal) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, k := range c.list {
		_ = k.cmd.Process.Signal(s) // one that has ended needs none
	}
}

// Drain asks every process to end in its own time, and waits for that, at most for
// limit. Stop must follow.
func (c *Children) Drain(limit time.Duration) {
	c.mu.Lock()
	c.stop = true
	for _, k := range c.list {
		_ = k.cmd.Process.Signal(syscall.SIGTERM)
	}
	c.mu.Unlock()
	done := make(chan struct{})
	go func() { c.wait.Wait(); close(done) }() // ends with Stop at the latest
	select {
	case <-done:
	case <-time.After(limit):
	}
}

// Stop asks every process to end, and after grace makes it.
func (c *Children) Stop(grace time.Duration) {
	c.mu.Lock()
	c.stop = true
	for _, k := range c.list {
		k.pipe.Close()
		_ = k.cmd.Process.Signal(syscall.SIGTERM)
	}
	c.mu.Unlock()
	done := make(chan struct{})
	go func() { c.wait.Wait(); close(done) }()
	select {
	case <-done:
		return
	case <-time.After(grace):
	}
	c.mu.Lock()
	for _, k := range c.list {
		_ = k.cmd.Process.Kill()
	}
	c.mu.Unlock()
	<-done
}

// WithParent gives a context that ends when the parent's pipe on standard
// input closes: what a child of Children runs under.
func WithParent(ctx context.Context, stdin io.Reader) context.Context {
	ctx, cancel := context.WithCancelCause(ctx)
	go func() { // ends with the process at the latest: a read of a pipe has no deadline
		_, _ = io.Copy(io.Discard, bufio.NewReader(stdin))
		cancel(errors.New("supervise: the parent process is gone"))
	}()
	return ctx
}

// lastLines keeps the end of what a process wrote.
type lastLines struct {
	mu  sync.Mutex
	buf []byte
}

const tailBytes = 16 << 10

func (l *lastLines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.buf = append(l.buf, p...)
	if extra := len(l.buf) - tailBytes; extra > 0 {
		l.buf = append(l.buf[:0], l.buf[extra:]...)
	}
	return len(p), nil
}

func (l *lastLines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return string(l.buf)
}

// Alive is the number of processes that run.
func (c *Children) Alive() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := 0
	for _, k := range c.list {
		if !k.ended {
			n++
		}
	}
	return n
}
