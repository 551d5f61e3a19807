package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"slices"
	"time"

	"github.com/shoal-llm/shoal/client"
	"github.com/shoal-llm/shoal/internal/cli/launch"
	"github.com/shoal-llm/shoal/internal/cli/models"
	"github.com/shoal-llm/shoal/internal/cli/ui"
	"github.com/shoal-llm/shoal/internal/engine/lora"
	"github.com/shoal-llm/shoal/internal/hub/layout"
)

// startFlags are flags of commands that start their own cluster when no server has the model.
type startFlags struct {
	Quant models.Quant `env:"SHOAL_QUANT" placeholder:"TYPE" help:"If this command starts MODEL: type of the weights in memory, as for shoal up; auto chooses the largest that fits."`
	Nodes int          `env:"SHOAL_START_NODES" default:"1" help:"If this command starts MODEL: number of node processes."`
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
		return models.FindBundled(filepath.Join("models", word))
	}
	return models.Pulled(word)
}

// connect returns a client for a checkpoint. It uses the server of f if that serves the
// checkpoint, and otherwise starts a cluster, which end stops. With checkpoint "" it always
// uses the server of f.
func (s *startFlags) connect(e *ui.Env, f launch.ServerFlags, checkpoint string) (_ *client.Client, end func(), err error) {
	c := f.Client()
	if checkpoint == "" {
		return waitUntilReady(c, e.Stderr), func() {}, nil
	}
	other, ok := serverHasCheckpoint(e, c, checkpoint)
	if ok {
		return waitUntilReady(c, e.Stderr), func() {}, nil
	}
	if other == "" {
		other = "nothing"
	}
	fmt.Fprintf(e.Stderr, "%s serves %s; %s is started for this command, on %s\n", c.URL(), other,
		layout.NameOf(checkpoint), ui.Plural(s.Nodes, "node"))
	up, err := s.up(e, checkpoint)
	if err != nil {
		return nil, nil, err
	}
	serve, err := up.Prepare(e)
	if err != nil {
		return nil, nil, err
	}
	l, err := up.StartPrivate(e, serve)
	if err != nil {
		return nil, nil, err
	}
	if err := l.WaitReady(e); err != nil {
		l.Stop()
		return nil, nil, err
	}
	addr, unserve, err := l.Serve(e.Ctx)
	if err != nil {
		l.Stop()
		return nil, nil, err
	}
	return waitUntilReady(&client.Client{Server: addr}, e.Stderr), func() { unserve(); l.Stop() }, nil
}

// up returns the `shoal up` command for a checkpoint. Its other flags come from the environment,
// the config file and the defaults.
func (s *startFlags) up(e *ui.Env, checkpoint string) (*launch.Up, error) {
	var c commands
	p, err := parser(&c, ui.Quiet(e.Ctx))
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
	// only this command uses the cluster
	c.Up.NoJobs, c.Up.Standby, c.Up.DataDir, c.Up.APIKey, c.Up.NetworkFlags = true, false, "", nil, launch.NetworkFlags{}
	return &c.Up, nil
}

// serverHasCheckpoint reports whether the server serves a checkpoint. If not, other is the model
// that it serves, or "" if no server answers.
func serverHasCheckpoint(e *ui.Env, c *client.Client, checkpoint string) (other string, yes bool) {
	list, err := modelsOf(e.Ctx, c)
	switch {
	case err != nil:
		return "", false
	case len(list) == 0:
		return "something else", false
	}
	root := checkpoint
	if lora.IsFolder(checkpoint) { // a server reports the folder of the merged weights
		if dir, err := models.Merged(e, checkpoint); err == nil {
			root = dir
		}
	}
	return list[0].ID, slices.ContainsFunc(list, func(m modelOf) bool { return m.Root == root })
}

// serverHasModel reports whether the server serves a model with this name.
func serverHasModel(ctx context.Context, c *client.Client, name string) bool {
	list, err := modelsOf(ctx, c)
	return err == nil && slices.ContainsFunc(list, func(m modelOf) bool { return m.ID == name })
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
