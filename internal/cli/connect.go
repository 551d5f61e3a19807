package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"time"

	"github.com/shoal-llm/shoal/client"
	"github.com/shoal-llm/shoal/cluster"
	"github.com/shoal-llm/shoal/internal/engine/model"
	"github.com/shoal-llm/shoal/internal/hub/layout"
)

// startFlags are flags of commands that start their own cluster when no server has the model.
type startFlags struct {
	Quant quantType `env:"SHOAL_QUANT" placeholder:"TYPE" help:"If this command starts MODEL: type of the weights in memory, as for shoal up; auto chooses the largest that fits."`
	Nodes int       `env:"SHOAL_START_NODES" default:"1" help:"If this command starts MODEL: number of node processes."`
}

// localCheckpoint returns the path of the checkpoint on disk that word names: a path, a model
// that comes with the program, or a pulled model. It returns "" if word names none.
func localCheckpoint(word string) string {
	if isCheckpoint(word) {
		if at, err := layout.Locate(word); err == nil {
			word = at // a server reports this path as the root of its model
		}
		if abs, err := filepath.Abs(word); err == nil {
			return abs
		}
		return word
	}
	if filepath.Base(word) == word && word != "." && word != ".." {
		return findBundled(filepath.Join("models", word))
	}
	return pulled(word)
}

// connect returns a client for a checkpoint. It uses the server of f if that serves the
// checkpoint, and otherwise starts a cluster, which end stops. With checkpoint "" it always
// uses the server of f.
func (s *startFlags) connect(e *env, f serverFlags, checkpoint string) (_ *client.Client, end func(), err error) {
	c := f.client()
	if checkpoint == "" {
		return waitUntilReady(c, e.stderr), func() {}, nil
	}
	other, ok := serverHasCheckpoint(e, c, checkpoint)
	if ok {
		return waitUntilReady(c, e.stderr), func() {}, nil
	}
	if other == "" {
		other = "nothing"
	}
	fmt.Fprintf(e.stderr, "%s serves %s; %s is started for this command, on %s\n", c.URL(), other, layout.NameOf(checkpoint), plural(s.Nodes, "node"))
	up, err := s.up(e, checkpoint)
	if err != nil {
		return nil, nil, err
	}
	serve, err := up.prepare(e)
	if err != nil {
		return nil, nil, err
	}
	l, err := up.startPrivate(e, serve)
	if err != nil {
		return nil, nil, err
	}
	if err := l.waitReady(e); err != nil {
		l.stop()
		return nil, nil, err
	}
	addr, unserve, err := l.serve(e.ctx)
	if err != nil {
		l.stop()
		return nil, nil, err
	}
	return waitUntilReady(&client.Client{Server: addr}, e.stderr), func() { unserve(); l.stop() }, nil
}

// up returns the `shoal up` command for a checkpoint. Its other flags come from the environment,
// the config file and the defaults.
func (s *startFlags) up(e *env, checkpoint string) (*upCmd, error) {
	var c commands
	p, err := parser(&c, &env{ctx: e.ctx, stdout: io.Discard, stderr: io.Discard}, func(int) {})
	if err != nil {
		return nil, err
	}
	args := []string{"up", "--model", checkpoint, "--nodes", fmt.Sprint(s.Nodes), "--listen", "127.0.0.1:0", "--log-level", "error"}
	if s.Quant != "" {
		args = append(args, "--quant", string(s.Quant))
	}
	if _, err := p.Parse(args); err != nil {
		return nil, err
	}
	c.Up.noJobs, c.Up.Standby, c.Up.DataDir, c.Up.APIKey, c.Up.networkFlags = true, false, "", nil, networkFlags{} // only this command uses the cluster
	return &c.Up, nil
}

// serverHasCheckpoint reports whether the server serves a checkpoint. If not, other is the model
// that it serves, or "" if no server answers.
func serverHasCheckpoint(e *env, c *client.Client, checkpoint string) (other string, yes bool) {
	models, err := modelsOf(e.ctx, c)
	switch {
	case err != nil:
		return "", false
	case len(models) == 0:
		return "something else", false
	}
	root := checkpoint
	if model.IsLoRA(checkpoint) { // a server reports the folder of the merged weights
		if dir, err := merged(e, checkpoint); err == nil {
			root = dir
		}
	}
	return models[0].ID, slices.ContainsFunc(models, func(m modelOf) bool { return m.Root == root })
}

// serverHasModel reports whether the server serves a model with this name.
func serverHasModel(ctx context.Context, c *client.Client, name string) bool {
	models, err := modelsOf(ctx, c)
	return err == nil && slices.ContainsFunc(models, func(m modelOf) bool { return m.ID == name })
}

// modelOf is an entry of /v1/models.
type modelOf struct{ ID, Root string }

// modelsOf lists the models of a server. It fails if the server does not answer.
func modelsOf(ctx context.Context, c *client.Client) ([]modelOf, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	resp, err := c.Do(ctx, http.MethodGet, "/v1/models", nil)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	var list struct{ Data []modelOf }
	_ = json.NewDecoder(io.LimitReader(resp.Body, 1<<20)).Decode(&list) // a server of another kind has no models
	return list.Data, nil
}

// serve starts the API on a free loopback port; end stops it.
func (l *localCluster) serve(ctx context.Context) (addr string, end func(), err error) {
	srv, err := cluster.NewAPI(l.coordinator, l.coordinator.Checkpoint(), l.coordinator.ServeConfig(), cluster.APIConfig{Version: cluster.Build(), Logger: l.log})
	if err != nil {
		return "", nil, err
	}
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	served := make(chan error, 1)
	go func() { served <- srv.Serve(ctx, lis) }()
	return lis.Addr().String(), func() {
		cancel()
		if err := <-served; err != nil {
			l.log.Error("API did not stop cleanly", "error", err)
		}
	}, nil
}
