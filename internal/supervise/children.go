// Package supervise runs the node processes of a local cluster and stops them when it ends.
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

	"github.com/shoal-llm/shoal/internal/engine/tensor/kernel"
	"github.com/shoal-llm/shoal/internal/security"
)

// Children holds the node processes of a local cluster: this program, started with other arguments.
// Each has the read end of a pipe and exits when the parent ends in any way. Another pipe holds the
// cluster key, so that only children receive it.
type Children struct {
	// KeyFile is the file with the cluster key, if any. The processes read it, and read it again on
	// SIGHUP.
	KeyFile string

	key  security.Key
	log  *slog.Logger
	mu   sync.Mutex
	list []*child // that run
	stop bool
	wait sync.WaitGroup
}

type child struct {
	id   string
	cmd  *exec.Cmd
	pipe io.WriteCloser
	tail lastLines
}

type Child struct {
	ID     string
	Args   []string
	Env    []string   // added to this process's environment, from which settings are removed
	Files  []*os.File // the child's descriptors from 3 on
	CPUs   []int      // the only CPUs that it may use; empty: those of this process
	Stderr io.Writer
	Log    string          // file that Stderr writes to; "": none
	Exited func(err error) // called when the process ends unrequested
}

// New returns an empty set of processes of one cluster. log receives the last lines of a failed
// process.
func New(key security.Key, log *slog.Logger) *Children {
	return &Children{key: key, log: log}
}

// Start starts another process.
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
		defer key.Close() // the child has its own copy
		files, args = append(files, key), append(slices.Clip(x.Args), "--cluster-key-fd", strconv.Itoa(3+len(x.Files)))
	}
	k := &child{id: id, cmd: exec.Command(self, args...)}
	k.cmd.Env = append(childEnv(os.Environ()), x.Env...)
	k.cmd.ExtraFiles = files
	k.cmd.SysProcAttr = ownGroup()
	if k.pipe, err = k.cmd.StdinPipe(); err != nil {
		return err
	}
	k.cmd.Stderr = &output{tail: &k.tail, to: x.Stderr, id: id, file: x.Log, log: c.log}
	k.cmd.WaitDelay = outputDelay
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stop {
		return errors.New("supervise: the local cluster is stopping")
	}
	if err := coarseTimers(func() error { return onCPUs(x.CPUs, k.cmd.Start) }); err != nil {
		return fmt.Errorf("supervise: %s did not start: %w", id, err)
	}
	c.list = append(c.list, k)
	c.wait.Go(func() {
		err := k.cmd.Wait()
		c.mu.Lock()
		stopping := c.stop
		c.list = slices.DeleteFunc(c.list, func(x *child) bool { return x == k }) // a coordinator may be restarted many times
		c.mu.Unlock()
		if !stopping {
			c.log.Error("a process ended", exitAttrs(id, k.cmd.Process.Pid, err, x.Log, k.tail.String())...)
			x.Exited(err)
		}
	})
	return nil
}

// exitAttrs returns the log attributes of a process that ended unrequested: how it ended, the path of
// its log, and its last line. A killed process had no time to write one.
func exitAttrs(id string, pid int, err error, file, tail string) []any {
	attrs := []any{"id", id, "pid", pid, "how", howEnded(err)}
	if file == "" {
		file = "none kept; --log-dir DIR keeps it"
	}
	attrs = append(attrs, "log", file)
	var failed *exec.ExitError
	if killed := errors.As(err, &failed) && !failed.Exited(); killed {
		return attrs
	}
	if line := exitReason(tail); line != "" {
		attrs = append(attrs, "last", line)
	}
	return attrs
}

// howEnded describes how a process ended.
func howEnded(err error) string {
	if err == nil {
		return "exit status 0"
	}
	return err.Error()
}

// exitReason returns the line of a log that explains why its process ended: the first line of a
// panic, else the last line, cut to 300 bytes.
func exitReason(tail string) string {
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

// childEnv removes this program's settings from an environment. The arguments have everything that
// a child needs. It would mistake settings of the parent (cluster key, list of shares) for its own.
func childEnv(env []string) []string {
	return slices.DeleteFunc(env, func(v string) bool {
		name, _, _ := strings.Cut(v, "=")
		return strings.HasPrefix(name, "SHOAL_") && name != kernel.EnvCPU
	})
}

// PIDs returns the process ids of the running processes, by node id.
func (c *Children) PIDs() map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := map[string]int{}
	for _, k := range c.list {
		out[k.id] = k.cmd.Process.Pid
	}
	return out
}

// Signal sends a signal to every process.
func (c *Children) Signal(s os.Signal) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, k := range c.list {
		_ = k.cmd.Process.Signal(s) // fails only for a process that has just ended
	}
}

// Drain asks every process to drain and exit, and waits for at most limit. Call Stop afterwards.
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

// Stop asks every process to exit, and kills those left after grace.
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

// WithParent returns a context that ends when standard input, the parent's pipe, closes. A child of
// Children runs under it.
func WithParent(ctx context.Context, stdin io.Reader) context.Context {
	ctx, cancel := context.WithCancelCause(ctx)
	go func() { // ends with the process at the latest, since a pipe read has no deadline
		_, _ = io.Copy(io.Discard, bufio.NewReader(stdin))
		cancel(errors.New("supervise: the parent process has ended"))
	}()
	return ctx
}

// outputDelay is how long Wait reads the output of a process that has ended. Another process may have inherited the
// pipe, and keep it open.
const outputDelay = 2 * time.Second

// output receives the standard error of a process. A write never fails: exec.Cmd would close the pipe after an error,
// and the next line would end the process with SIGPIPE. While the file cannot be written, for example because its disk
// is full, lines are dropped.
type output struct {
	tail   *lastLines
	to     io.Writer
	id     string
	file   string // for the log; "": none
	log    *slog.Logger
	failed bool // the last write failed
}

func (o *output) Write(p []byte) (int, error) {
	_, _ = o.tail.Write(p)
	_, err := o.to.Write(p)
	if err != nil && !o.failed {
		o.log.Warn("the log of a process cannot be written, and lines are dropped", "id", o.id, "log", o.file, "error", err)
	}
	o.failed = err != nil
	return len(p), nil
}

// lastLines keeps the end of a process's output.
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

// Alive returns the number of running processes.
func (c *Children) Alive() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.list)
}
