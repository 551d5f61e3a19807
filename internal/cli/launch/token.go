package launch

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/shoal-llm/shoal/internal/cli/ui"
	"github.com/shoal-llm/shoal/internal/join"
)

// TokenCmd has the subcommands of token.
type TokenCmd struct {
	Create tokenCreateCmd `cmd:"" help:"Make a token, and print the command to run on another machine."`
	List   tokenListCmd   `cmd:"" help:"List the tokens with their expiry and the machines that used them."`
	Revoke tokenRevokeCmd `cmd:"" help:"Revoke a token. Machines that have joined stay in the cluster."`
}

func (c *TokenCmd) Help() string {
	return `Run these on the first machine of the cluster, where shoal up --cluster NAME runs. A machine
exchanges a token for the cluster key to join. This machine stores only a public key per token.

  shoal token create --life 10m
  shoal token list
  shoal token revoke 1f3a9c02`
}

// tokenFlags select the cluster of the tokens.
type tokenFlags struct {
	Cluster string `env:"SHOAL_CLUSTER" placeholder:"NAME" help:"Name of the cluster (default: the only one of this machine)."`
	DataDir string `env:"SHOAL_DATA_DIR" type:"path" placeholder:"DIR" help:"The --data-dir of shoal up, if it was set."`
}

// folder opens the folder of the cluster.
func (f *tokenFlags) folder() (*join.Folder, error) {
	if f.Cluster != "" {
		if err := join.CheckCluster(f.Cluster); err != nil {
			return nil, err
		}
	}
	name := f.Cluster
	if name == "" && f.DataDir == "" {
		names, err := subfolders(clustersHome())
		if err != nil {
			return nil, err
		}
		switch len(names) {
		case 0:
			return nil, errors.New("this machine is not the first machine of a cluster: start one with `shoal up --cluster NAME`, or set the " +
				"--data-dir of a running one")
		case 1:
			name = names[0]
		default:
			return nil, fmt.Errorf("this machine has several clusters: choose one with --cluster NAME: %s", strings.Join(names, ", "))
		}
	}
	dir, err := clusterFolder(f.DataDir, name)
	if err != nil {
		return nil, err
	}
	return join.OpenFolder(dir, false)
}

// subfolders returns the sorted names of the folders in dir; none if dir does not exist.
func subfolders(dir string) (names []string, err error) {
	list, err := os.ReadDir(dir)
	if dir == "" || errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	for _, d := range list {
		if d.IsDir() {
			names = append(names, d.Name())
		}
	}
	return names, err
}

type tokenCreateCmd struct {
	tokenFlags
	Life time.Duration `default:"1h" help:"Time until the token expires, 1m to 168h."`
}

func (c *tokenCreateCmd) Run(e *ui.Env) error {
	f, err := c.folder()
	if err != nil {
		return err
	}
	at, err := f.Addresses()
	if err != nil {
		return err
	}
	if at.Join == "" {
		return fmt.Errorf("the cluster in %s has never been started: `shoal up --cluster NAME` listens for machines that join", f.Dir)
	}
	if conn, err := net.DialTimeout("tcp", at.Join, time.Second); err != nil {
		fmt.Fprintf(e.Stderr, "note: nothing listens at %s now: `shoal up --cluster` must run when a machine joins\n", at.Join)
	} else {
		conn.Close()
	}
	return printJoinLine(e.Stdout, f, at.Join, c.Life)
}

type tokenListCmd struct{ tokenFlags }

func (c *tokenListCmd) Run(e *ui.Env) error {
	f, err := c.folder()
	if err != nil {
		return err
	}
	list, err := f.Tokens.List()
	if err != nil {
		return err
	}
	if len(list) == 0 {
		fmt.Fprintln(e.Stderr, "no tokens: `shoal token create` makes one")
		return nil
	}
	t := tabwriter.NewWriter(e.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "TOKEN\tMADE\tEXPIRES\tUSES\tMACHINES")
	now := time.Now()
	for _, r := range list {
		expires := "in " + plainDuration(r.Expires.Sub(now))
		if !now.Before(r.Expires) {
			expires = "expired"
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%d\t%s\n", r.ID, r.Created.Local().Format(time.DateTime), expires, r.Uses, strings.Join(r.Joined, ", "))
	}
	return t.Flush()
}

type tokenRevokeCmd struct {
	tokenFlags
	ID string `arg:"" help:"Token ID from the first column of shoal token list, or the token itself."`
}

func (c *tokenRevokeCmd) Run(e *ui.Env) error {
	f, err := c.folder()
	if err != nil {
		return err
	}
	id := c.ID
	if t, err := join.ParseToken(id); err == nil {
		id = t.ID
	}
	if err := f.Tokens.Revoke(id); err != nil {
		return err
	}
	fmt.Fprintf(e.Stderr,
		"token %s is revoked; machines that joined with it stay in the cluster until you change the cluster key (docs/machines.md)\n", id)
	return nil
}
