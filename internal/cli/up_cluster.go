package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/shoal-llm/shoal/cluster"
	"github.com/shoal-llm/shoal/internal/join"
	"github.com/shoal-llm/shoal/internal/security"
	"github.com/shoal-llm/shoal/internal/sys/fixedport"
)

// networkFlags let machines join a cluster that up starts.
type networkFlags struct {
	Cluster   string        `placeholder:"NAME" help:"Name of a cluster that other machines can join. Listens on the network, stores a key for the cluster, and prints the command to run on them."`
	Bind      string        `placeholder:"ADDRESS[:PORT]" help:"With --cluster: IP address of this machine for the other machines, and gossip port (default: the address of the default route, port 7070)."`
	Ports     int           `default:"0" placeholder:"FIRST" help:"With --cluster: first of the consecutive ports on the host of --bind: four for the coordinator, then five each for the standby and for every node (default: free ports)."`
	JoinPort  int           `name:"join-port" default:"0" placeholder:"PORT" help:"With --cluster: port on --bind where machines exchange their token (default: 7069)."`
	TokenLife time.Duration `name:"token-life" default:"1h" help:"With --cluster: time until the printed token expires, 1m to 168h; 0 prints none (shoal token create makes one)."`
	Expect    int           `placeholder:"N" help:"With --cluster: nodes to wait for before the first placement, including those on other machines (default: the nodes of this command)."`
	Advertise bool          `default:"true" negatable:"" help:"With --cluster: answer shoal node --discover on the local network."`
}

// Ports of a first machine, unless others are given or these are taken.
const (
	joinPort   = 7069
	gossipPort = 7070
)

// Ports with --ports: of the coordinator, whose gossip has the port of --bind, and of each other
// process, gossip included.
const (
	portsOfCoordinator = 4
	portsOfOthers      = 5
)

// network is what a first machine has on the network. The zero network is none: everything
// listens on loopback.
type network struct {
	host    string // IP address
	gossip  []string
	model   string // reference of the model; empty: it is in a folder of this machine
	folder  *join.Folder
	closers []func()
}

// loopback is the host of clusters that no other machine joins.
const loopback = "127.0.0.1"

// bindHost is where processes of this command listen.
func (n *network) bindHost() string { return cmp.Or(n.host, loopback) }

// bindGossip is where the coordinator with a number listens for gossip.
func (n *network) bindGossip(i int) string {
	if i < len(n.gossip) {
		return n.gossip[i]
	}
	return net.JoinHostPort(n.bindHost(), "0")
}

func (n *network) close() {
	for _, f := range n.closers {
		f()
	}
	n.closers = nil
}

// checkNetwork refuses flags that mean nothing without --cluster, and values that cannot be.
func (c *upCmd) checkNetwork() error {
	if c.Cluster == "" {
		for name, given := range map[string]bool{"bind": c.Bind != "", "ports": c.Ports != 0, "join-port": c.JoinPort != 0, "expect": c.Expect != 0} {
			if given {
				return fmt.Errorf("--%s is for clusters that other machines join: give --cluster NAME as well", name)
			}
		}
		return nil
	}
	if err := join.CheckCluster(c.Cluster); err != nil {
		return err
	}
	if c.Bind != "" {
		if _, _, err := splitBind(c.Bind); err != nil {
			return err
		}
	}
	all := portsOfCoordinator + portsOfOthers*(c.coordinators()-1+c.Nodes)
	last := 65536 - all
	switch {
	case c.Ports < 0 || c.Ports > last:
		return fmt.Errorf("--ports %d: want 1 to %d, the first of %d, or 0", c.Ports, last, all)
	case c.JoinPort < 0 || c.JoinPort > 65535:
		return fmt.Errorf("--join-port %d: want 1 to 65535, or 0", c.JoinPort)
	case c.Expect != 0 && (c.Expect < c.Nodes || c.Expect > 256):
		return fmt.Errorf("--expect %d: want %d, the nodes of this command, to 256", c.Expect, c.Nodes)
	case c.TokenLife != 0 && (c.TokenLife < join.ShortestLife || c.TokenLife > join.LongestLife):
		return fmt.Errorf("--token-life %v: want %v to %v, or 0 for no token", c.TokenLife, join.ShortestLife, join.LongestLife)
	}
	return nil
}

// splitBind reads --bind: an IP address, and a port or 0.
func splitBind(text string) (host string, port int, err error) {
	host = text
	if _, err := netip.ParseAddr(text); err != nil {
		if host, port, err = security.HostPort(text); err != nil {
			return "", 0, fmt.Errorf("--bind %q: want an IP address of this machine, or ADDRESS:PORT", text)
		}
	}
	if ip, err := netip.ParseAddr(host); err != nil || ip.IsUnspecified() {
		return "", 0, fmt.Errorf("--bind %q: want an IP address of this machine that the others reach it by, not a name and not every interface", text)
	}
	return host, port, nil
}

// clustersHome is the folder of the clusters whose first machine this is; "": there is no home.
func clustersHome() string {
	if home := stateHome(); home != "" {
		return filepath.Join(home, "shoal", "clusters")
	}
	return ""
}

// clusterFolder is where a first machine keeps the key, the addresses and the tokens.
func clusterFolder(dataDir, name string) (string, error) {
	if dataDir != "" {
		return filepath.Join(dataDir, "cluster"), nil
	}
	if home := clustersHome(); home != "" {
		return filepath.Join(home, name), nil
	}
	return "", errors.New("this user has no home directory to keep the cluster key in: name a folder with --data-dir DIR")
}

// openNetwork opens what a first machine has on the network: its folder, its addresses, and the
// server that exchanges tokens. Without --cluster it opens nothing.
func (c *upCmd) openNetwork(e *env, serve *cluster.ServeConfig) (err error) {
	n, log := &c.net, serve.Logger
	if c.Cluster == "" {
		return nil
	}
	n.model = modelReference(c.Model, serve.Model)
	defer func() {
		if err != nil {
			n.close()
		}
	}()
	dir, err := clusterFolder(c.DataDir, c.Cluster)
	if err != nil {
		return err
	}
	if n.folder, err = join.OpenFolder(dir, true); err != nil {
		return err
	}
	given, err := c.key()
	if err != nil {
		return err
	}
	if given.IsZero() {
		if c.ClusterKeyFile, err = n.folder.KeyFile(); err != nil {
			return err
		}
	}
	before, err := n.folder.Addresses()
	if err != nil {
		return err
	}
	l, err := c.chooseAddresses(before, log)
	if err != nil {
		return err
	}
	at := l.Addr().String()
	if err := n.folder.SaveAddresses(join.Addresses{Join: at, Gossip: strings.Join(n.gossip, ",")}); err != nil {
		return errors.Join(err, l.Close())
	}
	ctx, cancel := context.WithCancel(e.ctx)
	done := make(chan struct{})
	n.closers = append(n.closers, func() { cancel(); <-done })
	go func() {
		defer close(done)
		if err := n.folder.Serve(ctx, l, c.grant, log); err != nil {
			log.Error("no more machines can join", "error", err)
		}
	}()
	if c.Advertise {
		stop, err := join.Advertise(c.Cluster, at, n.folder.Pin())
		if err != nil {
			log.Info("shoal node --discover does not find this cluster", "reason", err)
		} else {
			n.closers = append(n.closers, stop)
		}
	}
	if c.TokenLife == 0 {
		return nil
	}
	return printJoinLine(e.stdout, n.folder, at, c.TokenLife)
}

// chooseAddresses chooses where this machine listens: where flags say, else where it listened
// before, else at usual ports that are free. It opens the listener of the join server.
func (c *upCmd) chooseAddresses(before join.Addresses, log *slog.Logger) (net.Listener, error) {
	n := &c.net
	host, port, err := splitBind(cmp.Or(c.Bind, before.Join))
	if c.Bind == "" {
		port = 0
		if err != nil || !isLocalAddress(host) {
			if before.Join != "" {
				log.Warn("this machine no longer has the address that it had; machines that joined before do not find it, until --bind names an address that they know or they join again", "address", host)
				before = join.Addresses{}
			}
			all, err := join.HostAddrs()
			if err != nil {
				return nil, err
			}
			addr, err := join.ChooseAddr(all)
			if err != nil {
				return nil, err
			}
			host = addr.String()
		}
	} else if err != nil {
		return nil, err
	} else if !isLocalAddress(host) {
		return nil, fmt.Errorf("--bind %s: this machine does not have that address; `ip address` lists those that it has", c.Bind)
	}
	n.host = host
	l, err := listenNear(host, c.JoinPort, portOf(before.Join), joinPort)
	if err != nil {
		return nil, fmt.Errorf("--join-port: %w", err)
	}
	was := strings.Split(before.Gossip, ",")
	for i := range c.coordinators() {
		kept := 0
		if i > 0 {
			port, _ = c.processPorts(i)
		}
		if i < len(was) {
			kept = portOf(was[i])
		}
		g, err := listenNear(host, port, kept, gossipPort+i)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("--bind: %w", err), l.Close())
		}
		defer g.Close() // once all are found; gossip listens there itself
		n.gossip = append(n.gossip, g.Addr().String())
	}
	return l, nil
}

// listenNear listens at the port that was asked for, or at the one that was used before; other
// machines know these. Failing both it takes the usual one, or any that is free.
func listenNear(host string, asked, before, usual int) (net.Listener, error) {
	if port := cmp.Or(asked, before); port != 0 {
		l, err := net.Listen("tcp", net.JoinHostPort(host, strconv.Itoa(port)))
		if err != nil {
			return nil, fmt.Errorf("this machine cannot listen at %s port %d: %w; stop the other program, or choose another port", host, port, err)
		}
		return l, nil
	}
	if l, err := net.Listen("tcp", net.JoinHostPort(host, strconv.Itoa(usual))); err == nil {
		return l, nil
	}
	return fixedport.Listen(host)
}

// isLocalAddress tells whether this machine has an address.
func isLocalAddress(host string) bool {
	l, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		return false
	}
	l.Close()
	return true
}

// portOf is the port of an address; 0: it has none.
func portOf(addr string) int {
	_, port, err := security.HostPort(addr)
	if err != nil {
		return 0
	}
	return port
}

// grant is what a machine gets for a token. The key file is read each time, since it may have
// changed.
func (c *upCmd) grant() (*join.Grant, error) {
	key, err := c.key()
	if err != nil {
		return nil, err
	}
	g := &join.Grant{Cluster: c.Cluster, Join: c.net.gossip, Model: c.net.model}
	for _, k := range key.Keys() {
		g.Keys = append(g.Keys, k.Text())
	}
	return g, nil
}

// printJoinLine makes a token and prints the line that uses it.
func printJoinLine(w io.Writer, f *join.Folder, at string, life time.Duration) error {
	token, _, err := f.Tokens.Create(life)
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "to add a machine, run this there within %s; it is good for several machines:\n\n  shoal node --join %s --token %s\n\n", plainDuration(life), at, token.Text())
	return nil
}

// plainDuration is a duration without zero parts: 1h, 90m.
func plainDuration(d time.Duration) string {
	text := d.Round(time.Second).String()
	for _, zero := range []string{"m0s", "h0m"} {
		if strings.HasSuffix(text, zero) {
			text = text[:len(text)-2]
		}
	}
	return text
}

// tokenFlagsText are the flags by which shoal token finds this cluster.
func (c *upCmd) tokenFlagsText() string {
	if c.DataDir != "" {
		return "--data-dir " + c.DataDir
	}
	return "--cluster " + c.Cluster
}

// coordinators is how many processes this command runs a coordinator in.
func (c *upCmd) coordinators() int {
	if c.Standby {
		return 2
	}
	return 1
}

// processPorts are the port of gossip and the first of the others of a process where --ports
// chooses them; 0: any. Coordinators count first, then nodes. The first one's gossip is at the
// port of --bind.
func (c *upCmd) processPorts(i int) (gossip, first int) {
	switch {
	case c.Ports == 0:
		return 0, 0
	case i == 0:
		return 0, c.Ports
	}
	at := c.Ports + portsOfCoordinator + portsOfOthers*(i-1)
	return at, at + 1
}
