// Command wire runs a simulated network on one machine. Every host is a network namespace; its
// links have a delay, jitter, a rate, a queue, loss, reordering, a firewall and partitions. It
// requires root. docs/network.md describes it.
package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/alecthomas/kong"

	"github.com/shoal-llm/shoal/test/wire/calibrate"
	"github.com/shoal-llm/shoal/test/wire/host"
	"github.com/shoal-llm/shoal/test/wire/network"
	"github.com/shoal-llm/shoal/test/wire/topology"
)

type commands struct {
	Up        upCmd        `cmd:"" help:"Start the network of a topology file, until interrupted."`
	Run       runCmd       `cmd:"" help:"Start a network, run a command outside of it, and remove the network."`
	Exec      execCmd      `cmd:"" help:"Run a command on a host of the running network."`
	Control   controlCmd   `cmd:"" name:"do" help:"Change or show the running network: cut, heal, set, hosts, stats."`
	Calibrate calibrateCmd `cmd:"" help:"Start a network and measure delay, rate and loss between two hosts."`
	Exchange  exchangeCmd  `cmd:"" help:"Start a network and time small collectives over NATS and over plain TCP, at several delays."`
	Rank      rankCmd      `cmd:"" hidden:"" help:"Be one rank of exchange."`
	Steps     stepsCmd     `cmd:"" help:"Start a network and time steps of a model with one and two micro-batches, at several delays."`
	StepRank  stepRankCmd  `cmd:"" hidden:"" help:"Be one rank of steps."`
	Compare   compareCmd   `cmd:"" help:"Measure builds of Shoal in turn on networks of several delays and rates; writes a table and JSON."`
	Check     checkCmd     `cmd:"" help:"Check a topology file and show its paths."`
	Probe     probeCmd     `cmd:"" help:"Try the features of this machine that a network needs, then measure a small one (10 seconds)."`
	Down      downCmd      `cmd:"" help:"Remove the hosts of a network whose process was killed."`
}

func main() {
	var c commands
	k := kong.Parse(&c, kong.Name("wire"), kong.Description("A simulated network of hosts on one machine (docs/network.md). Requires root."))
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	k.BindTo(ctx, (*context.Context)(nil))
	err := k.Run()
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		os.Exit(max(1, exit.ExitCode()))
	case err != nil:
		fmt.Fprintln(os.Stderr, "wire:", err)
		os.Exit(1)
	}
}

// start starts the network of a file and serves its commands. stop removes it.
func start(ctx context.Context, file string) (top *topology.Topology, n *network.Network, stop func() error, err error) {
	if top, err = topology.Load(file); err != nil {
		return nil, nil, nil, err
	}
	if n, err = network.Start(top); err != nil {
		return nil, nil, nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	served := make(chan error, 1)
	go func() { served <- n.Serve(ctx) }()
	return top, n, func() error {
		cancel()
		return errors.Join(<-served, n.Close())
	}, nil
}

type upCmd struct {
	File string `arg:"" type:"existingfile" help:"Topology file (YAML)."`
}

func (c *upCmd) Run(ctx context.Context) error {
	top, _, stop, err := start(ctx, c.File)
	if err != nil {
		return err
	}
	fmt.Printf("%d hosts are up. `wire exec %s COMMAND` runs a command on one, `wire do hosts` lists them. Ctrl-C removes them.\n",
		len(top.Hosts), top.Hosts[0].Name)
	<-ctx.Done()
	return stop()
}

type runCmd struct {
	File    string   `arg:"" type:"existingfile" help:"Topology file (YAML)."`
	Command []string `arg:"" passthrough:"" help:"Command with its arguments."`
}

func (c *runCmd) Run(ctx context.Context) (err error) {
	_, n, stop, err := start(ctx, c.File)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	words := c.Command
	if words[0] == "--" {
		words = words[1:]
	}
	if len(words) == 0 {
		return errors.New("run: no command")
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, words[0], words[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), "WIRE="+self)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 30 * time.Second
	if err := cmd.Run(); err != nil {
		return err
	}
	text, err := n.Control(context.WithoutCancel(ctx), []string{"stats"})
	fmt.Fprint(os.Stderr, text)
	return err
}

type execCmd struct {
	Host    string   `arg:"" help:"Name of the host."`
	Command []string `arg:"" passthrough:"" help:"Command with its arguments."`
}

// Run replaces this process by the command, so that a signal reaches it.
func (c *execCmd) Run() error {
	words := c.Command
	if words[0] == "--" {
		words = words[1:]
	}
	if len(words) == 0 {
		return errors.New("exec: no command")
	}
	path, err := exec.LookPath(words[0])
	if err != nil {
		return err
	}
	runtime.LockOSThread()
	if err := host.JoinWithNames(c.Host); err != nil {
		return err
	}
	return syscall.Exec(path, words, os.Environ())
}

type controlCmd struct {
	Words []string `arg:"" passthrough:"" help:"The command, one of those below."`
}

func (c *controlCmd) Run() error {
	text, err := network.Send(c.Words)
	fmt.Print(text)
	return err
}

// Help lists the commands.
func (*controlCmd) Help() string { return network.Usage }

type calibrateCmd struct {
	File     string        `arg:"" type:"existingfile" help:"Topology file (YAML)."`
	Pairs    []string      `arg:"" optional:"" placeholder:"A-B" help:"Pairs of hosts, as FROM:TO (default: the first host with the second and with the last)."`
	Trips    int           `default:"1000" help:"Round trips to measure (1 to 65535)."`
	Every    time.Duration `default:"2ms" help:"Gap between round trips."`
	Transfer time.Duration `default:"3s" help:"Duration of the TCP transfer."`
}

func (c *calibrateCmd) Run(ctx context.Context) (err error) {
	if c.Trips < 1 || c.Trips > 65535 || c.Every <= 0 || c.Transfer <= 0 {
		return fmt.Errorf("calibrate: --trips %d --every %v --transfer %v: want 1 to 65535 trips and positive times",
			c.Trips, c.Every, c.Transfer)
	}
	top, n, stop, err := start(ctx, c.File)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	pairs := c.Pairs
	if len(pairs) == 0 {
		for _, i := range []int{1, len(top.Hosts) - 1} {
			if i > 0 {
				pairs = append(pairs, top.Hosts[0].Name+":"+top.Hosts[i].Name)
			}
		}
	}
	var before, after syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &before)
	for _, p := range pairs {
		from, to, _ := strings.Cut(p, ":")
		r, err := calibrate.Measure(ctx, top, from, to, calibrate.Options{RoundTrips: c.Trips, Every: c.Every, Transfer: c.Transfer})
		if err != nil {
			return err
		}
		fmt.Println(r.Text())
	}
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &after)
	text, err := n.Control(ctx, []string{"stats"})
	fmt.Print(text)
	used := time.Duration(after.Utime.Nano() + after.Stime.Nano() - before.Utime.Nano() - before.Stime.Nano())
	fmt.Printf("processor time of forwarding and of both ends: %v\n", used.Round(time.Millisecond))
	return err
}

type checkCmd struct {
	File string `arg:"" type:"existingfile" help:"Topology file (YAML)."`
}

func (c *checkCmd) Run() error {
	top, err := topology.Load(c.File)
	if err != nil {
		return err
	}
	for i, h := range top.Hosts {
		fmt.Print(h.Name, " ", h.Address)
		if h.IPv6.IsValid() {
			fmt.Print(" ", h.IPv6)
		}
		if h.NAT.IsValid() {
			fmt.Printf(" (translated from %s: other hosts cannot connect to it)", h.NAT)
		}
		fmt.Printf(", rack %s; to each other host, in one direction:", top.Racks[h.Rack].Name)
		for j, o := range top.Hosts {
			if i == j {
				continue
			}
			var delay time.Duration
			for _, l := range top.Path(i, j) {
				delay += l.Delay
			}
			fmt.Printf(" %s %v", o.Name, delay)
		}
		fmt.Println()
	}
	for _, name := range slices.Sorted(maps.Keys(top.Names)) {
		fmt.Print("name ", name, ":")
		for _, i := range top.Names[name] {
			fmt.Print(" ", top.Hosts[i].Name)
		}
		fmt.Println()
	}
	return nil
}

type downCmd struct{}

func (*downCmd) Run() error {
	n, err := host.RemoveAll()
	fmt.Printf("%d hosts removed\n", n)
	return err
}
