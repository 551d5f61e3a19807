package launch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/term"

	"github.com/shoal-llm/shoal/internal/cli/models"
	"github.com/shoal-llm/shoal/internal/cli/ui"
	"github.com/shoal-llm/shoal/internal/hostname"
	"github.com/shoal-llm/shoal/internal/join"
)

// membershipsHome returns the folder of the clusters that this machine has joined, or "" if the
// user has no home directory.
func membershipsHome() string {
	if home := StateHome(); home != "" {
		return filepath.Join(home, "shoal", "joined")
	}
	return ""
}

// membershipFolder returns the folder where a node stores the key and the addresses of a cluster.
func (c *NodeCmd) membershipFolder(name string) (string, error) {
	if c.DataDir != "" {
		return filepath.Join(c.DataDir, "cluster"), nil
	}
	if home := membershipsHome(); home != "" {
		return filepath.Join(home, name), nil
	}
	return "", errors.New("this user has no home directory for the cluster key: set a folder with --data-dir DIR")
}

// memberships returns the clusters that this machine has joined before.
func (c *NodeCmd) memberships() ([]join.Membership, error) {
	if c.DataDir == "" {
		return join.Memberships(membershipsHome())
	}
	m, err := join.LoadMembership(filepath.Join(c.DataDir, "cluster"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return []join.Membership{m}, err
}

// joinMethod is the way in which a node joins its cluster.
type joinMethod int

const (
	joinByKey       joinMethod = iota // with the key of the flags
	joinByToken                       // with the token of the flags
	joinByDiscovery                   // with --discover
	rejoin                            // with the key and the addresses that it stored when it joined
)

// chooseJoinMethod chooses how a node joins, from its flags and the stored memberships. chosen is
// set only with rejoin.
func chooseJoinMethod(c *NodeCmd, haveKey bool, kept []join.Membership) (how joinMethod, chosen join.Membership, err error) {
	switch {
	case haveKey && (c.Token != "" || c.Discover):
		return 0, chosen, errors.New("--token and --discover fetch the cluster key: remove --cluster-key and SHOAL_CLUSTER_KEY")
	case c.Discover && len(c.Join) > 0:
		return 0, chosen, errors.New("--discover finds the address: remove --join")
	case c.Insecure && (c.Token != "" || c.Discover):
		return 0, chosen, errors.New("--insecure has no key to fetch: remove --token and --discover")
	case c.Discover:
		return joinByDiscovery, chosen, nil
	case c.Token != "" && len(c.Join) != 1:
		return 0, chosen, errors.New("--token needs the address of the first machine: --join ADDRESS, as printed by `shoal up --cluster`, or " +
			"--discover to search for it")
	case c.Token != "":
		return joinByToken, chosen, nil
	}
	if haveKey || c.Insecure {
		if len(c.Join) == 0 {
			return 0, chosen, errors.New("--join is missing: set the gossip address of the coordinator or of any node: --join HOST:PORT")
		}
		return joinByKey, chosen, nil
	}
	fit := slices.DeleteFunc(slices.Clone(kept), func(m join.Membership) bool {
		return c.Cluster != "" && m.Cluster != c.Cluster || len(c.Join) > 0 && !slices.ContainsFunc(c.Join,
			func(at string) bool { return at == m.Server || slices.Contains(m.Join, at) })
	})
	switch {
	case len(fit) == 1:
		return rejoin, fit[0], nil
	case len(fit) > 1:
		var names []string
		for _, m := range fit {
			names = append(names, m.Cluster)
		}
		return 0, chosen, fmt.Errorf("this machine has joined several clusters: choose one with --cluster NAME: %s", strings.Join(names, ", "))
	case len(c.Join) == 0:
		return 0, chosen, errors.New("no cluster is chosen. Use --join ADDRESS --token TOKEN, as printed by `shoal up --cluster NAME` on the " +
			"first machine; --discover to search the local network; or --join HOST:PORT --cluster-key FILE with a copy of the key")
	}
	return joinByKey, chosen, nil // the missing key is an error after the checks of all other flags
}

// resolveCluster finds the cluster and its key, and sets the flags that depend on them.
func (c *NodeCmd) resolveCluster(e *ui.Env, log *slog.Logger) error {
	if c.KeyFD != 0 { // shoal up started this process
		return nil
	}
	if host, port, err := splitBind(c.Bind); err == nil { // without a port: any free one
		c.Bind = net.JoinHostPort(host, strconv.Itoa(port))
	}
	key, err := c.key(c.Insecure)
	if err != nil {
		return err
	}
	var kept []join.Membership
	if key.IsZero() {
		if kept, err = c.memberships(); err != nil {
			return err
		}
	}
	how, m, err := chooseJoinMethod(c, !key.IsZero(), kept)
	if err != nil || how == joinByKey {
		return err
	}
	host := ""
	switch how {
	case joinByToken:
		t, err := join.ParseToken(c.Token)
		if err != nil {
			return err
		}
		m, host, err = c.exchange(e, log, c.Join[0], t, kept)
		if err != nil {
			return err
		}
	case joinByDiscovery:
		if m, host, err = c.discover(e, log, kept); err != nil {
			return err
		}
	case rejoin:
		log.Info("joining the cluster of the last start", "cluster", m.Cluster, "join", strings.Join(m.Join, ","))
	case joinByKey:
	}
	c.ClusterKeyFile, c.Cluster, c.Join = m.KeyFile, m.Cluster, m.Join
	if len(c.Model) == 0 {
		if c.Model = []string{"bus"}; m.Model != "" && models.Pulled(m.Model) != "" { // this disk has the same commit
			c.Model = []string{m.Model}
		}
	}
	if c.Bind == "" {
		if host == "" {
			err = hostname.Retry(e.Ctx, log, "route to "+m.Join[0], func(ctx context.Context) (err error) {
				host, err = sourceAddress(ctx, m.Join[0])
				return err
			})
		}
		c.Bind = net.JoinHostPort(host, "0")
	}
	return err
}

// sourceAddress returns the local address of the route to addr.
func sourceAddress(ctx context.Context, addr string) (string, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "udp", addr) // sends no packet
	if err != nil {
		return "", fmt.Errorf("there is no route from this machine to %s, where it joined the cluster before (%w); set an address of this "+
			"machine with --bind, or join again with a token", addr, err)
	}
	defer conn.Close()
	host, _, err := net.SplitHostPort(conn.LocalAddr().String())
	return host, err
}

// exchange trades a token for the cluster key and stores the key. A machine that has joined the
// cluster before does not need a valid token, so the same command line also restarts a node.
func (c *NodeCmd) exchange(e *ui.Env, log *slog.Logger, at string, t join.Token,
	kept []join.Membership) (m join.Membership, host string, err error) {
	ask := join.Request{Machine: c.machineName(), Ports: c.fixedPorts()}
	if c.Bind != "" {
		if ask.Host, err = c.listenHost(e.Ctx, log); err != nil {
			return m, "", err
		}
	}
	g, host, err := join.Exchange(e.Ctx, at, t, ask)
	if err != nil {
		i := slices.IndexFunc(kept, func(m join.Membership) bool { return m.From(t.Pin) })
		if i < 0 || errors.Is(err, join.ErrImpostor) || e.Ctx.Err() != nil {
			return m, "", err
		}
		log.Info("token not exchanged; joining with the stored key", "cluster", kept[i].Cluster, "reason", err)
		return kept[i], "", nil
	}
	if c.Cluster != "" && c.Cluster != g.Cluster {
		return m, "", fmt.Errorf("--cluster %s: the token belongs to the cluster %q; remove --cluster, or use a token of that cluster",
			c.Cluster, g.Cluster)
	}
	dir, err := c.membershipFolder(g.Cluster)
	if err != nil {
		return m, "", err
	}
	if m, err = join.SaveGrant(dir, g, at, t.Pin); err != nil {
		return m, host, notKept("the cluster key", err)
	}
	fmt.Fprintf(e.Stderr, "joined the cluster %s; its key is stored in %s, so the next start needs no token\n", g.Cluster, dir)
	return m, host, nil
}

// listenHost returns the IP address of --bind.
func (c *NodeCmd) listenHost(ctx context.Context, log *slog.Logger) (string, error) {
	host, _, err := splitBind(c.Bind)
	if err != nil {
		return "", err
	}
	place, err := hostname.Locate(ctx, net.JoinHostPort(host, "0"), log)
	if err != nil {
		return "", fmt.Errorf("--bind %s: %w", c.Bind, err)
	}
	host, _, err = net.SplitHostPort(place.Bind)
	return host, err
}

// machineName returns the name of this machine for the log of the first machine.
func (c *NodeCmd) machineName() string {
	host, _ := os.Hostname() // the name of the node is the fallback
	return join.CleanName(cmp.Or(c.ID, host, "node"))
}

// fixedPorts returns the TCP ports that the flags set for this node, if any.
func (c *NodeCmd) fixedPorts() (ports []int) {
	if port := portOf(c.Bind); port != 0 {
		ports = append(ports, port)
	}
	if c.Ports != 0 {
		first := int(c.Ports)
		ports = append(ports, first, first+1, first+2)
	}
	return ports
}

// discover looks for the cluster on the local network.
func (c *NodeCmd) discover(e *ui.Env, log *slog.Logger, kept []join.Membership) (m join.Membership, host string, err error) {
	var token *join.Token
	if c.Token != "" {
		t, err := join.ParseToken(c.Token)
		if err != nil {
			return m, "", err
		}
		token = &t
	}
	found, err := join.Discover(e.Ctx)
	if err != nil {
		return m, "", err
	}
	chosen, err := join.Choose(found, c.Cluster, token)
	if err != nil {
		return m, "", err
	}
	fmt.Fprintf(e.Stderr, "found the cluster %s at %s, fingerprint %s\n", chosen.Cluster, chosen.Addr, chosen.Pin.Short())
	if token == nil {
		if i := slices.IndexFunc(kept, func(m join.Membership) bool { return m.From(chosen.Pin) }); i >= 0 {
			return kept[i], "", nil
		}
		t, err := promptForToken(e.Ctx, e, chosen)
		if err != nil {
			return m, "", err
		}
		if t.Pin != chosen.Pin {
			return m, "", fmt.Errorf("the token was not made by the cluster %s at %s: its fingerprint is %s, but that of the cluster is %s; make "+
				"a token on the first machine of this cluster", chosen.Cluster, chosen.Addr, t.Pin.Short(), chosen.Pin.Short())
		}
		token = &t
	}
	return c.exchange(e, log, chosen.Addr, *token, kept)
}

// promptForToken prompts for the token at the terminal, without echo.
func promptForToken(ctx context.Context, e *ui.Env, f join.Found) (t join.Token, err error) {
	in, ok := e.Stdin.(*os.File)
	if !ok || !ui.IsTerminal(in) {
		return t, fmt.Errorf("a token is needed to join %s: give it with --token TOKEN, or SHOAL_TOKEN; `shoal token create` on the first "+
			"machine makes one", f.Cluster)
	}
	before, err := term.GetState(int(in.Fd()))
	if err != nil {
		return t, err
	}
	fmt.Fprintf(e.Stderr, "token for %s (from `shoal token create` on its first machine): ", f.Cluster)
	text, err := ui.Await(ctx, func() ([]byte, error) {
		return term.ReadPassword(int(in.Fd()))
	}, func() { _ = term.Restore(int(in.Fd()), before) })
	fmt.Fprintln(e.Stderr)
	if err != nil {
		return t, err
	}
	return join.ParseToken(string(text))
}
