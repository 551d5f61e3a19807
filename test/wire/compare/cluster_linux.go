package compare

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/shoal-llm/shoal/test/wire/host"
	"github.com/shoal-llm/shoal/test/wire/topology"
)

// Build is one program to measure.
type Build struct{ Name, Path string }

// running is a cluster of one build: a coordinator on the first host of a topology, a node on each
// other one.
type running struct {
	Build
	top     *topology.Topology
	api     string
	client  *http.Client
	dir     string
	mapping string // that the cluster has chosen
	procs   []*exec.Cmd
}

// clusterOptions are the settings of a cluster.
type clusterOptions struct {
	Model   string
	Quant   string
	Memory  string
	Threads int
	Place   int // number of this cluster among those on the same hosts, which determines its ports
}

// apiPort is where the API listens within the coordinator's host, where it needs no key.
const apiPort = 8080

// startCluster starts the processes. The caller stops the result, also after an error.
func startCluster(ctx context.Context, b Build, top *topology.Topology, o clusterOptions) (*running, error) {
	r := &running{Build: b, top: top, api: "http://127.0.0.1:" + strconv.Itoa(apiPort+o.Place), client: clientOn(top.Hosts[0].Name)}
	var err error
	if r.dir, err = os.MkdirTemp("", "wire-compare-"); err != nil {
		return r, err
	}
	key := filepath.Join(r.dir, "key")
	if out, err := exec.CommandContext(ctx, b.Path, "keygen", "-o", key).CombinedOutput(); err != nil {
		return r, fmt.Errorf("%s keygen: %w: %s", b.Name, err, out)
	}
	var shares []string // measurements of processes that start together differ, and so would the builds
	for i := 1; i < len(top.Hosts); i++ {
		shares = append(shares, fmt.Sprintf("m%d=1", i))
	}
	port := 7070 + 10*o.Place
	bind := func(host int) string { return net.JoinHostPort(top.Hosts[host].Address.String(), strconv.Itoa(port)) }
	err = r.start(0, "coordinator", "--bind", bind(0), "--cluster-key", key, "--listen", r.api[len("http://"):],
		"--nodes", strconv.Itoa(len(top.Hosts)-1), "--model", o.Model, "--quant", o.Quant, "--shares", strings.Join(shares, ","),
		"--speculate", "off", "--prefix-cache", "off",
		"--step-deadline", "1m", "--sync-deadline", "30s", "--load-deadline", "3m")
	if err != nil {
		return r, err
	}
	for i := 1; i < len(top.Hosts); i++ {
		err := r.start(i, "node", "--id", fmt.Sprint("m", i), "--join", bind(0), "--bind", bind(i), "--cluster-key", key,
			"--model", o.Model, "--kv-memory", o.Memory, "--threads", strconv.Itoa(o.Threads), "--weights-cache", o.Model+"-"+b.Name)
		if err != nil {
			return r, err
		}
	}
	return r, nil
}

// start starts one process on a host.
func (r *running) start(at int, args ...string) error {
	name := r.top.Hosts[at].Name
	home := filepath.Join(r.dir, name)
	if err := os.MkdirAll(home, 0o700); err != nil {
		return err
	}
	log, err := os.Create(home + ".log")
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(r.Path, args...)
	cmd.Env = append(os.Environ(), "XDG_STATE_HOME="+home, "XDG_CACHE_HOME="+home)
	cmd.Stdout, cmd.Stderr = log, log
	if err := host.In(name, cmd.Start); err != nil { // a child has the namespace of the thread that starts it
		return fmt.Errorf("%s on %s: %w", r.Name, name, err)
	}
	r.procs = append(r.procs, cmd)
	return nil
}

// wait waits until the cluster serves.
func (r *running) wait(ctx context.Context) error {
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, r.api+"/ready", http.NoBody)
		if err != nil {
			return err
		}
		if a, err := r.client.Do(req); err == nil {
			a.Body.Close()
			if a.StatusCode == http.StatusOK {
				return r.readState(ctx)
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s does not serve: %w; the logs end with:\n%s", r.Name, context.Cause(ctx), r.logs())
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// readState reads the mapping.
func (r *running) readState(ctx context.Context) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, r.api+"/v1/cluster", http.NoBody)
	if err != nil {
		return err
	}
	a, err := r.client.Do(req)
	if err != nil {
		return fmt.Errorf("%s: %w", r.Name, err)
	}
	defer a.Body.Close()
	var state struct{ Mapping string }
	if err := json.NewDecoder(io.LimitReader(a.Body, 1<<20)).Decode(&state); err != nil {
		return fmt.Errorf("%s: /v1/cluster: %w", r.Name, err)
	}
	r.mapping = state.Mapping
	return nil
}

// logs returns the end of every log.
func (r *running) logs() (text string) {
	files, _ := filepath.Glob(filepath.Join(r.dir, "*.log"))
	for _, f := range files {
		if b, err := os.ReadFile(f); err == nil {
			text += filepath.Base(f) + ": " + string(b[max(0, len(b)-600):]) + "\n"
		}
	}
	return text
}

// stop ends the processes and removes their files.
func (r *running) stop() error {
	var err error
	for _, p := range r.procs {
		_ = p.Process.Kill() // it may have ended
	}
	for _, p := range r.procs {
		var exit *exec.ExitError
		if e := p.Wait(); e != nil && !errors.As(e, &exit) {
			err = errors.Join(err, e)
		}
	}
	return errors.Join(err, os.RemoveAll(r.dir))
}
