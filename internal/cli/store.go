package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"text/tabwriter"
	"time"

	"github.com/shoal-llm/shoal/client/wire"
	"github.com/shoal-llm/shoal/cluster"
	"github.com/shoal-llm/shoal/internal/cli/launch"
	"github.com/shoal-llm/shoal/internal/cli/ui"
)

type storeCmd struct {
	List   storeListCmd   `cmd:"" help:"List the processes that keep a copy of the store."`
	Add    storeAddCmd    `cmd:"" help:"Add a process that keeps a copy. It must run with --data-dir."`
	Remove storeRemoveCmd `cmd:"" help:"Remove a process, whether it is running or permanently lost. A replacement can then be added."`
}

func (c *storeCmd) Help() string {
	return `The store holds the placement, jobs, batches and their files. It has one copy at the
coordinator, or three copies in processes that the operator chooses. With three copies it
works while two are running. Replace a machine that is permanently lost:

  shoal store remove n1 --cluster-key key
  shoal store add n4 --cluster-key key`
}

type storeListCmd struct{ timeoutFlags }

type storeChange struct {
	launch.ServerFlags
	launch.ClusterKeyFlag
	Name string `arg:"" help:"Name of the process (--id)."`
}

type (
	storeAddCmd    storeChange
	storeRemoveCmd storeChange
)

func (c *storeListCmd) Run(e *ui.Env) error {
	s, err := c.state(e)
	if err != nil {
		return err
	}
	if s.Store == nil {
		return fmt.Errorf("the coordinator has no store: start it with --data-dir DIR")
	}
	printStore(e, s.Store)
	return nil
}

func printStore(e *ui.Env, s *wire.StoreState) {
	printStoreLine(e.Stdout, s)
	t := tabwriter.NewWriter(e.Stdout, 0, 0, 2, ' ', 0)
	for _, k := range s.Members {
		fmt.Fprintf(t, "%s\t%s\t%s\n", k.ID, k.State, k.Route)
	}
	t.Flush()
}

func (c *storeAddCmd) Run(e *ui.Env) error { return (*storeChange)(c).run(e, http.MethodPost) }

func (c *storeRemoveCmd) Run(e *ui.Env) error { return (*storeChange)(c).run(e, http.MethodDelete) }

func (c *storeChange) run(e *ui.Env, method string) error {
	key, err := c.Key()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(e.Ctx, time.Minute)
	defer cancel()
	cl := c.Client()
	cl.Header = http.Header{cluster.OperatorHeader: {key.OperatorToken()}}
	resp, err := cl.Do(ctx, method, "/v1/store/members/"+url.PathEscape(c.Name), nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	s := new(wire.StoreState)
	if err := json.NewDecoder(resp.Body).Decode(s); err != nil {
		return err
	}
	printStore(e, s)
	return nil
}
